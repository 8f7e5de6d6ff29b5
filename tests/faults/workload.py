"""What slots run in these tests: checksum tasks that log their start and end, and misdeeds between."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from taskmesh import gather, task
from taskmesh.context import current_task
from tests.harness import nasty
from tests.harness.gate import wait_at
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

LONGEST = 0.005
"""Seconds that an ordinary task takes at most."""


def answer(index: int, data: bytes = b"") -> str:
    """Return the result of the task with this number; no other task gives the same."""
    return hashlib.sha256(b"%d:" % index + data).hexdigest()[:24]


def product(index: int, size: int) -> bytes:
    """So many bytes that are this task's alone."""
    return (answer(index).encode() * (size // 24 + 1))[:size]


def digest(data: bytes) -> str:
    """A large value's name in the logs."""
    return hashlib.sha256(data).hexdigest()[:24]


def produce(log: str, index: int, size: int) -> bytes:
    """A task with a large result."""
    around(log, index, lambda: None)
    return product(index, size)


def pause_of(index: int) -> float:
    """How long the ordinary task with this number takes: 0 to 5 ms."""
    return random.Random(index).random() * LONGEST


def ordinary(log: str, index: int, data: bytes = b"", pause: float = 0.0) -> str:
    """A checksum task."""
    return around(log, index, lambda: _wait(pause), data)


def stamp(log: str, word: str) -> float:
    """Log a word; the time."""
    Journal(log).append(word)
    return time.time()


def span(seconds: float, _user: str = "") -> tuple[float, float]:
    """Take so long; from when to when."""
    begin = time.time()
    _wait(seconds)
    return begin, time.time()


def span_after(gate: str) -> tuple[float, float]:
    """Wait at a gate, then take 10 ms; from when to when."""
    wait_at(gate)
    return span(0.01)


def around(log: str, index: int, deed: Callable[[], object], data: bytes = b"") -> str:
    """Log the start, do it, log the end."""
    journal, me = Journal(log), current_task()
    fields = (me.id, me.attempt, os.getpid())
    journal.write("start", index, *fields)
    deed()
    value = answer(index, data)
    journal.write("end", index, *fields)
    return value


def _wait(seconds: float) -> None:
    if seconds:
        threading.Event().wait(seconds)


def wait_for(log: str, index: int, gate: str) -> str:
    """A task that lasts until the test opens the gate."""
    return around(log, index, lambda: wait_at(gate))


def perhaps_wait(log: str, index: int, gate: str) -> str:
    """A task of which nobody can know how long it takes: nothing, or until the gate is open."""
    return around(log, index, lambda: wait_at(gate) if gate else None)


def wait_for_once(log: str, index: int, gate: str) -> str:
    """The same in the first attempt, which the test takes away; a second one passes."""
    first = current_task().attempt == 1
    return around(log, index, lambda: wait_at(gate) if first else None)


@task
def wait_at_gate(gate: str) -> None:
    """A task that another one submits; it lasts until the test opens the gate."""
    wait_at(gate)


def hold_gil_with_children(log: str, index: int, gate: str, seconds: float) -> str:
    """A task that submits others, computes without letting another thread in, and waits for them."""

    def deed() -> None:
        children = [wait_at_gate.submit(gate) for _ in range(3)]
        wait_until(lambda: all(one.accepted for one in children), 10)
        hold_gil(seconds)
        gather(children)

    return around(log, index, deed)


def misbehave(log: str, index: int, deed: str, *arguments: object) -> str:
    """A task that does one of the deeds below."""
    return around(log, index, lambda: DEEDS[deed](*arguments))


def misbehave_once(log: str, index: int, deed: str, *arguments: object) -> str:
    """The same in the first attempt only."""
    first = current_task().attempt == 1
    return around(log, index, lambda: DEEDS[deed](*arguments) if first else None)


def misbehave_by_turns(log: str, index: int, deeds: list[list[object]]) -> str:
    """A task whose first attempt does the first deed, and so on; when all are done it behaves."""
    turn = current_task().attempt - 1
    deed, *arguments = deeds[turn] if turn < len(deeds) else [None]
    return around(log, index, lambda: DEEDS[str(deed)](*arguments) if deed else None)


def return_bad(log: str, index: int, what: str) -> object:
    """A task that returns a nasty value."""
    around(log, index, lambda: None)
    return nasty.make(what)


def raise_bad(log: str, index: int, what: str) -> NoReturn:
    """A task that raises a nasty error."""
    around(log, index, lambda: None)
    nasty.fail(what)


def take(log: str, index: int, value: object) -> str:
    """A task that takes a nasty argument."""
    return around(log, index, lambda: value)


# --- deeds: ends of all kinds -----------------------------------------------------------------------------


def exit_at_once() -> None:
    os._exit(0)  # noqa: TID251  what the test is about


def exit_politely() -> None:
    sys.exit(3)


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def recurse() -> None:
    recurse()


def recurse_deeply() -> None:
    """Infinite recursion with the interpreter's guard taken away: the C stack overflows."""
    sys.setrecursionlimit(1 << 30)
    _compare(0)


class _Deep:
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __eq__(self, other: object) -> bool:
        return _Deep(self.depth + 1) == self

    __hash__ = None  # type: ignore[assignment]


def _compare(depth: int) -> None:
    assert _Deep(depth) == _Deep(depth)


def take_memory() -> None:
    """Take address space until there is no more; none of it is touched."""
    hoard = []
    while True:
        hoard.append(bytes(1 << 22))


def use_memory(size: int) -> None:
    """Take so many bytes and write to all of them."""
    hoard = [b"x" * (1 << 20) for _ in range(size >> 20)]
    assert len(hoard) == size >> 20


def grow(size: int) -> None:
    """The same step by step, some 500 MB a second at most."""
    pause, hoard = threading.Event(), []
    while len(hoard) < size >> 20:
        hoard.append(b"x" * (1 << 20))
        pause.wait(0.002)


def fill_page_cache(path: str, size: int) -> None:
    """Write a file and read it twice: its pages are counted as the control group's memory."""
    with open(path, "wb") as file:
        file.writelines(bytes(1 << 20) for _ in range(size >> 20))
        os.fsync(file.fileno())
    for _ in range(2):
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


def fail() -> None:
    raise LookupError("meant")


# --- deeds: bad manners -----------------------------------------------------------------------------------


def hold_gil(seconds: float) -> None:
    """A call into C that keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def move_away() -> None:
    os.chdir("/")
    os.umask(0o777)


def close_descriptors() -> None:
    os.closerange(3, 1000)


def close_every_descriptor() -> None:
    os.closerange(3, 4096)


def leave_threads() -> None:
    for daemon in (True, False):
        threading.Thread(target=threading.Event().wait, daemon=daemon).start()


def leave_child() -> None:
    """A child that keeps every descriptor and never ends, and of which Python's hooks know nothing."""
    libc = ctypes.CDLL(None)
    if libc.fork() == 0:
        while True:
            libc.pause()


def leave_forked_child() -> None:
    if os.fork() == 0:
        while True:
            signal.pause()


DEEDS: dict[str, Callable[..., object]] = {
    deed.__name__: deed
    for deed in (
        exit_at_once,
        exit_politely,
        segfault,
        abort,
        kill_self,
        recurse,
        recurse_deeply,
        take_memory,
        use_memory,
        grow,
        fill_page_cache,
        fail,
        hold_gil,
        ignore_signals,
        move_away,
        close_descriptors,
        close_every_descriptor,
        leave_threads,
        leave_child,
        leave_forked_child,
    )
}
