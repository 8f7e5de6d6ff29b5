"""What has to be equal for values to travel between processes, and what to do when it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

WARN, REFUSE = "warn", "refuse"


class Stated(Protocol):
    """What a Hello states."""

    python: str
    pickle: int
    cloudpickle: str


@dataclass(frozen=True, slots=True)
class Versions:
    """Of this process. An empty text, or 0, is not known and not compared.

    Attributes:
        python: as 3.11.7; compared as far as 3.11: functions by value carry bytecode.
        pickle: the protocol that payloads are written in.
        cloudpickle: of the same release only, says its own documentation.
    """

    python: str = ""
    pickle: int = 0
    cloudpickle: str = ""


def difference(ours: Versions, theirs: Stated) -> str:
    """What differs, in words, with the cure; empty when nothing does."""
    found = [
        f"{name} {other} where the hub has {mine}"
        for name, mine, other in (
            ("Python", minor(ours.python), minor(theirs.python)),
            ("pickle protocol", str(ours.pickle or ""), str(theirs.pickle or "")),
            ("cloudpickle", ours.cloudpickle, theirs.cloudpickle),
        )
        if mine and other and mine != other
    ]
    if not found:
        return ""
    return f"it has {', '.join(found)}: run the same versions everywhere (hub.versions = {WARN} lets it in)"


def minor(python: str) -> str:
    """3.11 for 3.11.7."""
    return ".".join(python.split(".")[:2])
