"""What the slots of these tests run."""

import contextlib
import ctypes
import gc
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from taskmesh import Schedule, task
from taskmesh.context import current_task
from tests.harness import nasty
from tests.harness.waiting import wait_until


def nothing() -> None:
    pass


def echo(value: Any) -> Any:
    return value


def add(a: int, b: int = 1) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def raise_this(error: BaseException) -> None:
    raise error


def modules() -> list[str]:
    return sorted(sys.modules)


def calendar_of_schedules() -> bool:
    """True if a slot that imports task functions with schedules loads the calendar to check them."""
    task(schedule="61 * * * *")(nothing)
    task(schedule=Schedule("0 9 * * *", tz="Europe/Berlin"))(nothing)
    return "cronsim" in sys.modules


class Counted:
    """An argument that counts how many of its kind there are in a slot when it comes."""

    alive = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"among": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Counted.alive += 1
        self.among = Counted.alive

    def __del__(self) -> None:
        Counted.alive -= 1


def among(counted: Counted) -> int:
    return counted.among


def surroundings() -> dict[str, Any]:
    """What the slot's process is like."""
    return {
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "stdin": os.readlink("/proc/self/fd/0"),
        "handlers": {number: str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD)},
        "threads": threading.active_count(),
        "gc": gc.isenabled(),
        "main": sorted(vars(sys.modules["__main__"])),
    }


def descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").exists()]


def speak(out: str, err: str) -> None:
    print(out)  # noqa: T201  what the test is about
    print(err, file=sys.stderr)  # noqa: T201


def chatter(count: int) -> int:
    for i in range(count):
        print(f"line {i}")  # noqa: T201
    return count


# --- ends of all kinds ---


def exit_at_once(status: int) -> None:
    os._exit(status)  # noqa: TID251  what the test is about


def exit_politely() -> None:
    sys.exit(3)


def segfault() -> None:
    ctypes.string_at(0)


def kill_self(number: int) -> None:
    os.kill(os.getpid(), number)


def abort() -> None:
    os.abort()


def recurse(n: int = 0) -> int:
    return recurse(n + 1) + 1


def close_descriptors(first: int, last: int) -> None:
    os.closerange(first, last)


def close_streams() -> None:
    sys.stdout.close()
    sys.stderr.close()


def turn_stdout_to(path: str) -> None:
    """As a daemon does; what is opened next gets no standard descriptor by accident, either."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.close(file)
    os.close(2)


# --- children and threads ---


def leave_child(path: str) -> int:
    """Fork a child that keeps every descriptor open and waits for ever."""
    child = os.fork()
    if child == 0:
        signal.pause()
    Path(path).write_text(str(child), encoding="utf-8")
    return child


def leave_child_behind_hooks(path: str) -> int:
    """Fork by the C library alone: no at-fork hook of Python closes anything in the child."""
    child = ctypes.CDLL(None).fork()
    if child == 0:
        ctypes.CDLL(None).pause()
    Path(path).write_text(str(child), encoding="utf-8")
    return child


def leave_child_and_die(path: str) -> None:
    leave_child_behind_hooks(path)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_sessions(path: str) -> list[int]:
    """Leave two processes in sessions of their own, a child and a daemon, with a child each."""
    file = Path(path)
    file.touch()
    for is_daemon in (False, True):
        if os.fork() == 0:
            if is_daemon and os.fork():
                os._exit(0)  # noqa: TID251  the daemon's parent
            for _ in range(2):
                os.setsid()
                with file.open("a", encoding="utf-8") as written:
                    written.write(f"{os.getpid()} ")
                if os.fork():
                    break
            while True:
                signal.pause()
    wait_until(lambda: file.read_text(encoding="utf-8").count(" ") == 4)
    return [int(pid) for pid in file.read_text(encoding="utf-8").split()]


def fork_and_return_twice() -> int:
    """Return in parent and child alike: the child must not act as a slot."""
    return os.fork()


def fork_and_fail_twice() -> None:
    os.fork()
    raise RuntimeError("in both")


def leave_thread() -> str:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return "left"


def leave_stubborn_thread() -> str:
    threading.Thread(target=threading.Event().wait).start()
    return "left"


def replace_handlers() -> None:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


# --- time ---


def spin() -> None:
    while True:
        pass


def hold_gil(seconds: int) -> str:
    holding = ctypes.PyDLL(None)["sleep"]
    holding(seconds)
    return "held"


def swallow_timeout() -> str:
    with contextlib.suppress(Exception):
        threading.Event().wait()
    return "went on"


def use_sigalrm(wait: bool) -> str:
    """Guards one step by an alarm, as timeout decorators do, and then waits for ever, or for the alarm."""
    came: list[int] = []
    former = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.alarm(5)
    signal.alarm(0)
    if wait:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        wait_until(lambda: bool(came), 10)
        signal.signal(signal.SIGALRM, former)
        return "alarm"
    signal.signal(signal.SIGALRM, former)
    threading.Event().wait()
    return "never"


def slow_to_pickle() -> nasty.BlocksWhenPickled:
    return nasty.BlocksWhenPickled()


def spin_or_not(n: int) -> int:
    if n == 1:
        spin()
    return n


# --- the running task ---


def tell_progress(steps: int, total: int | None = None) -> None:
    for i in range(steps):
        current_task().progress(i + 1, steps if total is None else total)


def progress_for_ever() -> None:
    while True:
        current_task().progress(1, 1)


def about_me() -> tuple[str, str, int, str, bool]:
    me = current_task()
    return me.id, me.name, me.attempt, me.queue, me.deadline is not None


def my_slot() -> tuple[int, str]:
    return current_task().slot, os.environ["TASKMESH_SLOT"]


def count_counted() -> int:
    gc.collect()
    return len(nasty.Counted.there)


def log_line() -> None:
    current_task().log.log(logging.WARNING, "watch this")


# --- shortage ---

_kept: list[Any] = []


def devour() -> None:
    """Take memory until somebody stops it."""
    while True:
        _kept.append(os.urandom(1 << 20) * 8)


def exhaust_descriptors() -> int:
    """Open descriptors until there are no more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            _kept.append(os.dup(0))
    return len(_kept)


def make_bytes(size: int) -> bytes:
    return os.urandom(size)


def limit_recursion(limit, why=""):
    sys.setrecursionlimit(limit)
    if why:
        raise ValueError(why)
    return limit


def work(seconds: float) -> float:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return seconds


# --- where a task is ---


def _beside(gate: Path) -> None:
    wait_until(gate.exists, 60)


def waits_with_a_thread(folder: str) -> str:
    """Wait for the gate beside a thread that does, too."""
    thread = threading.Thread(target=_beside, args=(Path(folder, "gate"),))
    thread.start()
    Path(folder, "waits").touch()
    thread.join()
    return "unharmed"


def matches_for_hours(folder: str) -> bool:
    Path(folder, "waits").touch()
    return re.match(r"(a+)+$", "a" * 60 + "b") is None


def waits_unless(folder: str, number: int) -> None:
    """Wait for the gate, but the first of several does not."""
    if number:
        Path(folder, "waits").touch()
        wait_until(Path(folder, "gate").exists, 60)


def waits_below(folder: str, depth: int) -> None:
    """Wait for the gate below so many calls."""
    sys.setrecursionlimit(10_000)
    if depth:
        waits_below(folder, depth - 1)
    else:
        waits_unless(folder, 1)
