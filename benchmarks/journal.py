"""The cost of a journal: hubs with one in a file and in Redis, beside a hub without, turn by turn.

`python -m benchmarks.journal`. Every turn has a hub, a journal and for Redis a server of its own. Each tier
has its turn before the first one has its next, and a ratio compares with memory mode in the same round.

    accepts     single submissions of 200 bytes, batched by the client, until all are accepted: of one client
    accepts of 8    the same of eight clients together
    lone        one submission until it is accepted, median
    results     no-ops through a pool of two slots, their results taken
    waiting     tasks in the journal: a new hub from its exec until it serves, its memory, the journal's size
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.clients import await_ready, let_begin, start_client, times_of
from benchmarks.ports import free_ports
from benchmarks.redis_server import SYNC, RedisServer
from benchmarks.redis_server import program as redis_program
from benchmarks.submission import PAYLOAD
from benchmarks.taskmesh_remote import COMMAND, ROOT, end_all
from taskmesh import Mesh

SUMMARY = "Measure hubs with a journal beside one without, turn by turn. Nothing is asserted about time."
MEMORY = "memory"
READY, READY_S = b" hub ready: ", 120.0


class Tier(NamedTuple):
    """A kind of journal: in what, and whether a task is accepted when it is on disk."""

    store: str
    strict: bool = False


TIERS = {
    MEMORY: Tier(""),
    "file": Tier("file"),
    "file, strict": Tier("file", True),
    "Redis": Tier("redis"),
    "Redis, strict": Tier("redis", True),
}


class Amounts(NamedTuple):
    """The amounts that make one turn of each row."""

    accepts: int = 400_000
    lone: int = 1_000
    results: int = 200_000
    waiting: int = 1_000_000


class Bench:
    """A hub with a journal of one tier, and the programs around it, in a folder.

    Attributes:
        redis: the server, if the journal is in one.
        hub: the hub's program.
    """

    def __init__(self, tier: Tier, folder: Path) -> None:
        self.folder = folder
        self.redis: RedisServer | None = None
        self.address = f"tcp://127.0.0.1:{free_ports(3)}"
        self._options: list[str] = []
        if tier.store == "redis":
            self.redis = RedisServer(folder, *SYNC["always" if tier.strict else "everysec"])
            self._options = ["--journal", f"{self.redis.url}/0"]
        elif tier.store:
            self._options = ["--journal", str(folder / "journal")]
        self._options += ["--strict"] if tier.strict else []
        self._started = 0
        self._programs: list[subprocess.Popen[bytes]] = []
        self._clients: list[subprocess.Popen[bytes]] = []

    @property
    def hub(self) -> subprocess.Popen[bytes]:
        """The hub's program."""
        return self._programs[0]

    def open(self) -> float:
        """Start Redis if it is not there, and the hub; return the seconds from exec until the hub serves."""
        if self.redis is not None and not self.redis.is_open:
            self.redis.open()
        begin = time.monotonic()
        self._start(*COMMAND, "hub", "--bind", self.address, *self._options)
        seconds = self._wait_for_hub(begin)
        with Mesh(self.address) as mesh:
            mesh.status(timeout=READY_S)
        return seconds

    def _wait_for_hub(self, begin: float) -> float:
        """Wait until the hub says that it is ready; a client's own tries to reach it are seconds apart.

        Raises:
            RuntimeError: it has ended, or takes too long.
        """
        log = self.folder / f"log{self._started}"
        while READY not in log.read_bytes():
            if self.hub.poll() is not None or time.monotonic() > begin + READY_S:
                raise RuntimeError(log.read_text())
            time.sleep(0.005)
        return time.monotonic() - begin

    def close(self) -> None:
        """End everything."""
        end_all(self._clients)
        end_all(self._programs)
        if self.redis is not None:
            self.redis.close()

    def kill_hub(self) -> None:
        """Kill the hub and the clients, as a lost machine would."""
        for program in (*self._clients, *self._programs):
            program.kill()
        end_all(self._clients)
        end_all(self._programs)

    def add_pool(self) -> None:
        """Start a pool of two slots."""
        self._start(
            *COMMAND, "worker", "benchmarks.workloads", "--address", self.address, "--concurrency", "2"
        )

    def submit(self, row: str, clients: int, count: int) -> list[dict[str, Any]]:
        """Have clients submit at the same time; return what each has told."""
        arguments = ("benchmarks.submission", self.address, row, str(count // clients))
        started = [start_client(*arguments, env=environment()) for _ in range(clients)]
        self._clients += started
        await_ready(started)
        let_begin(started)
        return times_of(started)

    def _start(self, *command: str) -> None:
        self._started += 1
        with (self.folder / f"log{self._started}").open("wb") as log:
            self._programs.append(
                subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=log, stderr=log)
            )


def environment() -> dict[str, str]:
    """Return the environment of a program, without what it says of other meshes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKMESH_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))}


@contextlib.contextmanager
def opened(tier: Tier, *, pool: bool = False) -> Iterator[Bench]:
    """A bench that serves, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="benchmark", ignore_cleanup_errors=True) as folder:
        bench = Bench(tier, Path(folder))
        try:
            bench.open()
            if pool:
                bench.add_pool()
            yield bench
        finally:
            bench.close()


def loop_seconds(pid: int) -> float:
    """Return the processor time of a program's main thread, which is the hub's loop."""
    return int((machine.PROC / str(pid) / "task" / str(pid) / "schedstat").read_text().split()[0]) / 1e9


def rate(tier: Tier, row: str, clients: int, count: int) -> dict[str, float]:
    """Tasks a second of all clients together, and microseconds of the hub's loop for each."""
    with opened(tier, pool=row == "results") as bench:
        before = loop_seconds(bench.hub.pid)
        told = bench.submit(row, clients, count)
        used = loop_seconds(bench.hub.pid) - before
    seconds = max(one["end"] for one in told) - min(one["begin"] for one in told)
    done = count // clients * clients
    return {"rate": done / seconds, "loop_us": 1e6 * used / done}


def accepts(tier: Tier, amounts: Amounts) -> dict[str, float]:
    """One client."""
    return rate(tier, "accepts", 1, amounts.accepts)


def accepts_of_eight(tier: Tier, amounts: Amounts) -> dict[str, float]:
    """Eight clients."""
    return rate(tier, "accepts", 8, amounts.accepts)


def results(tier: Tier, amounts: Amounts) -> dict[str, float]:
    """No-ops, end to end."""
    return rate(tier, "results", 1, amounts.results)


def lone(tier: Tier, amounts: Amounts) -> dict[str, float]:
    """The median from submission to acceptance, in milliseconds."""
    with opened(tier) as bench:
        (told,) = bench.submit("lone", 1, amounts.lone)
    return {"ms": 1000 * statistics.median(told["times"])}


def waiting(tier: Tier, amounts: Amounts) -> dict[str, float]:
    """A hub that is killed with many tasks, and the next one; without a journal there is only the first.

    Bytes are those of a task, with its payload. `store` is Redis' memory, or the file with its log.
    """
    count = amounts.waiting
    with opened(tier) as bench:
        empty = resident(bench.hub.pid)
        unused = bench.redis.info("used_memory") if bench.redis else 0
        bench.submit("accepts", 1, count)
        found = {"bytes in the hub": (resident(bench.hub.pid) - empty) / count}
        if not tier.store:
            return found
        bench.kill_hub()
        if bench.redis is not None:
            found["bytes in the store"] = (bench.redis.info("used_memory") - unused) / count
            found["bytes of the AOF"] = bench.redis.info("aof_current_size") / count
        else:
            sizes = [path.stat().st_size for path in bench.folder.glob("journal*")]
            found["bytes in the store"] = sum(sizes) / count
        found["reload, s"] = bench.open()
        found["reload, CPU s"] = machine.processor_seconds([bench.hub.pid])
        found["bytes in the new hub"] = (resident(bench.hub.pid) - empty) / count
        with Mesh(bench.address) as mesh:
            there = mesh.status(timeout=READY_S)["accepted"]
        if there != count:
            raise AssertionError(f"{there} of {count} tasks are there")
    return found


def resident(pid: int) -> int:
    """Return the bytes of a process that are in memory."""
    lines = (machine.PROC / str(pid) / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


ROWS = {
    "accepts": accepts,
    "accepts of 8": accepts_of_eight,
    "lone": lone,
    "results": results,
    "waiting": waiting,
}
Turns = dict[str, dict[str, list[dict[str, float]]]]


def measure(rows: list[str], tiers: list[str], repeats: int, amounts: Amounts) -> tuple[Turns, list[float]]:
    """Take the turns; return the figures by row and tier, and how many CPUs others used meanwhile."""
    found: Turns = {row: {tier: [] for tier in tiers} for row in rows}
    foreign: list[float] = []
    for row in rows:
        for _ in range(1 if row == "waiting" else repeats):
            for tier in tiers:
                with machine.Window() as window:
                    found[row][tier].append(ROWS[row](TIERS[tier], amounts))
                foreign += [] if window.foreign_cpus is None else [window.foreign_cpus]
    return found, foreign


def report(found: Turns) -> list[dict[str, Any]]:
    """Print the medians with their ratios to memory mode, and return them."""
    rows = []
    for row, tiers in found.items():
        for tier, turns in tiers.items():
            for name in turns[0]:
                figures = [turn[name] for turn in turns]
                memory = [turn[name] for turn in tiers.get(MEMORY, []) if name in turn]
                ratios = [its / base for its, base in zip(figures, memory, strict=False) if base]
                made = {"row": row, "tier": tier, "figure": name, "median": statistics.median(figures)}
                made |= {"ratio": statistics.median(ratios) if ratios else None, "turns": figures}
                rows.append(made)
                ratio = f"{made['ratio']:8.2f} x" if ratios else ""
                spread = f"{min(figures):,.2f} .. {max(figures):,.2f}"
                print(f"{row:14}{tier:15}{name:22}{made['median']:14,.2f}{ratio:>10}   {spread}", flush=True)
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal", description=SUMMARY)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument(
        "--tiers", type=lambda text: text.split(";"), default=list(TIERS), help="separated by ;"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=Amounts().waiting, help="tasks of the row `waiting`")
    parser.add_argument("--quick", action="store_true", help="little work: to see that all runs")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    return parser.parse_args()


def main() -> None:
    options = parse()
    amounts = Amounts(1_000, 20, 1_000, 1_000) if options.quick else Amounts(waiting=options.waiting)
    machine.adopt_orphans()
    tiers = [name for name in options.tiers if redis_program() or TIERS[name].store != "redis"]
    found, foreign = measure(options.rows, tiers, options.repeats, amounts)
    rows = report(found)
    if foreign:
        print(f"CPUs used by others: median {statistics.median(foreign):.1f}, most {max(foreign):.1f}")
    if options.out:
        facts = {"taken": machine.now(), "machine": machine.describe(), "payload": PAYLOAD}
        facts |= {"amounts": amounts._asdict(), "repeats": options.repeats, "quick": options.quick}
        options.out.write_text(json.dumps({**facts, "foreign_cpus": foreign, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
