"""Values and errors that do not travel well."""

import dataclasses
import threading
import weakref
from typing import Any, ClassVar


class Trouble(Exception):
    pass


class Sticky(Exception):
    def __init__(self, lock: Any, text: str) -> None:
        super().__init__(text)
        self.lock = lock

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken(Exception):
    """None of its attributes is to be had."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def fail_broken(text: str) -> None:
    raise Broken(text)


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


class Unbuildable:
    """Pickles, and cannot be rebuilt."""

    def __reduce__(self) -> Any:
        return _refuse, ()


class Raises:
    def __reduce__(self) -> Any:
        raise ValueError("never")


def _refuse() -> None:
    raise RuntimeError("Unbuildable cannot be rebuilt")


def fail_with_note(text: str) -> None:
    error = Trouble(text)
    error.add_note("remember")
    raise error


def fail_frozen(code: int) -> None:
    raise Frozen(code)


def fail_unpicklably() -> None:
    raise Sticky(threading.Lock(), "stuck")


def fail_oddly(how: str) -> None:
    if how == "speechless":
        raise Odd
    raise type("Nameless", (Exception,), {"__module__": None, "__qualname__": "Nameless"})("x")


def make(what: str) -> Any:
    if what == "lock":
        return threading.Lock()
    if what == "local":
        return (item for item in ())
    if what == "raises":
        return Raises()
    if what == "deep":
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested
    return what
