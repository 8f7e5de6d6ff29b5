"""Nasty objects: what cannot be pickled, rebuilt, printed or asked, blocks, or is too deep or too large."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn


def _fail_to_rebuild() -> NoReturn:
    raise LookupError("cannot be rebuilt")


def _block(*_: object) -> NoReturn:
    while True:
        threading.Event().wait()


# --- values -----------------------------------------------------------------------------------------------


class Unpicklable:
    """Its pickling raises."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("will not be pickled")


class NotRebuilt:
    """Pickles; its rebuilding raises."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _fail_to_rebuild, ()


class BlocksWhenPickled:
    """Takes for ever to pickle."""

    def __reduce__(self) -> NoReturn:
        _block()


class BlocksWhenRebuilt:
    """Takes for ever to rebuild."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _block, ()


class EndsTheProcess:
    """Ends the process that pickles it."""

    def __reduce__(self) -> NoReturn:
        os._exit(0)  # noqa: TID251  what the test is about


class Counted:
    """The process counts those that are there."""

    there: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.there.add(self)

    def __setstate__(self, state: Any) -> None:
        self.there.add(self)

    def __getstate__(self) -> Any:
        return "counted"


class Falsy:
    """A callable that says that it is false."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, value: Any) -> Any:
        return value


def deep(depth: int = 1_000_000) -> list[object]:
    """Lists within lists."""
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Callable[[], object]] = {
    "unpicklable": Unpicklable,
    "lock": threading.Lock,
    "generator": lambda: (i for i in ()),
    "not rebuilt": NotRebuilt,
    "blocks when pickled": BlocksWhenPickled,
    "ends the process": EndsTheProcess,
    "deep": deep,
    "too large": lambda: bytes(300 << 20),
    "plain": lambda: "plain",
}


def make(what: str) -> object:
    """Return one of these."""
    return VALUES[what]()


# --- errors -----------------------------------------------------------------------------------------------


class TwoArgumentError(Exception):
    """Pickles, but cannot be rebuilt: its one argument is not what __init__ takes."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {code}")


class NotRebuiltError(Exception):
    """Its rebuilding raises."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _fail_to_rebuild, ()


class UnpicklableError(Exception):
    """Its pickling raises."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("not this one")


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


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Forbids assignments."""

    code: int


class BrokenError(Exception):
    """None of its attributes is to be had."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(f"no {name}")


def _nameless() -> BaseException:
    kind: type[BaseException] = type("Nameless", (Exception,), {"__module__": None})
    return kind("x")


def _noted() -> BaseException:
    error = LookupError("meant")
    error.add_note("remember")
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "two arguments": lambda: TwoArgumentError(5, "meant"),
    "lock": LockedError,
    "unpicklable": lambda: UnpicklableError("stuck"),
    "silent": SilentError,
    "not rebuilt": NotRebuiltError,
    "plain": lambda: ZeroDivisionError("meant"),
    "noted": _noted,
    "frozen": lambda: FrozenError(3),
    "broken": lambda: BrokenError("meant"),
    "nameless": _nameless,
}


def fail(what: str) -> NoReturn:
    """Raise one of these."""
    raise ERRORS[what]()
