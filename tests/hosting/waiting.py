"""Tasks that wait, and tasks that misbehave beside them, where slots share a process."""

import asyncio
import contextlib
import ctypes
import logging
import os
import threading
from contextvars import ContextVar
from pathlib import Path

from taskmesh import current_task, task
from tests.harness.waiting import wait_until

_here: ContextVar[str] = ContextVar("_here", default="nobody")
_arrived: dict[str, int] = {}
_all_here: dict[str, asyncio.Event] = {}
_barriers: dict[str, threading.Barrier] = {}
_lock = threading.Lock()
LONG_S = 60


@task
async def meet(name: str, count: int) -> int:
    """Return when so many coroutines are here at once, in one process."""
    event = _all_here.setdefault(name, asyncio.Event())
    _arrived[name] = _arrived.get(name, 0) + 1
    if _arrived[name] == count:
        event.set()
    await asyncio.wait_for(event.wait(), LONG_S)
    return os.getpid()


@task
def meet_in_threads(name: str, count: int) -> int:
    """Return when so many functions are here at once, in one process."""
    with _lock:
        barrier = _barriers.setdefault(name, threading.Barrier(count))
    barrier.wait(LONG_S)
    return os.getpid()


def _mixed(name: str, before: str, known: str) -> str:
    found = _here.get(), current_task().id
    return "" if (before, *found) == ("nobody", name, known) else f"{name}: {before}, {found}, {known}"


@task
async def minds_its_own(name: str) -> str:
    """Return what it finds of another task, in itself and in a task of its loop."""
    before, known = _here.get(), current_task().id
    _here.set(name)
    await asyncio.sleep(0)
    inner = await asyncio.create_task(_found(name, before, known))
    other = await asyncio.to_thread(_mixed, name, before, known)
    return inner or other or _mixed(name, before, known)


async def _found(name: str, before: str, known: str) -> str:
    await asyncio.sleep(0)
    return _mixed(name, before, known)


@task
def minds_its_own_in_a_thread(name: str) -> str:
    """Return what it finds of another task."""
    before, known = _here.get(), current_task().id
    _here.set(name)
    os.sched_yield()
    return _mixed(name, before, known)


@task(stream_logs=True)
async def talks(name: str) -> None:
    """Log and print its name, with others in between."""
    for number in range(3):
        logging.getLogger("tests.waiting").warning("%s logs %d", name, number)
        print(f"{name} prints {number}")  # noqa: T201
        await asyncio.sleep(0)
    print(f"{name} ends", end="")  # noqa: T201


@task
async def waits(path: str, seconds: float = LONG_S) -> str:
    """Say in a file when it begins and when it is cancelled."""
    _note(path, "begun")
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
    except asyncio.CancelledError:
        _note(path, "cancelled")
        raise
    return "waited"


@task
def sleeps(path: str, until: str) -> str:
    """Return when there is a file, in a thread."""
    _note(path, "begun")
    wait_until(lambda: os.path.exists(until), LONG_S)
    return "slept"


@task
def looks(path: str) -> str:
    """Return when it is cancelled."""
    _note(path, "begun")
    task_here = current_task()
    wait_until(lambda: task_here.cancelled, LONG_S)
    _note(path, "saw it")
    return "looked"


@task
def runs(path: str, until: str) -> int:
    """Count itself in a file; return the attempt when there is another file."""
    _note(path, "begun")
    wait_until(lambda: os.path.exists(until), LONG_S)
    return current_task().attempt


@task
def crashes(path: str, together: str) -> None:
    """End its process by a fault of the memory, when others run with it, or alone."""
    _note(path, "begun")
    with contextlib.suppress(AssertionError):
        wait_until(lambda: os.path.exists(together), 2)
    ctypes.string_at(1)


@task
async def keeps_the_loop(until: str) -> None:
    """Wait as no coroutine may."""
    wait_until(lambda: os.path.exists(until), LONG_S)


@task
async def exits() -> None:
    """End as a program does."""
    raise SystemExit(3)


@task
async def asks(count: int) -> list[int]:
    """Submit tasks of its own, and wait for them."""
    return list(await asyncio.gather(*[doubled.submit(number) for number in range(count)]))


@task
def asks_in_a_thread(count: int) -> list[int]:
    """Submit tasks of its own, and wait for them."""
    return [future.result(LONG_S) for future in [doubled.submit(number) for number in range(count)]]


@task
async def doubled(number: int) -> int:
    """Return twice the number."""
    await asyncio.sleep(0)
    return 2 * number


def begun(path: Path) -> int:
    """Return how often a task has begun that notes this."""
    return path.read_text().count("begun") if path.exists() else 0


def _note(path: str, what: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
