"""The place of a running task: what it needs to submit tasks of its own (docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Children(Protocol):
    """The tasks that a task has submitted."""

    def wait(self) -> None:
        """Waits until all of them have ended."""
        ...

    def cancel(self) -> None:
        """Gives up those that have not ended."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What a running task gets when it wants to submit tasks of its own.

    Attributes:
        addresses: the hub's gateways, in order of preference. keys: the directory of keys, empty for none.
        granted: whether another slot has this one's place now; if not, the task has to run them itself.
        slot: the pool's name and this process's id.
        queue, priority: the task's own.
        adopt: told of the children, before the first of them is submitted.
    """

    addresses: tuple[str, ...]
    keys: str
    granted: bool
    slot: str
    queue: str
    priority: int
    adopt: Callable[[Children], None]


_offers: list[Callable[[], Place | None]] = []


def offer(ask: Callable[[], Place | None] | None) -> None:
    """Says how a task that this process runs gets a place; a slot calls it once. None takes it back.

    `ask` returns None while no task runs.
    """
    _offers[:] = [] if ask is None else [ask]


def in_slot() -> bool:
    """Whether this process is a slot."""
    return bool(_offers)


def place() -> Place | None:
    """The place of the task that this slot runs, for tasks of its own; None where no task runs.

    Raises:
        TaskMeshError: there is no way to the hub; the message says why.
    """
    return _offers[0]() if _offers else None
