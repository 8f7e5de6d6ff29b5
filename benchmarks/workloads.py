"""The tasks. Every worker of every contender imports this module, so it imports next to nothing."""

from __future__ import annotations

import os
import struct
import time
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

RECORD = struct.Struct("<qq")  # task number, process id


class LoggedNap(NamedTuple):
    """A nap that leaves one record in the execution log before it begins."""

    number: int
    seconds: float
    log: str


def noop(value: T) -> T:
    """Cost nothing, and give the argument back so that answers can be told apart."""
    return value


def echo(value: T) -> T:
    """Return the payload; a name of its own, because speed is learned for each function."""
    return value


def nap(seconds: float) -> float:
    """Take wall time and no processor."""
    time.sleep(seconds)
    return seconds


def timed_nap(seconds: float) -> float:
    """Take wall time and no processor, and tell how much of it: on a busy machine more than was asked for."""
    begin = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - begin


def begun(_number: int) -> float:
    """Tell when it runs, in seconds since the epoch: processes compare it."""
    return time.time()


def spin(seconds: float) -> float:
    """Take processor time, however long that lasts on a machine that others use too."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds


def infer(array: Any) -> tuple[int, float, float]:
    """Look through an array and compute for 1 ms, as a small model does; tell where and when."""
    began = time.monotonic()
    array[::4096].max()
    spin(0.001)
    return os.getpid(), began, time.monotonic()


def logged_nap(job: LoggedNap) -> int:
    """Write the record in one append, so that a kill leaves a whole record or none, then sleep."""
    number, seconds, log = job
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, RECORD.pack(number, os.getpid()))
    finally:
        os.close(descriptor)
    time.sleep(seconds)
    return number


def joined(values: list[int]) -> int:
    """Cost next to nothing, and give a number that depends on all that came before."""
    return (sum(values) + 1) % 1_000_003


def successor(value: int) -> int:
    """Give the next number."""
    return value + 1


def fail(value: object) -> None:
    """Fail."""
    raise ValueError("it fails, as it should")


def read_log(log: str) -> list[tuple[int, int]]:
    """Return (task number, process id) of every execution that began, in order."""
    with open(log, "rb") as file:
        content = file.read()
    return [
        RECORD.unpack_from(content, at)
        for at in range(0, len(content) // RECORD.size * RECORD.size, RECORD.size)
    ]
