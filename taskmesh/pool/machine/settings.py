"""The pool machine's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of a pool machine.

    Times are in seconds. Those that a Welcome tells are what the pool goes by until then.

    Attributes:
        pool: The pool's id, unique in the mesh.
        instance: Number of this start of its process, never used before.
        slots: Number of slots that take work.
        shared: Number of processes that they share, as threads; 0 if each has one to itself.
        queues: Queues that it serves.
        tags: Tags that it has; it gets tasks that ask for no others.
        python: Version of Python, for the hub to compare.
        cloudpickle: Version of cloudpickle, likewise.
        host: Name of its machine, for people.
        pid: Id of its process, for people.
        hello: Time between repeated Hellos.
        beat: Time between beats; a Welcome tells it.
        lease: Silence after which its work goes to others; a Welcome tells it.
        patience_beats: Unanswered beats after which the hub counts as gone.
        restart: Time before a slot that could not be started is tried again, then twice as long each time.
        max_restart: The same at most.
        grace: Time that running tasks have when the pool drains.
        max_tasks: Number of tasks after which a slot's process is replaced; 0 for never.
        stop_first: A slot stops before its replacement starts, since it holds what that needs.
    """

    pool: str
    instance: int
    slots: int
    queues: tuple[str, ...] = ("default",)
    tags: tuple[str, ...] = ()
    shared: int = 0
    python: str = ""
    cloudpickle: str = ""
    host: str = ""
    pid: int = 0
    hello: float = 1.0
    beat: float = 1.0
    lease: float = 10.0
    patience_beats: float = 3.0
    restart: float = 0.1
    max_restart: float = 5.0
    grace: float = 30.0
    max_tasks: int = 0
    stop_first: bool = False

    def process_of(self, slot: int) -> int | None:
        """Return the number of the process that a slot shares; None if it has one to itself, as below 0."""
        return slot % self.shared if self.shared and slot >= 0 else None

    def restart_delay(self, failures: int) -> float:
        """Return the seconds before a slot is started again after so many failures in a row."""
        return min(self.max_restart, self.restart * 2.0 ** min(failures - 1, 10))
