"""The pool machine's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Times in seconds.

    Attributes:
        pool: the pool's id, unique in the mesh. instance: new for every start of its process.
        hubs: the addresses of those that it serves, where there are several.
        hello: between repeated Hellos. patience_beats: unanswered beats after which the hub counts as gone.
        grace: how long running tasks have when the pool drains.
        outlives: the hub, should that die: another may come after it.
    """

    pool: str
    instance: int
    slots: int
    queues: tuple[str, ...] = ("default",)
    tags: tuple[str, ...] = ()
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
    outlives: bool = True
    hubs: tuple[str, ...] = ()
