"""The cost of keys: a hub and a pool over tcp with CURVE and signatures, beside another pair without.

`python -m benchmarks.keys`. Both pairs are there all the time and take turns; a ratio compares neighbours.
Rows: no-op tasks, each submitted on its own; echo of 1 MB of bytes; clients that connect, say hello and are
welcome, a hundred at a time. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine, workloads
from benchmarks.contender import Work
from benchmarks.report import per_second
from benchmarks.rows import MB, check
from benchmarks.taskmesh_remote import TaskmeshRemote
from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode, to_client
from taskmesh.security.key_files import keys_in
from taskmesh.security.keys import KeyFolder, credentials_of
from taskmesh.sockets import Context, Dealer, SocketOptions

PLAIN, KEYED = "without keys", "with keys"
AT_A_TIME = 100
WELCOME_S = 30.0


class Amounts(NamedTuple):
    """The amounts that make one turn of each row."""

    noops: int = 50_000
    echoes: int = 60
    connections: int = 400


def keyed(folder: Path) -> TaskmeshRemote:
    """A pair with keys, made in the folder as docs/how-to/keys.md says."""
    hub, pool, mine = (KeyFolder(folder / name) for name in ("hub", "pool", "mine"))
    hub.new(["hub"])
    pool.new(["worker"], hub.path / "hub.public")
    mine.new(["client"], hub.path / "hub.public", pool.path / "mesh.secret")
    hub.authorize("worker", "pool", keys_in(pool.path / "worker.public"))
    hub.authorize("client", "mine", keys_in(mine.path / "client.public"))
    found = TaskmeshRemote()
    found.hub_options = ("--keys", str(hub.path))
    found.worker_options = ("--keys", str(pool.path))
    found.settings = {"keys": str(mine.path)}
    return found


def noop(pair: TaskmeshRemote, amounts: Amounts) -> float:
    """Tasks a second."""
    return rate(pair, workloads.noop, range(amounts.noops))


def echo(pair: TaskmeshRemote, amounts: Amounts) -> float:
    """Megabytes a second."""
    return rate(pair, workloads.echo, [random.randbytes(MB) for _ in range(amounts.echoes)])


def rate(pair: TaskmeshRemote, work: Work, arguments: Sequence[Any]) -> float:
    """Tasks a second that give back their argument."""
    start = time.perf_counter()
    results = pair.run_each(work, arguments)
    seconds = time.perf_counter() - start
    check(results, arguments)
    return len(arguments) / seconds


def connect(pair: TaskmeshRemote, amounts: Amounts) -> float:
    """Connections a second, each with its session at the hub."""
    credentials = credentials_of(str(pair.settings.get("keys", "")), "client")
    way = Target(Endpoints.of(pair.address), credentials.hub_keys[0] if credentials else None)
    options = way.options(SocketOptions(linger_ms=1000), credentials.pair if credentials else None)
    seconds = 0.0
    for first in range(0, amounts.connections, AT_A_TIME):
        count = min(AT_A_TIME, amounts.connections - first)
        with Context(max_sockets=count + 16) as context:  # its end waits until the goodbyes are sent
            sockets = [Dealer(context, options) for _ in range(count)]
            start = time.perf_counter()
            for number, socket in enumerate(sockets):
                socket.connect(way.hub.gateway)
                socket.send_parts(encode(m.ClientHello(random.getrandbits(60) + number, 0)))
            for socket in sockets:
                answer = to_client.decode(socket.recv_parts(timeout=WELCOME_S))
                assert isinstance(answer, m.ClientWelcome), answer
            seconds += time.perf_counter() - start
            for socket in sockets:
                socket.send_parts(encode(m.ClientBye()))
                socket.close()
    return amounts.connections / seconds


ROWS: dict[str, tuple[str, Callable[[TaskmeshRemote, Amounts], float]]] = {
    "no-op": ("/s", noop),
    "echo of bytes, 1 MB": ("MB/s", echo),
    "connections": ("/s", connect),
}
Turns = dict[str, dict[str, list[float]]]


def measure(repeats: int, amounts: Amounts) -> tuple[Turns, list[float]]:
    """Take the turns; give the figures by row and pair, and how many CPUs others used meanwhile."""
    found: Turns = {row: {PLAIN: [], KEYED: []} for row in ROWS}
    foreign: list[float] = []
    with tempfile.TemporaryDirectory(prefix="benchmark") as folder, contextlib.ExitStack() as opened:
        pairs = {PLAIN: TaskmeshRemote(), KEYED: keyed(Path(folder))}
        for pair in pairs.values():
            pair.open(2)
            opened.callback(pair.close)
        for row, (_, take) in ROWS.items():
            for pair in pairs.values():
                take(pair, amounts)  # the first of each only warms up
            for _ in range(repeats):
                for name, pair in pairs.items():
                    with machine.Window() as window:
                        found[row][name].append(take(pair, amounts))
                    foreign += [] if window.foreign_cpus is None else [window.foreign_cpus]
    return found, foreign


def report(found: Turns) -> list[dict[str, Any]]:
    """Print the rows and give them for the JSON file."""
    rows = []
    print(f"{'row':22}{'without keys':>16}{'with keys':>16}{'ratio':>8}{'spread':>14}")
    for row, figures in found.items():
        unit = ROWS[row][0]
        ratios = [mine / its for mine, its in zip(figures[KEYED], figures[PLAIN], strict=True)]
        made = {
            "row": row,
            "unit": unit,
            "without": statistics.median(figures[PLAIN]),
            "with": statistics.median(figures[KEYED]),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "turns": figures,
        }
        rows.append(made)
        spread = f"{made['lowest']:.2f} .. {made['highest']:.2f}"
        shown = [per_second(made[which], unit) for which in ("without", "with")]
        print(f"{row:22}{shown[0]:>16}{shown[1]:>16}{made['ratio']:8.2f}{spread:>14}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keys", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the work: to see that all runs")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    amounts = Amounts(1_000, 4, 20) if options.quick else Amounts()
    found, foreign = measure(options.repeats, amounts)
    rows = report(found)
    if foreign:
        print(
            f"CPUs used by other programs: median {statistics.median(foreign):.1f}, most {max(foreign):.1f}"
        )
    if options.out:
        facts = {"taken": machine.now(), "workers": 2, "repeats": options.repeats, "quick": options.quick}
        facts |= {"machine": machine.describe(), "amounts": amounts._asdict()}
        options.out.write_text(json.dumps({**facts, "foreign_cpus": foreign, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
