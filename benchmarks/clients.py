"""The row of several clients at once, and the program of such a client.

`python -m benchmarks.clients NAME ADDRESS COUNT` joins what a contender has opened. It prints "ready", and
waits for a line on standard input. Then it runs so many no-ops; when COUNT is 0, one at a time until standard
input ends. It prints its times of the monotonic clock, which processes compare, as JSON.
"""

from __future__ import annotations

import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine, workloads
from benchmarks.contender import CONTENDERS, Contender, load

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = 4
WARM = 100
PAUSE_S = 0.010
"""Between two lone tasks."""


class SharedContender(Contender, Protocol):
    """A contender that clients in other processes can use, too.

    Attributes:
        address: what they join, once it is open.
    """

    address: str

    def join(self, address: str) -> None:
        """Become a client of what another process has opened; `close` then leaves that open."""
        ...


def start_client(module: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a client's program, which says when it is ready."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def await_ready(clients: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all are ready.

    Raises:
        RuntimeError: one has ended instead.
    """
    for client in clients:
        assert client.stdout is not None
        if b"ready\n" not in client.stdout:  # reads on: some peers greet on standard output
            raise RuntimeError("a client has ended: see its messages above")


def let_begin(clients: Sequence[subprocess.Popen[bytes]]) -> None:
    """Have clients that are ready begin at the same time."""
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(b"\n")
        client.stdin.flush()


def times_of(clients: Sequence[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    """Wait for what each tells."""
    return [json.loads(client.stdout.readline()) for client in clients if client.stdout is not None]


def clients(
    contender: SharedContender, count: int
) -> tuple[dict[str, float], machine.Window, dict[str, Any]]:
    """So many no-ops of one client alone, then of four together, beside a fifth with one task at a time."""
    alone, _, _ = together(contender, 1, count)
    rate, trips, window = together(contender, CLIENTS, count)
    figures = {"clients": rate, "clients_ratio": rate / alone}
    if trips:
        figures["beside"] = 1000 * trips[math.ceil(0.99 * len(trips)) - 1]
    return figures, window, {"tasks": count, "alone": alone, "trips": len(trips)}


def together(
    contender: SharedContender, number: int, count: int
) -> tuple[float, list[float], machine.Window]:
    """Run a share of the no-ops in each of so many clients, several of them beside a client with lone tasks.

    Returns: the rate of all; the lone round trips that began meanwhile, the quickest first; the window.
    """
    place = (type(contender).__module__, type(contender).__name__)
    name = next(name for name, its in CONTENDERS.items() if its == place)
    module = "benchmarks.clients"
    many = [start_client(module, name, contender.address, str(count // number)) for _ in range(number)]
    lone = [start_client(module, name, contender.address, "0")] if number > 1 else []
    await_ready(many + lone)
    with machine.Window() as window:
        let_begin(lone + many)
        times = times_of(many)
    first, last = min(one["begin"] for one in times), max(one["end"] for one in times)
    # A client's standard input ends: it leaves.
    said = [json.loads(client.communicate()[0].splitlines()[0]) for client in lone]
    for client in many:
        client.communicate()
    trips = sorted(seconds for one in said for when, seconds in one["trips"] if first <= when <= last)
    return count // number * number / (last - first), trips, window


def run(contender: SharedContender, count: int) -> None:
    """No-ops, each submitted on its own with a future, all results gathered.

    Raises:
        AssertionError: A result differs.
    """
    if contender.run_each(workloads.noop, range(count)) != list(range(count)):
        raise AssertionError("a no-op gave something else than its argument")


def lone_trips(contender: SharedContender) -> list[tuple[float, float]]:
    """Run one no-op after the other until standard input ends: when each began, and the seconds it took."""
    trips = []
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        when = time.monotonic()
        contender.round_trip(workloads.noop, len(trips))
        trips.append((when, time.monotonic() - when))
    return trips


def main() -> None:
    name, address, count = sys.argv[1:]
    machine.die_with_parent()
    contender: Any = load(name)()
    contender.join(address)
    run(contender, WARM)  # the workers are there, and know the function
    print("ready", flush=True)
    sys.stdin.readline()
    trips: list[tuple[float, float]] = []
    begin = time.monotonic()
    if int(count):
        run(contender, int(count))
    else:
        trips = lone_trips(contender)
    print(json.dumps({"begin": begin, "end": time.monotonic(), "trips": trips}), flush=True)
    sys.stdin.read()
    contender.close()


if __name__ == "__main__":
    main()
