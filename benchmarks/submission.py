"""A client of the benchmark of journals: it submits when it is told to, and tells how long that took.

`python -m benchmarks.submission ADDRESS ROW COUNT`. It prints "ready", waits for a line on standard input,
and prints its times of the monotonic clock, which processes compare, as JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator

from benchmarks import machine, workloads
from benchmarks.rows import check
from taskmesh import Mesh

PAYLOAD = 200
"""Bytes of an argument."""


def payloads(count: int) -> Iterator[bytes]:
    """Yield arguments that differ from those near them, or a store could squeeze them."""
    some = [random.randbytes(PAYLOAD) for _ in range(min(count, 10_000))]
    return itertools.islice(itertools.cycle(some), count)


def accepts(mesh: Mesh, arguments: Iterator[bytes]) -> None:
    """Single submissions in a loop, which the client batches as usual, until all are accepted."""
    submit = mesh.submit
    futures = [submit(workloads.noop, payload) for payload in arguments]
    mesh.flush()
    if not all(future.accepted for future in futures):
        raise AssertionError("a task is not accepted")


def lone(mesh: Mesh, arguments: Iterator[bytes]) -> list[float]:
    """Submissions of which each waits until it is accepted."""
    times = []
    for payload in arguments:
        begin = time.perf_counter()
        future = mesh.submit(workloads.noop, payload)
        mesh.flush()
        times.append(time.perf_counter() - begin)
        if not future.accepted:
            raise AssertionError("the task is not accepted")
    return times


def results(mesh: Mesh, count: int) -> None:
    """No-ops, of which all results are taken."""
    futures = [mesh.submit(workloads.noop, number) for number in range(count)]
    check([future.result() for future in futures], range(count))


def main() -> None:
    address, row, amount = sys.argv[1:]
    machine.die_with_parent()
    mesh = Mesh(address)
    mesh.__enter__()
    count = int(amount)
    if row == "results":  # the slots are there, and know the function
        results(mesh, 2_000)
    mesh.status(timeout=30)
    arguments = payloads(count)
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[float] = []
    begin = time.monotonic()
    if row == "results":
        results(mesh, count)
    elif row == "lone":
        times = lone(mesh, arguments)
    else:
        accepts(mesh, arguments)
    end = time.monotonic()
    print(json.dumps({"begin": begin, "end": end, "times": times}), flush=True)
    sys.stdin.readline()  # until it is killed: the tasks of a client that leaves are not to be touched


if __name__ == "__main__":
    main()
