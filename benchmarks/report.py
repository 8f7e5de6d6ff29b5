"""The report of a run as Markdown: medians with their spread, ratios turn by turn, targets met or not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.campaign import Turn
from benchmarks.contender import CONTENDERS, PEERS, REFERENCE
from benchmarks.metrics import METRICS, TARGETS, Metric, verdict

LABELS = {
    "raw": "raw pyzmq",
    "raw-uncopied": "raw pyzmq, copy=False",
    "raw-relay": "raw pyzmq, by way of a hub, a pool and a slot",
    "raw-listening": "raw pyzmq, by way of a pool and a slot",
    "taskmesh": "taskmesh",
    "taskmesh-listening": "taskmesh, a mesh that listens",
    "taskmesh-remote": "taskmesh, hub and pool over tcp",
    "taskmesh-distant": "taskmesh, 20 ms away",
    "processpool": "ProcessPoolExecutor",
    "dask": "Dask",
    "ray": "Ray",
    "celery": "Celery (Redis)",
    "taskmesh-file": "taskmesh, journal in a file",
    "taskmesh-redis": "taskmesh, journal in Redis",
    "celery-durable": "Celery (Redis, appendonly, acks_late)",
    "dramatiq": "Dramatiq (Redis, appendonly)",
    "huey": "Huey (SQLite)",
    "rq": "RQ (Redis, appendonly)",
    "parsl": "Parsl HTEX",
}


OURS = ("taskmesh", "taskmesh-listening", "taskmesh-remote")


class Series(NamedTuple):
    """Several measurements of one thing."""

    median: float
    low: float
    high: float


class Summary(NamedTuple):
    """A contender's figure, and where it is compared with raw pyzmq its ratio to the neighbouring turn."""

    value: Series
    ratio: Series | None

    def judged(self, metric: Metric) -> Series | None:
        """Return the series that targets apply to."""
        return self.ratio if metric.relative else self.value


Summaries = dict[str, dict[str, Summary]]  # metric -> contender -> summary


def series(values: Sequence[float]) -> Series:
    """Put numbers in order."""
    return Series(statistics.median(values), min(values), max(values))


def summarise(turns: Iterable[Turn]) -> Summaries:
    """Sum up all turns that gave figures."""
    taken = [turn for turn in turns if not turn.error]
    reference = {turn.pair: turn for turn in taken if turn.contender == REFERENCE}
    found: Summaries = {}
    for key, metric in METRICS.items():
        for contender in CONTENDERS:
            own = [turn for turn in taken if turn.contender == contender and key in turn.figures]
            ratios = [
                turn.figures[key] / reference[turn.pair].figures[key]
                for turn in own
                if metric.relative and contender != REFERENCE and turn.pair in reference
            ]
            if own:
                value = series([turn.figures[key] for turn in own])
                found.setdefault(key, {})[contender] = Summary(value, series(ratios) if ratios else None)
    return found


def figure(value: float, metric: Metric) -> str:
    """Write a figure with its unit."""
    return f"{value:,.{metric.digits}f} {metric.unit}".rstrip().replace(" /s", "/s")


def times(ratio: float) -> str:
    """Write a ratio with two digits that count."""
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.2g} x"


def markdown_row(cells: Iterable[str]) -> str:
    """Write one row of a table."""
    return "| " + " | ".join(cells) + " |"


def comparison(summaries: Summaries) -> str:
    """Write the table of medians: a row a metric, a column a contender, ratios to raw pyzmq in brackets."""
    columns = [name for name in CONTENDERS if any(name in row for row in summaries.values())]
    lines = [
        markdown_row(["what", *(LABELS[name] for name in columns)]),
        markdown_row(["---"] * (len(columns) + 1)),
    ]
    for key, row in summaries.items():
        cells = []
        for name in columns:
            summary = row.get(name)
            ratio = f" ({times(summary.ratio.median)})" if summary and summary.ratio else ""
            cells.append(figure(summary.value.median, METRICS[key]) + ratio if summary else "-")
        lines.append(markdown_row([METRICS[key].title, *cells]))
    return "\n".join(lines)


def targets(summaries: Summaries) -> str:
    """Write what was to be reached and whether it was, with the spread of the measurements."""
    lines = [
        markdown_row(["what", "who", "median (least - most)", "minimum", "", "goal", ""]),
        markdown_row(["---"] * 7),
    ]
    for name, wanted in TARGETS.items():
        for key, target in wanted.items():
            metric = METRICS[key]
            summary = summaries.get(key, {}).get(name)
            judged = summary.judged(metric) if summary else None
            if judged is None:
                continue
            digits = max(2, metric.digits) if metric.relative else metric.digits
            unit = " x raw" if metric.relative else f" {metric.unit}".rstrip()
            sign = ">=" if metric.more_is_better else "<="
            spread = f"{judged.median:.{digits}f} ({judged.low:.{digits}f} - {judged.high:.{digits}f}){unit}"
            bounds = []
            for bound in target:
                bounds += [f"{sign} {bound:g}" if bound is not None else "-"]
                bounds += [verdict(metric, judged.median, bound) or ""]
            lines.append(markdown_row([metric.title, LABELS[name], spread, *bounds]))
    return "\n".join(lines) if len(lines) > 2 else ""


def spreads(summaries: Summaries) -> str:
    """Write the ratios of the peers to raw pyzmq, least and most with them; nothing without peers."""
    columns = [name for name in PEERS if any(name in row for row in summaries.values())]
    columns = [*OURS, "processpool", *columns] if columns else []
    lines = [
        markdown_row(["ratio to raw: median (least - most)", *(LABELS[name] for name in columns)]),
        markdown_row(["---"] * (len(columns) + 1)),
    ]
    for key, row in summaries.items():
        if METRICS[key].relative and columns:
            found = [row[name].ratio if name in row else None for name in columns]
            lines.append(markdown_row([METRICS[key].title, *(spread(ratio) for ratio in found)]))
    return "\n".join(lines) if len(lines) > 2 else ""


def spread(ratio: Series | None) -> str:
    """Write a ratio's median and, in brackets, its least and most."""
    if ratio is None:
        return "-"
    median, low, high = (times(value) for value in ratio)
    return f"{median} ({low.removesuffix(' x')} - {high.removesuffix(' x')})"


def remarks(turns: Sequence[Turn], left_out: dict[str, str]) -> str:
    """Write what a reader of the figures has to know: failures, left processes, other load."""
    lines = [f"- {LABELS[name]} is left out: {reason}" for name, reason in left_out.items()]
    for turn in turns:
        if turn.error:
            reason = turn.error.splitlines()[0]
            lines.append(f"- {LABELS[turn.contender]}, {turn.row}, turn {turn.repeat + 1}: {reason}")
        if turn.left_behind:
            lines.append(f"- {LABELS[turn.contender]}, {turn.row}: left {turn.left_behind} processes behind")
    foreign = sorted(turn.foreign_cpus for turn in turns if turn.foreign_cpus is not None)
    if foreign:
        lines.append(
            f"- CPUs used by other programs during a turn: median {statistics.median(foreign):.1f}, "
            f"90 % of the turns at most {foreign[int(0.9 * (len(foreign) - 1))]:.1f}, most {foreign[-1]:.1f}."
        )
    return "\n".join(lines)


def per_second(value: float, unit: str) -> str:
    """Write a rate with its unit, "/s" or "MB/s"."""
    return f"{value:,.0f} {unit}".replace(" /s", "/s")


def setting(facts: dict[str, Any]) -> str:
    """Write on what machine, with which versions and when a run was made."""
    machine = facts["machine"]
    packages = dict(machine["packages"])
    for own in facts.get("peers", {}).values():
        packages = {**own, **packages}
    versions = ", ".join(f"{name} {number}" for name, number in packages.items())
    scale = ", shortened (--quick)" if facts.get("quick") else ""
    return (
        f"Measured {facts['taken'][:16].replace('T', ' ')} UTC: "
        f"{machine.get('processor', 'unknown processor')}, "
        f"{machine['cores']} cores, {machine['system']}, {machine['python']}; {versions}; "
        f"{facts['workers']} workers, {facts['repeats']} repeats{scale}."
    )


def document(facts: dict[str, Any], turns: Sequence[Turn]) -> str:
    """Write the whole report."""
    summaries = summarise(turns)
    head = f"{setting(facts)} Medians; in brackets the median ratio to raw pyzmq's turn just before."
    notes = remarks(turns, facts.get("left_out", {}))
    parts = [head, comparison(summaries), spreads(summaries), targets(summaries), notes]
    return "\n\n".join(part for part in parts if part) + "\n"
