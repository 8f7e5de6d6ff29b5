"""The cost of the typed sockets: 100 B messages over tcp between two processes, beside raw pyzmq.

`python -m benchmarks.sockets`. Raw and typed sockets take turns burst by burst between the same two
processes, each burst over a new connection; a ratio compares neighbours. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq

from benchmarks import machine
from taskmesh.sockets import Context, Gather, Pull, Push, Scatter

BODY = b"x" * 100
GOALS = {"push-pull": 0.9, "push-pull drained": 0.9, "scatter-gather": 0.5, "scatter-gather drained": 0.5}


def raw_sender(context: Context) -> Any:
    return context.raw.socket(zmq.PUSH)


def raw_receiver(context: Context) -> Any:
    return context.raw.socket(zmq.PULL)


def one_by_one(socket: Any, count: int) -> None:
    receive = socket.recv
    for _ in range(count):
        receive()


def raw_drained(socket: Any, count: int) -> None:
    """The fastest way to read a raw socket: poll, then read until nothing is left."""
    receive, again = socket.recv, zmq.Again
    while count:
        socket.poll()
        try:
            while True:
                receive(zmq.NOBLOCK)
                count -= 1
        except again:
            pass


def typed_drained(socket: Any, count: int) -> None:
    while count:
        socket.raw.poll()
        count -= len(socket.recv_many())


Make = Callable[[Context], Any]
KINDS: dict[str, tuple[Make, Make, Callable[[Any, int], None]]] = {
    "raw": (raw_sender, raw_receiver, one_by_one),
    "push-pull": (Push, Pull, one_by_one),
    "scatter-gather": (Scatter, Gather, one_by_one),
    "raw drained": (raw_sender, raw_receiver, raw_drained),
    "push-pull drained": (Push, Pull, typed_drained),
    "scatter-gather drained": (Scatter, Gather, typed_drained),
}


def receive_bursts(orders: Connection, count: int) -> None:
    """The receiving process: one burst for each order, answered with messages per second."""
    machine.die_with_parent()
    with Context() as context:
        while (kind := orders.recv()) is not None:
            _, make, receive = KINDS[kind]
            socket = make(context)
            orders.send(bound(socket))
            one_by_one(socket, 1)
            start, cpu = time.perf_counter(), time.process_time()
            receive(socket, count - 1)
            orders.send(((count - 1) / (time.perf_counter() - start), time.process_time() - cpu))
            socket.close()


def bound(socket: Any) -> str:
    """Bind and tell where; typed sockets return the endpoint, pyzmq's a context manager."""
    socket.bind("tcp://127.0.0.1:*")
    return str(getattr(socket, "raw", socket).get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())


def burst(context: Context, orders: Connection, kind: str, count: int) -> tuple[float, float]:
    """Send one burst; give the receiver's rate, and the CPU time of both processes for a message in us."""
    orders.send(kind)
    socket = KINDS[kind][0](context)
    socket.connect(orders.recv())
    send, cpu = socket.send, time.process_time()
    for _ in range(count):
        send(BODY)
    rate, theirs = orders.recv()
    cpu = time.process_time() - cpu + theirs
    socket.close()
    return rate, cpu / count * 1e6


def measure(repeats: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """Take the turns."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=receive_bursts, args=(theirs, count))
    receiver.start()
    rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with Context() as context:
        for kind in KINDS:
            burst(context, ours, kind, count)  # the first of each only warms up
        for _ in range(repeats):
            for kind in KINDS:
                rates[kind].append(burst(context, ours, kind, count))
    ours.send(None)
    receiver.join()
    return rates


def report(rates: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Print the rows and give them for the JSON file."""
    rows = []
    print(f"{'row':24}{'messages/s':>12}{'ratio to raw':>14}{'spread':>14}{'CPU us':>8}{'ratio':>7}  goal")
    for kind, found in rates.items():
        reference = rates["raw drained" if kind.endswith("drained") else "raw"]
        ratios = [mine[0] / its[0] for mine, its in zip(found, reference, strict=True)]
        row = {
            "row": kind,
            "rate": statistics.median(rate for rate, _ in found),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "cpu_us": statistics.median(cpu for _, cpu in found),
            "cpu_ratio": statistics.median(
                its[1] / mine[1] for mine, its in zip(found, reference, strict=True)
            ),
        }
        rows.append(row)
        goal = f">= {GOALS[kind]}" if kind in GOALS else ""
        spread = f"{row['lowest']:.2f} .. {row['highest']:.2f}"
        cpu = f"{row['cpu_us']:8.2f}{row['cpu_ratio']:7.2f}"
        print(f"{kind:24}{row['rate']:12,.0f}{row['ratio']:14.2f}{spread:>14}{cpu}  {goal}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sockets", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--count", type=int, default=100_000, help="messages in a burst")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    rows = report(measure(options.repeats, options.count))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
