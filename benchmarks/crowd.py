"""What many peers and many tasks cost one hub: idle clients and pools, and a long queue.

`python -m benchmarks.crowd`. Each row has a hub of its own; its peers are light (`benchmarks.light_peers`).
CPU is that of the hub's process, all threads, over ten seconds in which nobody does anything but what shows
that they are there.

    clients     1,000 and 4,000 idle ones: CPU, and memory beside that of the hub before them
    pools       999 idle ones: seconds until all have joined, CPU, memory; no-ops through one more with two
                slots, and the same without them
    executors   4,000 clients, the Python workers of 1,000 Spark executors: seconds until all have joined, CPU
                while they are idle and while each waits for a pool, and 10,000 partitions of two pieces that
                take no time, each client one at a time, through two pools of 64 slots
    queue       3,000,000 waiting tasks of 200 bytes, of two clients: how fast they are accepted, memory for
                each, what a status takes meanwhile, how fast two pools of 64 slots take them
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.journal import MEMORY, TIERS, Bench, environment, opened, resident
from benchmarks.taskmesh_remote import ROOT
from taskmesh import Mesh

SUMMARY = "Measure what many peers and tasks cost one hub. Nothing is asserted about time."
SETTLE_S = 3.0
"""Seconds for what follows a join: first beats, and the ends of what the kernel and libzmq do."""
STATUS_S = 60.0


class Amounts(NamedTuple):
    """The amounts of one run."""

    clients: tuple[int, ...] = (1_000, 4_000)
    pools: int = 999
    workers: int = 4_000
    partitions: int = 10_000
    noops: int = 200_000
    queue: int = 3_000_000
    watched: float = 10.0


QUICK = Amounts((20,), 10, 20, 50, 2_000, 5_000, 1.0)
Figures = dict[str, float]


class Peers:
    """A process with light peers."""

    def __init__(self, bench: Bench, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.light_peers", bench.address, *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe)

    def told(self, what: str) -> float:
        """Wait for what it tells next; return the seconds that it took.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line or (found := json.loads(line))["what"] != what:
            raise RuntimeError(f"light peers have not {what}: see their messages above")
        return float(found["s"])

    def go(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(30)


@contextlib.contextmanager
def started(bench: Bench, *arguments: str) -> Iterator[Peers]:
    """Light peers, until they are not needed."""
    peers = Peers(bench, *arguments)
    try:
        yield peers
    finally:
        peers.end()


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a program; the kernel's ticks are too long for this."""
    tasks = (machine.PROC / str(pid) / "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def idle_share(pid: int, seconds: float) -> float:
    """Return the share of a core that a process takes for some seconds."""
    time.sleep(SETTLE_S)
    before, begin = processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (processor_seconds(pid) - before) / (time.monotonic() - begin)


def clients(amounts: Amounts) -> Iterator[tuple[str, Figures]]:
    """Idle clients."""
    for count in amounts.clients:
        with opened(TIERS[MEMORY]) as bench:
            empty, alone = resident(bench.hub.pid), idle_share(bench.hub.pid, amounts.watched)
            with started(bench, "clients", str(count)) as peers:
                joined = peers.told("joined")
                share = idle_share(bench.hub.pid, amounts.watched)
                memory = resident(bench.hub.pid) - empty
        yield (
            f"{count:,} idle clients",
            {
                "joined, s": joined,
                "share of a core": share,
                "share for each": (share - alone) / count,
                "bytes for each": memory / count,
            },
        )


def noops(bench: Bench, count: int) -> float:
    """No-ops a second through the pool that has slots."""
    (told,) = bench.submit("results", 1, count)
    return float(count / (told["end"] - told["begin"]))


def pools(amounts: Amounts) -> Iterator[tuple[str, Figures]]:
    """Idle pools, and one that works."""
    count = amounts.pools
    with opened(TIERS[MEMORY], pool=True) as bench:
        empty, alone = resident(bench.hub.pid), idle_share(bench.hub.pid, amounts.watched)
        without = noops(bench, amounts.noops)
        with started(bench, "pools", str(count)) as peers:
            joined = peers.told("joined")
            share = idle_share(bench.hub.pid, amounts.watched)
            memory = resident(bench.hub.pid) - empty
            there = noops(bench, amounts.noops)
    yield (
        f"{count:,} idle pools",
        {
            "joined, s": joined,
            "share of a core": share,
            "share for each": (share - alone) / count,
            "bytes for each": memory / count,
            "no-ops without them, /s": without,
            "no-ops, /s": there,
        },
    )


def executors(amounts: Amounts) -> Iterator[tuple[str, Figures]]:
    """Spark's Python workers: idle, waiting for a pool, and at work."""
    count, partitions = amounts.workers, amounts.partitions
    with (
        opened(TIERS[MEMORY]) as bench,
        started(bench, "executors", str(count), str(partitions)) as workers,
        contextlib.ExitStack() as pools,
    ):
        figures = {"joined, s": workers.told("joined")}
        figures["idle, share of a core"] = idle_share(bench.hub.pid, amounts.watched)
        workers.go()
        workers.told("accepted")
        figures["waiting, share of a core"] = idle_share(bench.hub.pid, amounts.watched)
        before = processor_seconds(bench.hub.pid)
        workers.go()
        for _ in range(2):
            pools.enter_context(started(bench, "takers", "1"))
        ended = workers.told("ended")
        used = processor_seconds(bench.hub.pid) - before
    rates = {"partitions/s": partitions / ended, "CPU for each, ms": 1000 * used / partitions}
    yield f"{count:,} Python workers", figures | rates


def queue(amounts: Amounts) -> Iterator[tuple[str, Figures]]:
    """A long queue, and its end."""
    count = amounts.queue
    with opened(TIERS[MEMORY]) as bench, started(bench, "clients", "2", str(count)) as client:
        client.told("joined")
        empty = resident(bench.hub.pid)
        client.go()
        accepted = client.told("accepted")
        each = (resident(bench.hub.pid) - empty) / count
        with Mesh(bench.address) as mesh:
            begin = time.monotonic()
            queued = mesh.status(timeout=STATUS_S)["tasks"]["queued"]
            status = time.monotonic() - begin
        if queued != count:
            raise RuntimeError(f"{queued:,} of {count:,} tasks are queued")
        client.go()
        with started(bench, "takers", "1") as one, started(bench, "takers", "1") as other:
            for taker in (one, other):
                taker.told("joined")
            ended = client.told("ended")
    figures = {"accepted, /s": count / accepted, "bytes for each": each}
    yield f"{count:,} queued tasks", {**figures, "status, ms": 1000 * status, "drained, /s": count / ended}


ROWS = {"clients": clients, "pools": pools, "executors": executors, "queue": queue}


def main() -> None:
    """Measure the rows that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=SUMMARY)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="small amounts, to see that it runs")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    for name in arguments.rows.split(","):
        for row, figures in ROWS[name](QUICK if arguments.quick else Amounts()):
            found.append({"row": row, "figures": figures})
            told = ", ".join(f"{what} {value:,.5g}" for what, value in figures.items())
            print(f"{row}: {told}", flush=True)
    if arguments.out is not None:
        facts = {"measured": machine.now(), "machine": machine.describe(), "rows": found}
        arguments.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
