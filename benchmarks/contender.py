"""The interface of contenders. The start-up row imports this module, so it imports next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

Work = Callable[[Any], Any]

ALL_ROWS = frozenset({"noop", "map", "roundtrip", "skew", "fault", "busy", "start", "bytes", "numpy"})
FUTURE_ROWS = frozenset({"infer"})
"""Rows of contenders whose `submit` returns a future at once."""
CLIENT_ROWS = frozenset({"clients"})
"""Rows of contenders that several processes can use at once: see clients.SharedContender."""

# Name -> module and class; `make bench-peers` installs the peers (environment.py).
CONTENDERS = {
    "raw": ("benchmarks.raw", "Raw"),
    "raw-uncopied": ("benchmarks.raw", "RawUncopied"),
    "raw-relay": ("benchmarks.relay", "Relay"),
    "raw-listening": ("benchmarks.relay", "ListeningRelay"),
    "taskmesh": ("benchmarks.taskmesh_embedded", "TaskmeshEmbedded"),
    "taskmesh-listening": ("benchmarks.taskmesh_listening", "TaskmeshListening"),
    "taskmesh-remote": ("benchmarks.taskmesh_remote", "TaskmeshRemote"),
    "taskmesh-distant": ("benchmarks.taskmesh_distant", "TaskmeshDistant"),
    "processpool": ("benchmarks.processpool", "ProcessPool"),
    "dask": ("benchmarks.dask_peer", "DaskPeer"),
    "ray": ("benchmarks.ray_peer", "RayPeer"),
    "celery": ("benchmarks.celery_peer", "CeleryPeer"),
    "parsl": ("benchmarks.parsl_peer", "ParslPeer"),
    "taskmesh-file": ("benchmarks.taskmesh_durable", "TaskmeshFile"),
    "taskmesh-redis": ("benchmarks.taskmesh_durable", "TaskmeshRedis"),
    "celery-durable": ("benchmarks.celery_peer", "CeleryDurable"),
    "dramatiq": ("benchmarks.dramatiq_peer", "DramatiqPeer"),
    "huey": ("benchmarks.huey_peer", "HueyPeer"),
    "rq": ("benchmarks.rq_peer", "RqPeer"),
}
REFERENCE = "raw"
PEERS = ("dask", "ray", "celery", "parsl")
DURABLE_PEERS = ("dramatiq", "huey", "rq")
"""Measured beside journals only, in the rows of `make bench-peers` about durable tasks."""
USUAL = ("raw", "taskmesh", "taskmesh-listening", "taskmesh-remote", "taskmesh-distant", "processpool")


class Sizes(NamedTuple):
    """The amounts that keep a contender busy for about a second."""

    noops: int
    mapped: int
    trips: int


class Pending(Protocol):
    """A future, as far as the rows need one."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> Any: ...


class Contender(Protocol):
    """A way to run functions on other processes; a turn opens one, measures one row and closes it.

    A contender needs only the ways of running that its `rows` use.
    """

    sizes: Sizes
    rows: frozenset[str]
    bulk: str  # what run_chunked is in the contender's own words

    @classmethod
    def missing(cls) -> str:
        """Return what is not installed; an empty string when it can run."""
        ...

    def open(self, workers: int) -> None: ...
    def close(self) -> None: ...

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """Submit each on its own, then gather all results in order."""
        ...

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """Run all by the contender's bulk call, `chunk` a message where it can be told."""
        ...

    def round_trip(self, work: Work, argument: Any) -> Any:
        """Run one and wait for it."""
        ...

    def run_until(self, work: Work, arguments: Sequence[Any], timeout_s: float) -> list[Any]:
        """Submit each, give what came back in time, an exception standing for what did not."""
        ...

    def run_beside(self, work: Work, arguments: Sequence[Any], compute: Callable[[], None]) -> list[Any]:
        """Submit each, call `compute` in this thread until all are done, then give the results in order."""
        ...


class Futures:
    """The five ways of running, for every contender whose `submit` returns a future."""

    submit: Callable[[Work, Any], Pending]

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """See Contender."""
        submit = self.submit
        futures = [submit(work, argument) for argument in arguments]
        return [future.result() for future in futures]

    def round_trip(self, work: Work, argument: Any) -> Any:
        """See Contender."""
        return self.submit(work, argument).result()

    def run_until(self, work: Work, arguments: Sequence[Any], timeout_s: float) -> list[Any]:
        """See Contender."""
        deadline = time.monotonic() + timeout_s
        futures: list[Pending | Exception] = []
        for argument in arguments:
            try:
                futures.append(self.submit(work, argument))
            except Exception as error:  # noqa: BLE001 (a peer that broke refuses with an error of its own)
                futures.append(error)
        return [outcome(future, deadline) for future in futures]

    def run_beside(self, work: Work, arguments: Sequence[Any], compute: Callable[[], None]) -> list[Any]:
        """See Contender."""
        submit = self.submit
        futures = [submit(work, argument) for argument in arguments]
        at = 0
        while at < len(futures):
            compute()
            while at < len(futures) and futures[at].done():
                at += 1
        return [future.result() for future in futures]


def outcome(future: Pending | Exception, deadline: float) -> Any:
    """Wait until the deadline of the monotonic clock; every error is the outcome."""
    if isinstance(future, Exception):
        return future
    try:
        return future.result(timeout=max(0.0, deadline - time.monotonic()))
    except Exception as error:  # noqa: BLE001 (whatever the peer raises is what the row counts)
        return error


def load(name: str) -> type[Contender]:
    """Import a contender's adapter; the peer itself is imported when it is opened.

    Raises:
        SystemExit: The name is unknown; the message lists the known ones.
    """
    if name not in CONTENDERS:
        raise SystemExit(f"no contender is called {name!r}: choose from {', '.join(CONTENDERS)}")
    module, attribute = CONTENDERS[name]
    found: type[Contender] = getattr(import_module(module), attribute)
    return found
