"""Metrics, and the text format in which Prometheus reads them (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all of its samples.

    Attributes:
        name: with the prefix, and `_total` for a counter.
        kind: "gauge" or "counter".
        help: one line for people.
        samples: labels and value of each sample.
    """

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> Family:
        """Add a sample; return the family."""
        self.samples.append((labels, value))
        return self


def exposition(families: Iterable[Family]) -> str:
    """Return families in the text format."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_line(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _line(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _line(text).replace('"', r"\"")


def _number(value: float) -> str:
    """Return whole numbers without a fraction, others in full precision."""
    return str(int(value)) if value == int(value) else repr(float(value))
