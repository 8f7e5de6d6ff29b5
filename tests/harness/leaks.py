"""What a test left behind: processes, threads and descriptors that were not there before it.

A process counts as this run's when it is a child of ours, or carries the run's mark in its environment: the
mark finds the children of a fork server that died, which nobody's parent id leads to any more.
"""

import gc
import os
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.harness.waiting import wait_until

MARK = "TEST_RUN_OF_TASKMESH"
KEPT_PEERS: set[int] = set()
"""Processes that open and keep connections with this one when and as many as they like."""
_PROC = Path("/proc")
STRANGERS: set[int] = set()
"""Processes that cannot be of this run, until they end: ids are used again."""
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
        return [_with_addresses(words) for words in Holdings.now(baseline).beyond(baseline)]
    return []


def _processes(known: dict[object, str]) -> dict[object, str]:
    """Return the live processes of this run (zombies of our own among them) by process id.

    Strangers are read once: to read a hundred of them at the begin and end of each of 3,000 tests took a
    sixth of the time of `make unit`. A stranger is older than this process, or the child of one to which the
    kernel gives no orphans of ours, as it may to our ancestors.
    """
    found: dict[object, str] = {}
    ours = os.getpid()
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    present = {int(name) for name in os.listdir(_PROC) if name.isdigit()}
    STRANGERS.intersection_update(present)
    for pid in sorted(present - STRANGERS - {ours}):
        if pid in known:
            found[pid] = known[pid]
            continue
        try:
            parent, began = _origin(pid)
            if began < _began() or (parent in STRANGERS and parent not in _ancestors()):
                STRANGERS.add(pid)
                continue
            if parent != ours and mark not in _content(pid, "environ").split(b"\0"):
                continue
            program = _content(pid, "cmdline")
        except OSError:  # gone meanwhile, or another user's
            continue
        if not any(kept in program for kept in _KEPT_PROGRAMS):
            words = program.replace(b"\0", b" ").decode(errors="replace")[:200]
            found[pid] = f"process {pid} (parent {parent}): {words}"
    return found


def _origin(pid: int) -> tuple[int, int]:
    """Return a process's parent and when it began, in ticks of the kernel's clock."""
    fields = _content(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


@cache
def _began() -> int:
    """Return when this process began."""
    return _origin(os.getpid())[1]


@cache
def _ancestors() -> frozenset[int]:
    """Return the processes that led to this one, and the first of all; none that may not be read."""
    found, pid = {1}, os.getpid()
    with suppress(OSError):
        while (pid := _origin(pid)[0]) > 0:
            found.add(pid)
    return frozenset(found)


def _content(process: int, name: str) -> bytes:
    """Read a file of a process; there are hundreds at every test's begin and end, so without pathlib."""
    descriptor = os.open(f"/proc/{process}/{name}", os.O_RDONLY)
    try:
        found = b""
        while part := os.read(descriptor, 1 << 17):
            found += part
        return found
    finally:
        os.close(descriptor)


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
        target = _target(f"/proc/self/fd/{name}")
        if target and target not in kept:  # none: the listing's own descriptor
            found[(name, target)] = f"descriptor {name} -> {target}"
    return found


def _with_addresses(words: str) -> str:
    """Add the addresses of a TCP connection to what is said of it."""
    ends = _connections().get(words.rpartition(" ")[2])
    return f"{words}: tcp from port {ends[0]} to port {ends[1]}" if ends else words


def _kept_sockets() -> frozenset[str]:
    """Return our TCP sockets whose other end a kept peer holds, as `/proc` names them."""
    connections = _connections()
    theirs = {
        _target(_PROC / str(peer) / "fd" / name)
        for peer in KEPT_PEERS
        for name in os.listdir(_PROC / str(peer) / "fd")
    }
    others = {connections[socket][::-1] for socket in theirs & connections.keys()}
    return frozenset(socket for socket, ports in connections.items() if ports in others)


def _connections() -> dict[str, tuple[int, int]]:
    """Return the local and remote port of every TCP socket, by its name in `/proc`.

    The ports alone: of one connection one end may be in the table of IPv6 and the other in that of IPv4.
    """
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in (_PROC / "self/net" / table).read_text().splitlines()[1:]
    ]
    return {f"socket:[{row[9]}]": (_port(row[1]), _port(row[2])) for row in rows}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _target(descriptor: str | Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # closed meanwhile
        return ""
