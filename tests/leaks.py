"""What a test left behind: processes, threads and descriptors that were not there before it.

A process counts as this run's when it is a child of ours, or carries the run's mark in its environment: the
mark finds the children of a fork server that died, which nobody's parent id leads to any more.
"""

import gc
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

MARK = "TEST_RUN_OF_TASKMESH"
KEPT_PEERS: set[int] = set()
"""TCP ports of programs that a library of ours keeps connections to, when and as many as it likes."""
_PROC = Path("/proc")
# multiprocessing keeps these for the life of the process that first used it.
_KEPT_PROGRAMS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def mark_run() -> None:
    """Give this test run its mark; processes started from here on inherit it."""
    os.environ[MARK] = uuid.uuid4().hex


@dataclass(frozen=True)
class Holdings:
    """What this process has at one moment, each thing with the words that name it in a failure."""

    processes: dict[object, str]
    threads: dict[object, str]
    descriptors: dict[object, str]

    @classmethod
    def now(cls, known: "Holdings | None" = None) -> "Holdings":
        """Look; processes known from an earlier look are taken as unchanged."""
        return cls(_processes(known.processes if known else {}), _threads(), _descriptors())

    def beyond(self, baseline: "Holdings") -> list[str]:
        """Name what is here and was not in the baseline."""
        pairs = (
            (self.processes, baseline.processes),
            (self.threads, baseline.threads),
            (self.descriptors, baseline.descriptors),
        )
        return [words for mine, theirs in pairs for thing, words in mine.items() if thing not in theirs]


def left_behind(baseline: Holdings, timeout: float = 2.0) -> list[str]:
    """Name what is left beyond the baseline once things had `timeout` seconds to go."""
    if not Holdings.now(baseline).beyond(baseline):
        return []
    gc.collect()  # what only a reference cycle holds is not the test's fault
    try:
        wait_until(lambda: not Holdings.now(baseline).beyond(baseline), timeout)
    except AssertionError:
        return Holdings.now(baseline).beyond(baseline)
    return []


def _processes(known: dict[object, str]) -> dict[object, str]:
    """Return the live processes of this run (zombies of our own among them) by process id."""
    found = {}
    ours = str(os.getpid())
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    for name in os.listdir(_PROC):
        if not name.isdigit() or name == ours:
            continue
        pid = int(name)
        if pid in known:
            found[pid] = known[pid]
            continue
        try:
            parent = (_PROC / name / "stat").read_text().rpartition(")")[2].split()[1]
            program = (_PROC / name / "cmdline").read_bytes()
            mine = parent == ours or mark in (_PROC / name / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if mine and not any(kept in program for kept in _KEPT_PROGRAMS):
            words = program.replace(b"\0", b" ").decode(errors="replace")[:200]
            found[pid] = f"process {pid} (parent {parent}): {words}"
    return found


def _threads() -> dict[object, str]:
    """Return live threads that must not outlive a test: non-daemon ones, and taskmesh's own."""
    return {
        thread: f"thread {thread.name!r} (daemon={thread.daemon})"
        for thread in threading.enumerate()
        if not thread.daemon or thread.name.startswith("taskmesh")
    }


def _descriptors() -> dict[object, str]:
    """Return the open descriptors, each with what it refers to."""
    found = {}
    kept = _kept_sockets() if KEPT_PEERS else frozenset()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own descriptor
            continue
        if target not in kept:
            found[(name, target)] = f"descriptor {name} -> {target}"
    return found


def _kept_sockets() -> frozenset[str]:
    """Return the sockets that are connected to a kept peer, as `/proc` names them."""
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in (_PROC / "self/net" / table).read_text().splitlines()[1:]
    ]
    return frozenset(f"socket:[{row[9]}]" for row in rows if int(row[2].rpartition(":")[2], 16) in KEPT_PEERS)
