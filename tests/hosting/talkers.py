"""Task functions that log and print."""

import ctypes
import logging
import os
import subprocess
import sys
import threading

from taskmesh import current_task, task

log = logging.getLogger("tests.talkers")


def says(*levels: int) -> int:
    for level in levels:
        log.log(level, "at %d", level)
    return os.getpid()


def fails() -> None:
    log.error("about to fail")
    raise ValueError("as said")


def dies() -> None:
    log.error("about to die")
    os.kill(os.getpid(), 9)


def numbers(count: int, size: int = 0) -> int:
    for number in range(count):
        log.warning("line %d%s", number, "x" * size)
    return count


def prints(count: int) -> None:
    for number in range(count):
        print("out", number)  # noqa: T201  that is tested
        print("err", number, file=sys.stderr)  # noqa: T201  that is tested
    sys.stdout.write("unended")


def prints_by_all_ways() -> None:
    print("by Python")  # noqa: T201  that is tested
    os.write(1, b"by a descriptor\n")
    subprocess.run(["/bin/sh", "-c", "echo by a child; echo its error >&2"], check=True)
    ctypes.CDLL(None).printf(b"by C, without a line's end")


def floods(count: int) -> int:
    subprocess.run(["/usr/bin/seq", str(count)], check=True)
    return count


def prints_and_dies() -> None:
    ctypes.CDLL(None).puts(b"in C's buffer: lost")
    os.write(2, b"last words")
    os.kill(os.getpid(), 9)


def in_a_thread() -> None:
    thread = threading.Thread(target=log.warning, args=("from a thread",))
    thread.start()
    thread.join()


def with_an_error() -> None:
    try:
        int("x")
    except ValueError:
        log.exception("it is no number")


def odd() -> None:
    log.warning("a lone surrogate: \ud800")
    log.warning("%d", "no number")
    log.warning("y" * 100_000)


def says_until(path: str) -> None:
    log.warning("I wait")
    with open(path) as until:  # a FIFO: until somebody writes to it
        until.read()
    current_task().log.warning("I end")


@task
def child(number: int) -> int:
    log.warning("child %d", number)
    return number


def parent(detached: bool) -> int:
    one = child.with_options(detach=detached).submit(1)
    two = child.submit(2)
    return two.result() + (0 if detached else one.result())


def forks() -> int:
    child = os.fork()
    if child == 0:
        log.warning("from a child")
        os._exit(0)  # noqa: TID251  a forked child that never returns
    return os.waitpid(child, 0)[1]
