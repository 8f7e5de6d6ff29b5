"""Metrics, and the text format in which Prometheus reads them (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """One metric with all of its samples; the name of a counter ends in `_total`, all others are gauges.

    Attributes:
        name: with the prefix.
        help: one line for people.
        samples: the value, or labels and value of each sample.
    """

    name: str
    help: str
    samples: float | Sequence[tuple[Mapping[str, str], float]]


def exposition(families: Iterable[Family]) -> str:
    """Return families in the text format."""
    lines: list[str] = []
    for name, text, samples in families:
        lines.append(f"# HELP {name} {_line(text)}")
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        every = [({}, samples)] if isinstance(samples, int | float) else samples
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in every]
    return "\n".join(lines) + "\n"


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
