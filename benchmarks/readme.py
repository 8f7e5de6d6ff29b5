"""The README's tables, written from the JSON of the runs: `python -m benchmarks.readme`.

`make bench` and `make bench-peers` do it. What stands between `<!-- table NAME -->` and
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
    remarks,
    setting,
    spread,
    summarise,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUSY_CPUS = 0.3
COLUMNS = {
    "noop": "no-ops, each with a future",
    "map": "map, 100 a chunk",
    "p50": "round trip",
    "lost": "a worker killed: lost / repeated of 2,000; time over ideal when none is lost",
    "bytes1": "echo of 1 MB",
    "start": "start to first result",
    "idle": "idle memory (PSS)",
}


def latest(facts: dict[str, Any], turns: Sequence[Turn]) -> str:
    """Write the table of a `make bench`: a row a metric."""
    return f"{setting(facts)} Medians; in brackets the ratio to raw pyzmq.\n\n{comparison(summarise(turns))}"


def peers(facts: dict[str, Any], turns: Sequence[Turn]) -> str:
    """Write the table of a `make bench-peers`: a row a contender, ratios with their spread."""
    summaries = summarise(turns)
    lines = [markdown_row(["", *COLUMNS.values()]), markdown_row(["---"] * (len(COLUMNS) + 1))]
    lines += [
        markdown_row([LABELS[name], *(cell(summaries, key, name) for key in COLUMNS)])
        for name in CONTENDERS
        if any(name in row for row in summaries.values())
    ]
    head = f"{setting(facts)} Medians, then the ratio to raw pyzmq's turn just before (least - most)."
    parts = [head, caution(turns), "\n".join(lines), remarks(turns, facts.get("left_out", {}))]
    return "\n\n".join(part for part in parts if part)


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
    """Say so when the machine was not left alone; empty when it was."""
    foreign = [turn.foreign_cpus for turn in turns if turn.foreign_cpus is not None]
    if not foreign or statistics.median(foreign) < BUSY_CPUS:
        return ""
    return "**The machine had much other work meanwhile: figures are low and ratios uncertain.**"


TABLES: dict[str, Callable[[dict[str, Any], Sequence[Turn]], str]] = {"latest": latest, "peers": peers}


def fill(text: str, results: Path = RESULTS) -> str:
    """Give the README with its tables made anew from the runs' JSON; a table without a run stays as it is.

    Raises:
        ValueError: A table begins and does not end.
    """
    for name, write in TABLES.items():
        path = results / f"{name}.json"
        begin, end = f"<!-- table {name} -->", f"<!-- end of table {name} -->"
        if path.exists() and begin in text:
            facts = json.loads(path.read_text())
            table = write(facts, [Turn(**turn) for turn in facts["turns"]]).strip()
            before, rest = text.split(begin, 1)
            if end not in rest:
                raise ValueError(f"README: {begin} has no {end}")
            text = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> int:
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
    print(f"written: the tables of {readme.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
