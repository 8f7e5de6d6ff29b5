"""Bad objects: what cannot be pickled, cannot be rebuilt, blocks, or is too deep or too large."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NoReturn

from tests.faults.workload import around


def _fail_to_rebuild() -> NoReturn:
    raise LookupError("cannot be rebuilt")


def _block(*_: object) -> NoReturn:
    while True:
        threading.Event().wait()


class Unpicklable:
    def __reduce__(self) -> NoReturn:
        raise TypeError("will not be pickled")


class NotRebuilt:
    """Pickles; its rebuilding raises."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _fail_to_rebuild, ()


class BlocksWhenPickled:
    def __reduce__(self) -> NoReturn:
        _block()


class BlocksWhenRebuilt:
    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _block, ()


class EndsTheProcess:
    """Ends the process that pickles it."""

    def __reduce__(self) -> NoReturn:
        os._exit(0)  # noqa: TID251  what the test is about


class TwoArgumentError(Exception):
    """Pickles, but cannot be rebuilt: its one argument is not what __init__ takes."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {code}")


class NotRebuiltError(Exception):
    """Its rebuilding raises."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _fail_to_rebuild, ()


class LockedError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class SilentError(Exception):
    """Cannot even be printed."""

    def __str__(self) -> NoReturn:
        raise ValueError("no words")

    __repr__ = __str__  # type: ignore[assignment]


def deep(depth: int = 1_000_000) -> list[object]:
    """Lists within lists."""
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


RESULTS: dict[str, Callable[[], object]] = {
    "unpicklable": Unpicklable,
    "lock": threading.Lock,
    "generator": lambda: (i for i in ()),
    "not rebuilt": NotRebuilt,
    "blocks when pickled": BlocksWhenPickled,
    "ends the process": EndsTheProcess,
    "deep": deep,
    "too large": lambda: bytes(300 << 20),
}


def return_bad(log: str, index: int, what: str) -> object:
    """A task that returns one of these."""
    around(log, index, lambda: None)
    return RESULTS[what]()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "two arguments": lambda: TwoArgumentError(5, "meant"),
    "lock": LockedError,
    "silent": SilentError,
    "not rebuilt": NotRebuiltError,
    "plain": lambda: ZeroDivisionError("meant"),
}


def raise_bad(log: str, index: int, what: str) -> NoReturn:
    """A task that raises one of these."""
    around(log, index, lambda: None)
    raise ERRORS[what]()


def take(log: str, index: int, value: object) -> str:
    """A task that takes a bad argument."""
    return around(log, index, lambda: value)
