"""The metrics, with their minimums and goals."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["met", "not met"]


class Metric(NamedTuple):
    """One figure of a row. `relative`: the ratio to raw pyzmq's turn just before counts, not the figure."""

    row: str
    title: str
    unit: str
    more_is_better: bool
    relative: bool
    digits: int = 0


METRICS = {
    "noop": Metric("noop", "no-op tasks, each submitted on its own", "/s", True, True),
    "map": Metric("map", "bulk call, 100 tasks a chunk", "/s", True, True),
    "clients": Metric("clients", "no-op tasks of four clients together", "/s", True, False),
    "clients_ratio": Metric("clients", "the same over one client alone", "x", True, False, 2),
    "beside": Metric("clients", "lone round trip beside them, 99th percentile", "ms", False, False, 1),
    "p50": Metric("roundtrip", "round trip, median", "us", False, True),
    "p99": Metric("roundtrip", "round trip, 99th percentile", "us", False, True),
    "skew": Metric("skew", "skewed naps, time over ideal", "x", False, False, 3),
    "distant": Metric("distant", "naps of 10 ms 20 ms away, time over ideal", "x", False, False, 3),
    "lost": Metric("fault", "one executing process killed: tasks lost of 2,000", "", False, False),
    "repeated": Metric("fault", "the same: tasks run again", "", False, False),
    "fault": Metric("fault", "the same: time over ideal", "x", False, False, 3),
    "busy": Metric("busy", "caller computes meanwhile: time over floor", "x", False, False, 3),
    "start": Metric("start", "fresh interpreter to first result", "s", False, False, 3),
    "idle": Metric("start", "idle memory of all processes (PSS)", "MB", False, False),
    "bytes1": Metric("bytes", "echo of bytes, 1 MB", "MB/s", True, True),
    "bytes64": Metric("bytes", "echo of bytes, 64 MB", "MB/s", True, True),
    "numpy1": Metric("numpy", "echo of numpy arrays, 1 MB", "MB/s", True, True),
    "numpy64": Metric("numpy", "echo of numpy arrays, 64 MB", "MB/s", True, True),
    "handed": Metric("infer", "submit of an array of 2 MB, median", "us", False, False),
    "pause": Metric("infer", "the same: pause of a worker between two tasks, median", "us", False, False),
    "infer": Metric("infer", "the same, tasks of 1 ms: rate over a direct loop", "x", True, False, 2),
    "dag": Metric("dag", "graph of no-ops, two upstream each", "nodes/s", True, False),
    "chain": Metric("chain", "chain: a link over a lone round trip", "x", False, False, 2),
    "blocked": Metric("blocked", "a root fails: until all behind it have ended", "s", False, False, 2),
    "used": Metric("rate", "limit of 50/s: starts in 20 s, of 1,000", "%", True, False, 1),
    "most": Metric("rate", "the same: most starts in one second", "", False, False),
}
ROWS = tuple(dict.fromkeys(metric.row for metric in METRICS.values()))


class Target(NamedTuple):
    """The minimum and the goal of a metric; None where there is none."""

    minimum: float | None
    goal: float | None


OVER_TCP = {
    "skew": Target(1.05, 1.03),
    "lost": Target(None, 0),
    "repeated": Target(None, 1),
    "fault": Target(None, 1.05),
    "busy": Target(None, 1.25),
    "bytes1": Target(None, 0.8),
    "bytes64": Target(None, 0.8),
    "numpy1": Target(None, 0.6),
    "numpy64": Target(None, 0.6),
}
"""Targets of every shape whose workers dial a hub over tcp, as ratios to raw pyzmq and to the ideal."""

TARGETS: dict[str, dict[str, Target]] = {
    "taskmesh": {
        "noop": Target(1.0, 2.0),
        "map": Target(0.3, 0.5),
        "p50": Target(1.0, 0.75),
        "skew": Target(1.03, 1.02),
        "lost": Target(0, 0),
        "repeated": Target(1, 1),
        "fault": Target(1.10, 1.05),
        "busy": Target(1.5, 1.25),
        "start": Target(0.3, 0.2),
        "idle": Target(70, 50),
        "bytes1": Target(0.8, 1.0),
        "bytes64": Target(0.8, 1.0),
        "numpy1": Target(0.8, 1.0),
        "numpy64": Target(1.5, 2.5),
        "handed": Target(300, None),
        "pause": Target(250, None),
        "infer": Target(1.4, None),
        "dag": Target(16_667, None),
        "chain": Target(1.5, None),
        "blocked": Target(1.5, None),
        "used": Target(97, None),
        "most": Target(51, None),
    },
    "taskmesh-listening": {
        "noop": Target(1.0, 1.5),
        "map": Target(0.3, 0.5),
        "p50": Target(None, 2.2),
        **OVER_TCP,
    },
    "taskmesh-remote": {
        "noop": Target(0.7, 1.5),
        "map": Target(None, 0.4),
        "p50": Target(2.5, 2.0),
        **OVER_TCP,
        "clients_ratio": Target(0.9, None),
        "beside": Target(5, None),
        "used": Target(97, None),
        "most": Target(51, None),
    },
    "taskmesh-distant": {
        "distant": Target(1.15, 1.05),
    },
}


def verdict(metric: Metric, measured: float, bound: float | None) -> Verdict | None:
    """Return the verdict on a bound; None without a bound."""
    if bound is None:
        return None
    reached = measured >= bound if metric.more_is_better else measured <= bound
    return "met" if reached else "not met"
