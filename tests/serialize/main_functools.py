"""Run as __main__ by test_code: what functools makes of functions of __main__ goes to a slot and back."""

import functools
import pickle
import sys
import threading
import types

import pytest

from taskmesh import task
from taskmesh.errors import SerializationError
from taskmesh.serialize.code import FunctionCodec, load_function, register_by_value
from tests.serialize.echo_slot import call_all_in_slot, call_in_slot

FACTOR = 2


class Noted(functools.cached_property):
    def __init__(self, func):
        super().__init__(func)
        self.note = "a note"


class Square:
    def __init__(self):
        self.side = 2

    @functools.cached_property
    def area(self):
        """Its area."""
        return self.side**2

    @Noted
    def noted(self):
        return self.side * FACTOR

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def times(self, number):
        return self.side * number

    @functools.cached_property
    def scaled(self):
        return self.side * FACTOR

    @functools.cache  # noqa: B019
    def doubled(self, number):
        return number * FACTOR

    @functools.singledispatchmethod
    def shown(self, value):
        return f"any {value}"

    @shown.register
    def _(self, value: int):
        return f"int {value}"


@functools.cache
def slow(x):
    """Says what it does."""
    return x * FACTOR


@functools.lru_cache(maxsize=3, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


slow.note = "a note"


@task
@functools.lru_cache(maxsize=5)
def decorated(x):
    return x + 1


@functools.lru_cache
@task
def cached_task(x):
    return x + 2


@functools.singledispatch
def shown(value):
    return f"any {value}"


@shown.register
def _(value: int):
    return f"int {value}"


@shown.register
def _(value: list):
    return [shown(each) for each in value]


@shown.register(Square)
def _(value):
    return f"side {value.side}"


def uses_helper(x):
    return slow(x), slow.cache_info().misses, slow.__doc__, slow.__wrapped__(x), slow.note


def read_twice(square):
    area = square.area
    square.side = 100
    return area, square.area, type(square).area.__doc__, square


def read_noted(square):
    prop = vars(Square)["noted"]
    return square.noted, vars(square)["noted"], type(prop) is Noted, prop.note


def one_object(n):
    return fib.__wrapped__.__globals__["fib"] is fib, fib(n), fib.cache_parameters(), fib.__name__


def names_of_dispatcher():
    return (
        shown.__name__,
        shown.__doc__,
        shown.dispatch(bool).__name__,
        shown.dispatch(int) is shown.registry[int],
    )


def contradiction_is_named():
    @functools.wraps(slow.__wrapped__)
    @functools.cache
    def inner(x):
        return x

    with pytest.raises(SerializationError, match=r"Apply functools\.wraps below"):
        call_in_slot(inner, 1)


def culprit_is_named():
    lock = threading.Lock()

    @functools.cache
    def locked():
        return lock

    with pytest.raises(SerializationError, match="takes the variable 'lock' that it closes over"):
        call_in_slot(locked)


def changes_are_seen():
    global FACTOR, slow  # noqa: PLW0603
    codec = FunctionCodec()
    first = codec.encode(uses_helper)[0], codec.encode(slow)[0], codec.encode(shown)[0]
    assert (codec.encode(uses_helper)[0], codec.encode(slow)[0]) == first[:2]
    assert codec.encode(slow)[0] is first[1], "remembered, not pickled anew"
    assert codec.encode(shown)[0] == first[2]
    FACTOR = 10
    assert load_function(codec.encode(uses_helper)[0])(3)[0] == 30
    assert load_function(codec.encode(slow)[0])(3) == 30
    before, slow = slow, functools.lru_cache(maxsize=1)(fib.__wrapped__)
    slow.note = ""
    assert load_function(codec.encode(uses_helper)[0])(6)[0] == 8
    slow = before
    slow.note = "another"
    assert codec.encode(slow)[0] != first[1]
    assert load_function(codec.encode(slow)[0]).note == "another"
    slow.note = "a note"
    assert call_in_slot(lambda square: square.shown(1.5), Square()) == "any 1.5"
    Square.__dict__["shown"].register(float, lambda square, value: f"float {value}")
    assert call_in_slot(lambda square: square.shown(1.5), Square()) == "float 1.5"
    assert call_in_slot(lambda square: square.scaled, Square()) == 20
    FACTOR = 3
    assert call_in_slot(lambda square: (square.scaled, square.doubled(1)), Square()) == (6, 3)
    FACTOR = 4
    assert call_in_slot(lambda square: (square.scaled, square.doubled(1)), Square()) == (8, 4)
    shown.register(float, str)
    assert load_function(codec.encode(shown)[0])(1.5) == "1.5"


def registered_modules():
    module = types.ModuleType("drafted")
    sys.modules["drafted"] = module
    exec("import functools\n@functools.cache\ndef f(x): return x * 2", vars(module))  # noqa: S102
    assert b"lru_cache" not in FunctionCodec().encode(module.f)[0]
    register_by_value(module)
    assert call_in_slot(lambda x: module.f(x) + 1, 4) == 9
    assert call_in_slot(module.f, 4, check="'drafted' not in sys.modules") == 8


def main():
    assert call_in_slot(slow, 3) == 6
    assert call_in_slot(uses_helper, 3) == (6, 1, "Says what it does.", 6, "a note")
    assert call_in_slot(fib, 30) == 832040
    assert call_in_slot(one_object, 10) == (True, 55, {"maxsize": 3, "typed": True}, "fib")
    assert call_all_in_slot([(decorated, (1,), {}), (cached_task, (1,), {})]) == [2, 3]
    assert call_in_slot(lambda x: decorated(x) + 1, 1) == 3
    assert call_in_slot(Square.times, Square(), 4) == 8
    area, again, doc, square = call_in_slot(read_twice, Square())
    assert (area, again, doc) == (4, 4, "Its area.")
    assert isinstance(square, Square)
    assert (square.side, square.area) == (100, 4)
    assert call_in_slot(read_noted, Square()) == (4, 4, True, "a note")
    assert Square().area == 4
    assert call_in_slot(shown, ["a", 1, Square()]) == ["any a", "int 1", "side 2"]
    assert call_in_slot(lambda: shown(2)) == "int 2"
    assert call_in_slot(names_of_dispatcher) == ("shown", None, "_", True)
    assert [call_in_slot(lambda square, value: square.shown(value), Square(), v) for v in (1, "a")] == [
        "int 1",
        "any a",
    ]
    back = call_in_slot(lambda: functools.cache(lambda x: x + 1))
    assert back(1) == 2
    twice = call_in_slot(lambda given: (given[0] is given[1], given), [slow, slow])
    assert twice[0]
    assert pickle.loads(pickle.dumps(slow)) is slow
    contradiction_is_named()
    culprit_is_named()
    changes_are_seen()
    registered_modules()
    print("all held")  # noqa: T201


if __name__ == "__main__":
    main()
