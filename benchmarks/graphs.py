"""Rows of tasks that depend on others.

A contender that takes futures among arguments measures them: taskmesh, Dask, Ray.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks import machine, workloads
from benchmarks.contender import Work

GRAPH_ROWS = frozenset({"dag", "chain", "blocked"})
DEGREE = 2
"""Upstream tasks of each node of the graph, at most."""
TRIPS = 300
"""Lone round trips with which a chain's links are compared."""


class GraphContender(Protocol):
    """A contender whose tasks may depend on others.

    Attributes:
        nodes: tasks of the graph that keep it busy for some seconds.
    """

    nodes: int

    def submit_call(self, work: Work, *arguments: Any) -> Any:
        """Submit one call; futures among the arguments, or in a list, become their values."""
        ...

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """Return all results in order."""
        ...

    def failures(self, futures: Sequence[Any]) -> int:
        """Wait for all, and count those that have failed."""
        ...

    def round_trip(self, work: Work, argument: Any) -> Any:
        """See Contender."""
        ...


def dag(contender: GraphContender, nodes: int) -> tuple[dict[str, float], machine.Window, dict[str, Any]]:
    """A graph of no-ops: each node depends on two random ones before it, and every value is checked."""
    chance = random.Random(1)
    values, futures = [1], [contender.submit_call(workloads.joined, [])]
    with machine.Window() as window:
        for number in range(1, nodes):
            upstream = [chance.randrange(number) for _ in range(DEGREE)]
            values.append(workloads.joined([values[at] for at in upstream]))
            futures.append(contender.submit_call(workloads.joined, [futures[at] for at in upstream]))
        submitted = time.monotonic()
        results = contender.gather(futures)
    if results != values:
        raise AssertionError("a node of the graph has another value")
    detail = {"nodes": nodes, "seconds_after_submission": time.monotonic() - submitted}
    return {"dag": nodes / window.seconds}, window, detail


def chain(contender: GraphContender, links: int) -> tuple[dict[str, float], machine.Window, dict[str, Any]]:
    """A chain of no-ops: the time of a link over that of a lone round trip, measured just before."""
    times = []
    for index in range(TRIPS):
        begin = time.perf_counter()
        contender.round_trip(workloads.noop, index)
        times.append(time.perf_counter() - begin)
    trip = statistics.median(times)
    with machine.Window() as window:
        future = contender.submit_call(workloads.successor, 0)
        for _ in range(links - 1):
            future = contender.submit_call(workloads.successor, future)
        (result,) = contender.gather([future])
    if result != links:
        raise AssertionError(f"a chain of {links} gave {result!r}")
    per_link = window.seconds / links
    return (
        {"chain": per_link / trip},
        window,
        {"links": links, "link_us": 1e6 * per_link, "trip_us": 1e6 * trip},
    )


def blocked(contender: GraphContender, count: int) -> tuple[dict[str, float], machine.Window, dict[str, Any]]:
    """A task fails with many behind it: the seconds from its submission until all of them have ended."""
    gate = contender.submit_call(workloads.nap, 0.5)
    root = contender.submit_call(workloads.fail, gate)
    behind = [contender.submit_call(workloads.noop, root) for _ in range(count)]
    contender.gather([gate])
    with machine.Window() as window:
        failed = contender.failures(behind)
    if failed != count:
        raise AssertionError(f"{failed} of {count} have failed")
    return {"blocked": window.seconds}, window, {"tasks": count}
