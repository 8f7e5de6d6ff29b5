"""The picture of a run: a panel a metric, a bar a contender, whiskers from the least to the most.

`python -m benchmarks.plot` draws those of the stored runs anew.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.contender import CONTENDERS
from benchmarks.metrics import METRICS
from benchmarks.report import LABELS, Summaries, Summary, figure, setting, summarise
from benchmarks.tables import RESULTS, turns_of

LEFT_OUT = ("p99", "repeated")  # the tables have them
COLUMNS = 3
TITLE_WIDTH = 46
"""Characters above a panel."""
COLOURS = {
    "raw": "#6b7280",
    "raw-uncopied": "#9ca3af",
    "raw-relay": "#d1d5db",
    "raw-listening": "#e5e7eb",
    "taskmesh": "#0f766e",
    "taskmesh-listening": "#2f8f86",
    "taskmesh-remote": "#5eaaa3",
    "taskmesh-distant": "#a7cfc9",
    "processpool": "#b45309",
    "dask": "#c2843f",
    "ray": "#3b6fb6",
    "celery": "#7fa650",
    "taskmesh-file": "#1f6f8b",
    "taskmesh-redis": "#99c2d1",
    "celery-durable": "#4f6b2f",
    "dramatiq": "#a05252",
    "huey": "#c9a227",
    "rq": "#6d6d8f",
    "parsl": "#8b5fb0",
}


def draw(summaries: Summaries, title: str, path: Path) -> None:
    """Write the picture as PNG."""
    keys = [key for key in summaries if key not in LEFT_OUT and len(summaries[key]) > 1]
    if not keys:  # nothing has been compared
        return
    bars = max(len(summaries[key]) for key in keys)
    lines = -(-len(keys) // COLUMNS)
    chart, axes = pyplot.subplots(
        lines, COLUMNS, figsize=(15, lines * (0.9 + 0.32 * bars)), squeeze=False, layout="constrained"
    )
    for key, axis in zip(keys, axes.flat, strict=False):
        panel(axis, key, summaries[key])
    for axis in axes.flat[len(keys) :]:
        axis.set_axis_off()
    chart.suptitle(title, fontsize=10)
    chart.savefig(path, dpi=110)
    pyplot.close(chart)


def panel(axis: Axes, key: str, row: dict[str, Summary]) -> None:
    """Draw one metric; on a logarithmic scale, and said so, where the contenders are that far apart."""
    metric = METRICS[key]
    names = [name for name in CONTENDERS if name in row][::-1]
    medians = [row[name].value.median for name in names]
    below = [row[name].value.median - row[name].value.low for name in names]
    above = [row[name].value.high - row[name].value.median for name in names]
    axis.barh(
        [LABELS[name] for name in names],
        medians,
        xerr=[below, above],
        color=[COLOURS[name] for name in names],
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )
    far_apart = min(medians) > 0 and max(medians) > 20 * min(medians)
    longest = max(row[name].value.high for name in names) or 1.0
    if far_apart:
        axis.set_xscale("log")
        axis.set_xlabel("logarithmic scale: each number is ten times the one before", fontsize=7)
        axis.set_xlim(min(medians) / 3, longest * 12)
    else:
        axis.set_xlim(0, longest * 1.3)
        axis.set_xlabel("linear scale, from 0", fontsize=7)
    for place, name in enumerate(names):
        axis.annotate(
            f" {figure(row[name].value.median, metric)}",
            (row[name].value.high, place),
            va="center",
            fontsize=7.5,
        )
    better = "more" if metric.more_is_better else "less"
    title = metric.title.replace("the same:", "one executing process killed:")
    axis.set_title(textwrap.fill(f"{title} ({better} is better)", TITLE_WIDTH), fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> int:
    for name in ("latest", "peers"):
        facts = json.loads((RESULTS / f"{name}.json").read_text())
        draw(summarise(turns_of(facts)), setting(facts).partition(";")[0], RESULTS / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
