"""Tasks that the tests of the network layer run; workers import this module."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from taskmesh import task
from taskmesh.client.nested_client import client_here
from taskmesh.shm import files
from tests.harness.journal import note, words
from tests.harness.waiting import wait_until


class Refusal(Exception):
    """An exception of the user's."""


def add(a: int, b: int) -> int:
    return a + b


def add_after(task_id: str, a: int, b: int) -> int:
    """Adds in a task of its own, after another client's task."""
    return task(add).with_options(after=task_id).submit(a, b).result()


def refuse(text: str) -> NoReturn:
    raise Refusal(text)


def echo(value: object) -> object:
    return value


def stamp() -> float:
    """The time at which it runs."""
    return time.time()


def span(seconds: float, _user: str = "") -> tuple[float, float]:
    """Takes so long; from when to when."""
    begin = time.time()
    threading.Event().wait(seconds)
    return begin, time.time()


def stage(argument: tuple[int, list[float]]) -> tuple[int, list[float]]:
    """Takes the first of the times; returns the item with the others."""
    item, (seconds, *others) = argument
    if seconds:
        span(seconds)
    return item, others


def size_of(data: bytes) -> int:
    return len(data)


def zeros(size: int) -> bytes:
    return bytes(size)


def repeated(value: int, size: int) -> bytes:
    return bytes([value]) * size


def content(data: bytes) -> tuple[int, set[int]]:
    """Returns how many bytes these are, and which."""
    return len(data), set(data)


def supervisor() -> int:
    """The process id of the fork server, which is one for each pool."""
    return os.getppid()


def hold(journal: str, word: str, gate: str) -> str:
    """Appends a word, then waits until the gate is there."""
    note(journal, word)
    wait_until(Path(gate).exists, 50)
    return word


def leave_behind(journal: str, gate: str, how: str) -> None:
    """Submits a detached task, and notes its id; if it fails, it does so with an attached one on its way."""
    detached = task(hold).with_options(detach=True).submit(journal, "word", gate)
    note(f"{journal}.ids", detached.task_id)
    if how == "fails":
        task(hold).submit(journal, "never-over", f"{gate}.of-nobody")
        wait_until(lambda: "never-over" in words(journal), 50)
        raise Refusal(how)


def stop_at(number: int, journal: str, gate: str) -> int:
    """Returns a number; a negative one only when the gate is there."""
    if number < 0:
        hold(journal, "held", gate)
    return number


def noted(argument: tuple[str, str]) -> str:
    """As `note`, with one argument."""
    return note(*argument)


def large(argument: tuple[str, int]) -> bytes:
    """Notes its call, and returns so many bytes."""
    note(argument[0], "large")
    return bytes(argument[1])


def fail_until(gate: str) -> int:
    sys.stdout.write("looked for the gate\n")
    if not Path(gate).exists():
        raise Refusal("no gate")
    return 1


def held_sum(data: Any, journal: str, word: str, gate: str) -> int:
    """Adds an array up after `hold`, and writes into what it got."""
    hold(journal, word, gate)
    total = int(data.sum())
    data[:] = 0
    return total


def keep(data: Any, _kept: list[Any] = []) -> list[int]:  # noqa: B006  as a task does that caches
    """Keeps each array that it is given; returns what they hold, the only number in each."""
    _kept.append(data)
    return [int(each[0]) if (each == each[0]).all() else -1 for each in _kept]


def total(data: Any) -> int:
    return int(data.sum())


def forget_files_after(seconds: float) -> int:
    """Lets its slot keep idle memory files for so long; returns its process id."""
    files.KEPT_S = seconds  # type: ignore[misc]
    return os.getpid()


def sum_at_third(data: Any, journal: str) -> int:
    """Adds an array up when it is tried for the third time; writes into what it got each time."""
    note(journal, "tried")
    total = int(data.sum())
    data[:] = 0
    if len(words(journal)) < 3:
        raise Refusal(f"{total}")
    return total


def filled(size: int, value: int) -> Any:
    """An array."""
    import numpy

    return numpy.full(size, value, numpy.uint8)


def stream(sink: str, count: int) -> int:
    """Puts so many numbers into a sink."""
    out = client_here().sink_input(sink)
    for index in range(count):
        out.put(b"%d" % index)
    return count


def doubled(source: str, target: str, count: int) -> int:
    """Sends so many payloads of one sink into another, twice as long."""
    out = client_here().sink_input(target)
    sink = client_here().sink(source, 64 << 20)  # left open: it ends with the task
    for _ in range(count):
        outcome = sink.get(30)
        out.put(outcome.message() * 2)
        sink.ack(outcome)
    return count


def opened(name: str) -> str:
    return client_here().sink(name, 1000).__enter__().name


def failed_after(sink: str) -> None:
    client_here().sink_input(sink).put(b"first")
    raise ValueError("enough")
