"""Tasks that say in which process they run; a fresh process imports nothing else for them."""

import os

from taskmesh import current_task, task

_kept: list[bytes] = []


@task
def place(number: int) -> tuple[int, int, int]:
    """Return the number, the process and the attempt."""
    return number, os.getpid(), current_task().attempt


@task
def leak() -> int:
    _kept.append(b"x" * (4 << 20))
    return os.getpid()


@task
def parent(number: int) -> int:
    return child.submit(number).result(60)


@task
def child(number: int) -> int:
    return number + 1


def process(number: int) -> int:
    return os.getpid()
