"""Run as __main__ by test_code: objects of classes with __slots__ survive a round trip."""

import abc
import weakref
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tests.serialize.echo_slot import call_all_in_slot, call_in_slot

T = TypeVar("T")


class Plain:
    __slots__ = ("a",)


class Child(Plain):
    __slots__ = ("b",)


class Open(Plain):
    pass


class WithDict:
    __slots__ = ("__dict__", "a")


class Weak:
    __slots__ = ("__weakref__", "a")


class OnlyWeak(Plain):
    __slots__ = "__weakref__"  # noqa: PLC0205 -- Python allows it


class Private:
    __slots__ = ("__a",)

    def __init__(self):
        self.__a = 7

    def get(self):
        return self.__a


class _OnePrivate:
    __slots__ = "__a"  # noqa: PLC0205 -- Python allows it
    get = Private.get

    def __init__(self):
        self.__a = 7

    def value(self):
        return self.__a


class Text:
    __slots__ = "a"  # noqa: PLC0205 -- Python allows it


class Documented:
    __slots__ = {"a": "what it is"}


class Abstract(abc.ABC):
    __slots__ = ()

    @abc.abstractmethod
    def double(self): ...


class Concrete(Abstract):
    __slots__ = ("a",)

    def double(self):
        return self.a * 2


class Empty(Plain):
    __slots__ = ()


class Watched:
    __slots__ = ("a",)


def _watch(slot):
    def get(self):
        return slot.__get__(self)

    return property(get, slot.__set__)


Watched.a = _watch(Watched.a)


class Box(Generic[T]):
    __slots__ = ("a",)


class Pair(NamedTuple):
    left: int
    right: int = 2


class Own:
    __slots__ = ("a",)

    def __getstate__(self):
        return self.a

    def __setstate__(self, state):
        self.a = state


class UsedUp:
    __slots__ = iter(["b", "__c"])

    def __getstate__(self):
        return self.b

    def __setstate__(self, state):
        self.b = state


@dataclass(slots=True)
class Point:
    x: int = 1
    rest: list = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Frozen:
    x: int = 1
    z: int = 3


@dataclass(slots=True)
class Deep(Point):
    y: int = 2


@dataclass(slots=True, weakref_slot=True)
class Referred:
    a: int = 1


def filled(cls):
    made = cls()
    for name in "abc":
        try:
            setattr(made, name, 1)
        except AttributeError:
            continue
    return made


def looked_at(given):
    kind = type(given)
    slots = kind.__dict__.get("__slots__", "none")
    return given, (hasattr(given, "__dict__"), slots if isinstance(slots, (str, tuple, dict)) else "used up")


def refuses_more(given):
    try:
        given.more = 1
    except AttributeError:
        return weakref.ref(given)() is given
    return False


def made_there():
    return Deep(5, [1], 6), Point(), Private()


def same_slots(cls, there):
    here = cls.__dict__.get("__slots__", "none")
    return there == here if isinstance(here, (str, tuple, dict)) else there == ("_UsedUp__c", "b")


CLASSES = [Plain, Child, Open, WithDict, Weak, OnlyWeak, Text, Documented, UsedUp, Concrete, Empty]
CLASSES += [Watched, Box, Own, Referred]


def main():
    given = [filled(cls) for cls in CLASSES]
    outcomes = call_all_in_slot([(looked_at, [each], {}) for each in given])
    for cls, one, (back, (has_dict, slots)) in zip(CLASSES, given, outcomes, strict=True):
        assert type(back) is cls, cls
        assert [getattr(back, n, None) for n in "abc"] == [getattr(one, n, None) for n in "abc"], cls
        assert has_dict == hasattr(one, "__dict__"), cls
        assert same_slots(cls, slots), (cls, slots)
    for one in (Point(4, [1]), Frozen(5), Deep(1, [2], 3), Pair(1)):
        back, (has_dict, _) = call_in_slot(looked_at, one)
        assert (type(back), back, has_dict) == (type(one), one, False)
    assert call_in_slot(lambda given: (given, given.get()), Private())[1] == 7
    back, seen = call_in_slot(lambda given: (given, given.value()), _OnePrivate())
    assert isinstance(back, _OnePrivate)
    assert back.value() == seen == 7
    assert call_in_slot(lambda given: given.double(), filled(Concrete)) == 2
    assert call_in_slot(refuses_more, Referred())
    deep, point, private = call_in_slot(made_there)
    assert (deep, point) == (Deep(5, [1], 6), Point())
    assert isinstance(deep, Point)
    assert private.get() == 7
    print("all held")  # noqa: T201


if __name__ == "__main__":
    main()
