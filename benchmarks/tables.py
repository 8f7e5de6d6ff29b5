"""The tables of the docs, written from the JSON of the runs: `python -m benchmarks.tables`.

The make targets that measure do it. What stands between `<!-- table NAME -->` and
`<!-- end of table NAME -->` is made here.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign import Turn
from benchmarks.contender import CONTENDERS
from benchmarks.metrics import METRICS
from benchmarks.report import (
    LABELS,
    Series,
    Summaries,
    comparison,
    figure,
    markdown_row,
    per_second,
    remarks,
    setting,
    spread,
    summarise,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    "docs/explanation/compared.md",
    "benchmarks/README.md",
    "docs/explanation/security.md",
    "docs/explanation/spark.md",
)
BUSY_CPUS = 0.3
COLUMNS = {
    "noop": "no-ops, each with a future",
    "map": "map, 100 a chunk",
    "clients": "no-ops of four clients",
    "clients_ratio": "the same over one client",
    "beside": "round trip beside them, 99th percentile",
    "p50": "round trip",
    "lost": "a worker killed: lost / repeated of 2,000; time over ideal when none is lost",
    "bytes1": "echo of 1 MB",
    "start": "start to first result",
    "idle": "idle memory (PSS)",
}


def latest(facts: dict[str, Any]) -> str:
    """Write the table of a `make bench`: a row a metric."""
    table = comparison(summarise(turns_of(facts)))
    return f"{setting(facts)} Medians; in brackets the ratio to raw pyzmq.\n\n{table}"


def peers(facts: dict[str, Any]) -> str:
    """Write the table of a `make bench-peers`: a row a contender, ratios with their spread."""
    turns = turns_of(facts)
    summaries = summarise(turns)
    shown = [key for key in COLUMNS if key in summaries]
    lines = [markdown_row(["", *(COLUMNS[key] for key in shown)]), markdown_row(["---"] * (len(shown) + 1))]
    for name in CONTENDERS:
        cells = [cell(summaries, key, name) for key in shown]
        if set(cells) != {"-"}:  # some measure nothing that has a column here
            lines.append(markdown_row([LABELS[name], *cells]))
    head = f"{setting(facts)} Medians, then the ratio to raw pyzmq's turn just before (least - most)."
    parts = [head, caution(turns), "\n".join(lines), remarks(turns, facts.get("left_out", {}))]
    return "\n\n".join(part for part in parts if part)


def keys(facts: dict[str, Any]) -> str:
    """Write the table of a `make bench-keys`: a row a figure, with keys over without."""
    lines = [markdown_row(["what", "without keys", "with keys", "ratio"]), markdown_row(["---"] * 4)]
    for row in facts["rows"]:
        rates = [per_second(row[which], row["unit"]) for which in ("without", "with")]
        ratio = f"{row['ratio']:.2f} ({row['lowest']:.2f} - {row['highest']:.2f})"
        lines.append(markdown_row([row["row"], *rates, ratio]))
    return "\n\n".join([f"{setting(facts)} Medians, and the least and most of the ratios.", "\n".join(lines)])


def spark(facts: dict[str, Any]) -> str:
    """Write the table of a `make bench-spark`: a row of the acceptance table, in seconds and ratios."""
    heads = [
        "row",
        "mesh",
        "`mesh.local()`",
        "plain Spark",
        "local over mesh",
        "plain over mesh",
        "processor time, mesh over plain",
        "goal",
    ]
    lines = [markdown_row(heads), markdown_row(["---"] * len(heads))]
    others = []
    for row in facts["rows"]:
        if "seconds" in row:
            seconds = [f"{row['seconds'][way]:.2f} s" for way in ("mesh", "local", "plain")]
            ratios = [f"{row[which]:.2f}" for which in ("ratio_to_local", "ratio_to_plain")]
            processor = f"{row['processor_mesh_to_plain']:.2f}" if "processor_mesh_to_plain" in row else "-"
            goal = row["goal"].replace(">=", "at least") or "-"
            lines.append(markdown_row([row["row"], *seconds, *ratios, processor, goal]))
        elif "share" in row:
            others.append(f"- {row['row']}: {row['share']:.2f} (goal: at most 0.60)")
        elif "p95_ms" not in row:
            times = f"median {row['p50_ms']:.1f} ms, of processors {row['processor_ms']:.1f} ms"
            others.append(f"- {row['row']}: {times} (goal: at most 3 ms)")
        else:
            times = f"median {row['p50_ms']:.1f} ms, 95th percentile {row['p95_ms']:.1f} ms"
            others.append(f"- {row['row']}: {times} (goal: 95th below 10 ms)")
    for taken, load in dict.fromkeys((row["taken"], row["load"]) for row in facts["rows"] if "taken" in row):
        names = "; ".join(row["row"] for row in facts["rows"] if row.get("taken") == taken)
        minute = taken[:16].replace("T", " ")
        others.append(f"- measured {minute} UTC, while others used the machine (load {load}): {names}")
    return "\n\n".join([f"{setting(facts)} Medians.", "\n".join(lines), "\n".join(others)])


def turns_of(facts: dict[str, Any]) -> list[Turn]:
    """Return the turns of a `make bench`."""
    return [Turn(**turn) for turn in facts["turns"]]


def cell(summaries: Summaries, key: str, name: str) -> str:
    """Write one contender's figure; a killed worker's three in one."""
    if key == "lost":
        return killed(summaries, name)
    if (summary := summaries.get(key, {}).get(name)) is None:
        return "-"
    told = figure(summary.value.median, METRICS[key])
    return f"{told}<br>{spread(summary.ratio)}" if summary.ratio else told


def killed(summaries: Summaries, name: str) -> str:
    """Write what a killed worker cost; the time only where all tasks came back in every turn."""
    values: list[Series | None] = []
    for key in ("lost", "repeated", "fault"):
        summary = summaries.get(key, {}).get(name)
        values.append(summary.value if summary else None)
    lost, repeated, taken = values
    if lost is None or repeated is None:
        return "-"
    time = f"; {figure(taken.median, METRICS['fault'])}" if taken and not lost.high else ""
    return f"{count(lost)} / {count(repeated)}{time}"


def count(tasks: Series) -> str:
    """Write a number of tasks, or from the least to the most."""
    return f"{tasks.low:,.0f}" if tasks.low == tasks.high else f"{tasks.low:,.0f} - {tasks.high:,.0f}"


def caution(turns: Sequence[Turn]) -> str:
    """Return a warning if other programs used the machine; else an empty string."""
    foreign = [turn.foreign_cpus for turn in turns if turn.foreign_cpus is not None]
    if not foreign or statistics.median(foreign) < BUSY_CPUS:
        return ""
    return "**The machine had much other work meanwhile: figures are low and ratios uncertain.**"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "latest": latest,
    "peers": peers,
    "keys": keys,
    "spark": spark,
}


def fill(text: str, results: Path = RESULTS) -> str:
    """Return a page with its tables made anew from the runs' JSON; a table without a run stays as it is.

    Raises:
        ValueError: A table begins and does not end.
    """
    for name, write in TABLES.items():
        path = results / f"{name}.json"
        begin, end = f"<!-- table {name} -->", f"<!-- end of table {name} -->"
        if path.exists() and begin in text:
            table = write(json.loads(path.read_text())).strip()
            before, rest = text.split(begin, 1)
            if end not in rest:
                raise ValueError(f"{begin} has no {end}")
            text = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> int:
    for page in PAGES:
        (ROOT / page).write_text(fill((ROOT / page).read_text()))
    print(f"written: the tables of {', '.join(PAGES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
