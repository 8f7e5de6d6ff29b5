"""FunctionCodec: what it remembers, and what makes it look again."""

import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.errors import SerializationError
from taskmesh.serialize.code import FunctionCodec, dump_function, load_function


def triple(x):
    return 3 * x


class Tool:
    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        return x + self.size

    def method(self, x):
        return x * self.size


class Decorated:
    """What taskmesh's decorator returns looks like this to wire: of taskmesh, with __wrapped__."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)


Decorated.__module__ = "taskmesh.function"


@Decorated
def quadruple(x):
    return 4 * x


def test_the_codec_gives_the_same_bytes_while_nothing_changes():
    codec = FunctionCodec()
    scale, options = 2, {"a": [1, 2]}

    def by_value(x):
        return triple(x) * scale + len(options)

    for fn in (triple, quadruple, by_value, len):
        assert codec.encode(fn) is codec.encode(fn)
    assert load_function(codec.encode(by_value))(1) == 7


def test_the_codec_sees_every_kind_of_change():
    codec = FunctionCodec()
    cell, table, tool = 1, {"a": [1]}, Tool(1)

    def inner():
        return cell

    def fn(default=1, *, keyword=1):
        return cell, table["a"][0], tool.size, inner(), default, keyword, FLAG  # noqa: F821

    def result():
        return load_function(codec.encode(fn))()

    globals()["FLAG"] = 1
    assert result() == (1, 1, 1, 1, 1, 1, 1)
    cell = 2
    assert result() == (2, 1, 1, 2, 1, 1, 1)
    table["a"][0] = 3
    assert result() == (2, 3, 1, 2, 1, 1, 1)
    tool.size = 4
    assert result() == (2, 3, 4, 2, 1, 1, 1)
    fn.__defaults__ = (5,)
    assert result() == (2, 3, 4, 2, 5, 1, 1)
    fn.__kwdefaults__["keyword"] = 6
    assert result() == (2, 3, 4, 2, 5, 6, 1)
    globals()["FLAG"] = 7
    assert result() == (2, 3, 4, 2, 5, 6, 7)
    del globals()["FLAG"]


def test_the_codec_sees_a_name_that_is_rebound_or_replaced(monkeypatch):
    codec = FunctionCodec()
    assert codec.encode(triple)[:1] == b"R"
    original = triple

    monkeypatch.setitem(globals(), "triple", lambda x: 0)

    assert load_function(codec.encode(original))(2) == 6
    assert codec.encode(triple) != codec.encode(original)


def test_the_codec_keeps_nothing_alive():
    codec = FunctionCodec()

    class Payload:
        pass

    big = Payload()

    def recursive(n):
        return recursive(n - 1) if n else type(big)  # noqa: F821 -- deleted below

    codec.encode(recursive)
    gone = [weakref.ref(recursive), weakref.ref(big), weakref.ref(Payload)]
    del recursive, big, Payload
    gc.collect()

    assert [ref() for ref in gone] == [None] * 3
    assert codec._known == {}


def test_callables_without_an_identity_are_pickled_each_time():
    codec = FunctionCodec()
    tool = Tool(1)

    assert load_function(codec.encode(tool.method))(5) == 5
    tool.size = 2
    assert load_function(codec.encode(tool.method))(5) == 10
    assert load_function(codec.encode(tool))(5) == 7
    assert codec.encode(str.upper) == codec.encode(str.upper)


def test_a_failure_does_not_stick_to_the_codec():
    codec = FunctionCodec()
    guard = threading.Lock()

    def fn():
        return guard

    with pytest.raises(SerializationError):
        codec.encode(fn)
    guard = 3

    assert load_function(codec.encode(fn))() == 3


def test_the_codec_serves_many_threads():
    codec = FunctionCodec()

    def work(i):
        local = lambda: i  # noqa: E731
        return load_function(codec.encode(local))() == i and codec.encode(triple) == dump_function(triple)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(300)))
    gc.collect()
    assert len(codec._known) == 1
