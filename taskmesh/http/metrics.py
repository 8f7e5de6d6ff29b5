"""Metrics, and the text format in which Prometheus reads them (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUEUE_HELP = {
    "depth": "Tasks that wait in the hub for a pool.",
    "running": "Tasks that pools have, running or next in line.",
    "pools": "Pools that serve the queue and take work.",
    "slots": "Slots of these pools.",
}
"""The figures of a queue, by the key that they have in JSON."""


class Family(NamedTuple):
    """One metric with all of its samples.

    The name of a counter ends in `_total`; `Times` are samples of a histogram; all others are gauges.

    Attributes:
        name: with the prefix.
        help: one line for people.
        samples: the value, or labels and value of each sample.
    """

    name: str
    help: str
    samples: float | Sequence[tuple[Mapping[str, str], float | Times]]


@dataclass(frozen=True, slots=True)
class Times:
    """The value of a histogram.

    Attributes:
        buckets: bounds in seconds, with the number of times up to each.
        count: of all times.
        total: their sum in seconds.
    """

    buckets: Sequence[tuple[float, int]]
    count: int
    total: float


def exposition(families: Iterable[Family]) -> str:
    """Return families in the text format."""
    lines: list[str] = []
    for name, text, samples in families:
        lines.append(f"# HELP {name} {_line(text)}")
        every = [({}, samples)] if isinstance(samples, int | float) else samples
        is_histogram = any(isinstance(value, Times) for _, value in every)
        kind = "histogram" if is_histogram else "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        for labels, value in every:
            if isinstance(value, Times):
                lines += _histogram(name, labels, value)
            else:
                lines.append(f"{name}{_labels(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: Mapping[str, str], times: Times) -> list[str]:
    bounds = [*((repr(round(bound, 7)), count) for bound, count in times.buckets), ("+Inf", times.count)]
    return [
        *(f"{name}_bucket{_labels({**labels, 'le': bound})} {count}" for bound, count in bounds),
        f"{name}_sum{_labels(labels)} {_number(times.total)}",
        f"{name}_count{_labels(labels)} {times.count}",
    ]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _line(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _line(text).replace('"', r"\"")


def _number(value: float) -> str:
    """Return whole numbers without a fraction, others in full precision."""
    return str(int(value)) if value == int(value) else repr(float(value))
