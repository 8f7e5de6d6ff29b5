"""Run as __main__ by test_code: what definitions of __main__ are annotated with goes to a slot and back."""

import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, NewType, ParamSpec, TypedDict, TypeVar, TypeVarTuple

from tests.serialize.echo_slot import call_in_slot

UserId = NewType("UserId", int)
P = ParamSpec("P")
R = TypeVar("R", bound="int | None")
Ts = TypeVarTuple("Ts")


def counted(fn: Callable[P, R]) -> Callable[P, R]:
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return fn(*args, **kwargs)

    return call


@counted
def user(number: int) -> UserId:
    return UserId(number)


def rest(first: int, *others: *Ts) -> tuple[*Ts]:
    return others


class Call(Generic[P, R]):
    def __init__(self, fn: Callable[P, R]) -> None:
        self.fn = fn


class Named(NamedTuple):
    size: int


class Typed(TypedDict):
    size: int


@dataclass
class Node:
    size: int
    after: "Node | None" = None


SINCE_3_12 = """
type Names = list[str]
type Tree = list[Tree] | int
type Pair[T] = tuple[T, T]
type Unknown = Missing

def first[T: (int, str)](pair: Pair[T]) -> T:
    return pair[0]

def called[**Q](*args: Q.args) -> Names:
    return args

def all_of[*Us](*args: *Us) -> Unknown:
    return args

def least[T: Missing, *Us](x: T, *others: *Us) -> T:
    return x

class Box[T]:
    def __init__(self, content: T) -> None:
        self.content = content

    def get(self) -> T:
        return self.content
"""

SINCE_3_13 = """
def kept[T = int, U: str = None](x: T) -> T:
    return x, T.__default__, U.__bound__, U.__default__
"""

SINCE_3_14 = """
def checked(x: Missing, y: int) -> list[Missing]:
    return [x, y]

@dataclass
class Link:
    size: int
    after: Link | None = None

class Plain:
    size: Missing

    def grown(self, by: Missing) -> Plain:
        self.size = by
        return self

class Slotted:
    __slots__ = ("size",)
    size: int
"""


def of_every_python():
    assert call_in_slot(user, 3) == 3
    assert call_in_slot(lambda: UserId) is UserId, "the one of this process"
    assert call_in_slot(lambda: (UserId.__supertype__, UserId.__module__)) == (int, "__main__")
    assert call_in_slot(rest, 1, 2) == (2,)
    assert call_in_slot(lambda: typing.AnyStr) is typing.AnyStr
    assert call_in_slot(lambda: R) is R
    assert call_in_slot(lambda call: call.fn, Call(5)) == 5
    assert call_in_slot(lambda: (P, Ts, Call[P, R])) == (P, Ts, Call[P, R])
    assert call_in_slot(lambda variable: (variable.__name__, variable.__module__), P) == ("P", "__main__")
    hints = call_in_slot(lambda *classes: list(map(typing.get_type_hints, classes)), Named, Typed)
    assert hints == [{"size": int}, {"size": int}]
    assert call_in_slot(lambda node: node.after, Node(1, Node(2))) == Node(2)
    assert call_in_slot(lambda: typing.get_type_hints(rest)["first"]) is int


def of_python_3_12():
    assert call_in_slot(first, (1, 2)) == 1  # noqa: F821
    assert call_in_slot(lambda: first.__type_params__[0].__constraints__) == (int, str)  # noqa: F821
    assert call_in_slot(called, 1, 2) == call_in_slot(all_of, 1, 2) == (1, 2)  # noqa: F821
    assert call_in_slot(least, 1, 2) == 1  # noqa: F821
    assert call_in_slot(lambda box: box.get(), Box(4)) == 4  # noqa: F821
    assert call_in_slot(lambda: Names.__value__) == list[str]  # noqa: F821
    assert call_in_slot(lambda: Tree.__value__.__args__[0].__args__[0] is Tree)  # noqa: F821
    assert call_in_slot(lambda: Pair[int].__value__.__args__ == Pair.__type_params__ * 2)  # noqa: F821
    assert call_in_slot(told_of, Unknown) == "what the type alias Unknown stands for"  # noqa: F821


def of_python_3_13():
    assert call_in_slot(kept, 1) == (1, int, str, None)  # noqa: F821


def told_of(alias):
    try:
        return alias.__value__
    except NameError as error:
        return str(error).partition(" could not")[0]


def of_python_3_14():
    assert call_in_slot(checked, 1, 2) == [1, 2]  # noqa: F821
    texts = {"x": "Missing", "y": "int", "return": "list[Missing]"}
    assert call_in_slot(lambda: checked.__annotations__) == texts  # noqa: F821
    link = call_in_slot(lambda link: link.after, Link(1, Link(2)))  # noqa: F821
    assert link == Link(2)  # noqa: F821
    assert call_in_slot(lambda: Link.__annotations__) == {"size": int, "after": Link | None}  # noqa: F821
    assert call_in_slot(lambda plain: plain.grown(3).size, Plain()) == 3  # noqa: F821
    assert call_in_slot(lambda: Plain.__annotations__) == {"size": "Missing"}  # noqa: F821
    assert call_in_slot(lambda: Slotted.__annotations__) == {"size": int}  # noqa: F821
    assert call_in_slot(lambda: Slotted) is Slotted  # noqa: F821


def main():
    of_every_python()
    if sys.version_info >= (3, 12):
        exec(SINCE_3_12, globals())  # noqa: S102
        of_python_3_12()
    if sys.version_info >= (3, 13):
        exec(SINCE_3_13, globals())  # noqa: S102
        of_python_3_13()
    if sys.version_info >= (3, 14):
        exec(SINCE_3_14, globals())  # noqa: S102
        of_python_3_14()
    print("all held")  # noqa: T201


if __name__ == "__main__":
    main()
