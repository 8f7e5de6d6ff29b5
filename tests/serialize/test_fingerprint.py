"""Changes to what a function by value refers to; functions here are nested, so they travel by value."""

import collections
import enum
import functools
import gc
import logging
import re
import types
import weakref
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath

import pytest

from taskmesh.serialize.fingerprint import Fingerprint, global_names, references

LOG = logging.getLogger(__name__)


class Color(enum.Enum):
    RED = 1


def with_cell(value):
    """A function that closes over `value`, and a way to change the cell."""
    cell = types.CellType(value)
    fn = types.FunctionType((lambda: cell).__code__, globals(), closure=(cell,))
    return fn, cell


def noted_tuple():
    class Noted(tuple):  # noqa: SLOT001
        pass

    noted = Noted((1, 2))
    noted.note = 1
    return noted


@dataclass(frozen=True)
class Frozen:
    inner: object


Named = collections.namedtuple("Named", "left right")

STABLE = [
    *(1, 1.5, "text", b"bytes", None, True, 1j, ..., (1, ("a", 2)), frozenset({1}), range(3)),
    *(Path("a"), PurePosixPath("b")),
    *(Decimal(1), re.compile("x"), Color.RED, LOG, re, len, str.upper, Color, Named(1, "b")),
    *([1, [2]], {"a": {1: (2,)}}, {1, 2}, bytearray(b"x"), Frozen((1, [2])), functools.partial(len, [1])),
    *(references, ("nested", references), collections.OrderedDict),
]


def name_of(value):
    """Name a case without an address: both workers of xdist have to find the same names."""
    return value.__name__ if isinstance(value, types.FunctionType) else repr(value)[:30]


@pytest.mark.parametrize("value", STABLE, ids=name_of)
def test_an_unchanged_value_is_seen_without_pickling(value):
    fn, cell = with_cell(value)
    print_ = Fingerprint(fn)

    assert not print_.volatile
    assert print_.unchanged()
    cell.cell_contents = object()
    assert not print_.unchanged()


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda value: value[1].append(3)),
        ({"a": [1]}, lambda value: value["a"].clear()),
        ({1, 2}, lambda value: value.discard(1)),
        (bytearray(b"x"), lambda value: value.extend(b"y")),
        (([1], 2), lambda value: value[0].append(2)),
        (Frozen([1]), lambda value: value.inner.append(2)),
        (functools.partial(len, [1]), lambda value: value.args[0].append(2)),
        ([1], lambda value: value.__setitem__(0, True)),
        ([0.0], lambda value: value.__setitem__(0, -0.0)),
    ],
    ids=name_of,
)
def test_a_change_in_place_is_seen(value, change):
    fn, _ = with_cell(value)
    print_ = Fingerprint(fn)
    assert print_.unchanged()

    change(value)

    assert not print_.unchanged()


@pytest.mark.parametrize(
    "value",
    [
        types.SimpleNamespace(a=1),
        [types.SimpleNamespace(a=1)],
        {1: object()},
        [1].append,
        collections.Counter("a"),
        types.ModuleType("made_by_hand"),
        noted_tuple(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_change_unseen_is_volatile(value):
    fn, _ = with_cell(value)

    print_ = Fingerprint(fn)

    assert print_.volatile
    assert not print_.unchanged()


def test_an_instance_in_a_closure_is_volatile_though_it_is_behind_a_function():
    state = types.SimpleNamespace(n=1)

    def inner():
        return state

    def outer():
        return inner()

    assert Fingerprint(outer).volatile


def test_containers_that_hold_themselves_end():
    loop = []
    loop.append(loop)
    fn, _ = with_cell(loop)

    assert Fingerprint(fn).volatile


def test_functions_that_call_each_other_are_followed_once():
    limit = 3

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != limit and even(n - 1)

    print_ = Fingerprint(even)
    assert print_.unchanged()
    limit = 4
    assert not print_.unchanged()


def test_a_class_by_value_is_followed_into_its_methods_and_attributes():
    rate = 1

    class Local:
        __slots__ = ("a",)
        table = [1]  # noqa: RUF012

        @property
        def double(self):
            return 2 * rate

        @staticmethod
        def static():
            return rate

        @functools.cached_property
        def cached(self):
            return rate

    class Child(Local):
        pass

    def uses():
        return Child

    print_ = Fingerprint(uses)
    assert not print_.volatile
    assert print_.unchanged()
    rate = 2
    assert not print_.unchanged()

    print_ = Fingerprint(uses)
    Local.table.append(2)
    assert not print_.unchanged()

    print_ = Fingerprint(uses)
    Local.static = staticmethod(lambda: 0)
    assert not print_.unchanged()


def local_classes():
    """Classes by value with a metaclass, a descriptor and a default factory; and ways to change these."""
    rate = 1

    def set_rate():
        nonlocal rate
        rate += 1

    class Meta(type):
        limit = 1

    class Default:
        def __init__(self, value):
            self.value = value

        def __get__(self, instance, owner=None):
            return self.value * Default.scale

        scale = 1

    class Local(metaclass=Meta):
        __settings__ = {"a": 1}  # noqa: RUF012
        number = Default(3)

    @dataclass
    class Made:
        x: int = field(default_factory=lambda: rate)

    changes = {
        "metaclass": lambda: setattr(Meta, "limit", 2),
        "state of a descriptor": lambda: setattr(vars(Local)["number"], "value", 4),
        "class of a descriptor": lambda: setattr(Default, "scale", 2),
        "dunder attribute": lambda: Local.__settings__.update(b=2),
        "default factory": set_rate,
        "attribute that it did not have": lambda: setattr(Local, "more", 1),
        "method that it did not have": lambda: setattr(Made, "more", lambda self: 1),
        "attribute that its metaclass did not have": lambda: setattr(Meta, "more", 1),
    }
    return (Local, Made), changes


@pytest.mark.parametrize("change", local_classes()[1])
def test_what_stands_behind_a_class_by_value_is_watched(change):
    classes, changes = local_classes()

    def uses():
        return classes

    print_ = Fingerprint(uses)
    assert print_.unchanged()
    changes[change]()

    assert not print_.unchanged()


def test_a_class_of_many_members_is_seen_to_be_unchanged():
    many = type("Many", (), {f"a{i}": i % 100 for i in range(1000)})
    many.__qualname__ = "nowhere.Many"

    def uses():
        return many

    print_ = Fingerprint(uses)

    assert print_.unchanged()
    many.more = 1
    assert not print_.unchanged()


def test_dataclasses_and_enums_by_value_are_not_volatile():
    @dataclass
    class Point:
        x: int = 0
        y: str = "a"

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    def uses():
        return Point(1), Level.LOW

    print_ = Fingerprint(uses)

    assert not print_.volatile
    assert print_.unchanged()


def test_code_defaults_and_attributes_are_watched():
    def fn(a=1, *, b=2):
        return a + b

    print_ = Fingerprint(fn)
    fn.note = 1
    assert not print_.unchanged()

    print_ = Fingerprint(fn)
    fn.__code__ = (lambda a=1, *, b=2: a - b).__code__
    assert not print_.unchanged()


def test_a_global_that_comes_to_exist_is_seen():
    scope = {"__name__": "elsewhere"}
    exec("def fn(): return later", scope)  # noqa: S102
    print_ = Fingerprint(scope["fn"])
    assert print_.unchanged()

    scope["later"] = 1

    assert not print_.unchanged()


def test_names_of_nested_code_count_and_attributes_do_not():
    def fn(x):
        return [re.compile(y).pattern for y in x if any(LOG for _ in y)]

    assert set(global_names(fn.__code__)) == {"re", "any", "LOG"}


def test_a_footprint_keeps_nothing_alive():
    class Held:
        pass

    held = Held()
    fn, _ = with_cell((held, [1], lambda: held))  # noqa: F821 -- deleted below
    print_ = Fingerprint(fn)
    gone = [weakref.ref(fn), weakref.ref(held)]

    del fn, held, _
    gc.collect()

    assert [ref() for ref in gone] == [None, None]
    assert not print_.unchanged()
