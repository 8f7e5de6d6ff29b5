import array
import collections
import contextlib
import decimal
import enum
import functools
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskmesh.errors import SerializationError, TaskTimeout, TooLarge
from taskmesh.serialize import payload
from taskmesh.serialize.code import FunctionCodec
from taskmesh.serialize.explanation import cannot_rebuild
from taskmesh.serialize.payload import dumps_filter, loads_filter
from taskmesh.shm.blob import MAP_FROM, MEMFD_FROM, SMALL, Blob


@dataclass
class Point:
    x: int
    y: int


class RaisesInReduce:
    def __reduce__(self):
        raise ValueError("no way out")


class RaisesInGetstate:
    def __getstate__(self):
        raise ValueError("no state")


class RaisesInSetstate:
    def __init__(self, error):
        self.error = error

    def __setstate__(self, state):
        raise state["error"]


def call(*args, **kwargs):
    return payload.loads_call(payload.dumps_call(args, kwargs, where="work"))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(args=st.lists(plain_values, max_size=3), kwargs=st.dictionaries(st.text(), plain_values, max_size=2))
@settings(max_examples=50)
def test_plain_data_comes_back_equal(args, kwargs):
    assert call(*args, **kwargs) == (tuple(args), kwargs)
    assert payload.loads(payload.dumps(args)) == args


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2),
        decimal.Decimal("1.5"),
        uuid.UUID(int=5),
        collections.OrderedDict(a=1),
        array.array("d", [1.0, 2.0]),
        len,
        Point,
        np.float64(1.5),
        range(3),
        {1, 2},
        bytearray(b"abc"),
        1j,
    ],
    ids=repr,
)
def test_usual_values_come_back_equal(value):
    assert call(value) == ((value,), {})
    assert payload.loads(payload.dumps(value)) == value


def test_lambdas_and_nested_functions_travel_as_arguments():
    step = 3

    (twice, add), _ = call(lambda x: 2 * x, lambda x: x + step)

    assert twice(4) == 8
    assert add(4) == 7


def test_small_payloads_are_bytes_and_larger_ones_blobs():
    assert type(payload.dumps(b"x" * (SMALL - 100))) is bytes
    assert type(payload.dumps("x" * (SMALL + 1))) is Blob
    assert type(payload.dumps_call((1,), {}, where="f")) is bytes
    assert payload.dumps(b"x" * SMALL).fd is None, "no file below MEMFD_FROM"
    assert payload.dumps(b"x" * MEMFD_FROM).fd is not None
    assert payload.dumps(b"x" * MEMFD_FROM, memfd=False).fd is None


@pytest.mark.parametrize("size", [SMALL, MEMFD_FROM, MAP_FROM + 1])
@pytest.mark.parametrize("memfd", [True, False])
def test_large_bytes_travel_beside_the_pickle_and_come_back_as_bytes(size, memfd):
    data = os.urandom(1000) * (size // 1000 + 1)

    result = payload.dumps(data, memfd=memfd)
    (first, small), kwargs = payload.loads_call(
        payload.dumps_call((data, b"s"), {"key": data}, where="f", memfd=memfd)
    )

    assert len(result.layout) == 2
    assert len(bytes(result.parts[0])) < 100
    assert (type(payload.loads(result)), payload.loads(result)) == (bytes, data)
    assert (type(first), first, small) == (bytes, data, b"s")
    assert (type(kwargs["key"]), kwargs["key"]) == (bytes, data)


@pytest.mark.parametrize("size", [10, SMALL, MEMFD_FROM, MAP_FROM + 64])
@pytest.mark.parametrize("memfd", [True, False])
def test_arrays_come_back_writable_and_of_their_own(size, memfd):
    source = np.arange(size, dtype="u1")

    sent = payload.dumps({"array": source}, memfd=memfd)
    source[0] = 99
    first, second = payload.loads(sent)["array"], payload.loads(sent)["array"]
    first[1] = 77

    assert first.flags.writeable
    assert (first[0], second[0], second[1]) == (0, 0, 1)
    assert np.array_equal(second[2:], np.arange(size, dtype="u1")[2:])


def test_read_only_and_fortran_arrays_keep_what_they_are():
    frozen = np.zeros(SMALL, dtype="u1")
    frozen.flags.writeable = False
    columns = np.asfortranarray(np.arange(20_000.0).reshape(100, 200))
    every_other = np.arange(100_000.0)[::2]

    (one, two, three), _ = call(frozen, columns, every_other)

    assert not one.flags.writeable
    assert two.flags.f_contiguous
    assert np.array_equal(two, columns)
    assert np.array_equal(three, every_other)


def test_an_argument_that_is_changed_after_submit_is_not_seen():
    text = bytearray(b"a" * MEMFD_FROM)

    sent = payload.dumps_call((text, memoryview(text).toreadonly()), {}, where="f")
    text[0] = ord("b")
    text.extend(b"more")

    (copy, view), _ = payload.loads_call(sent)
    assert copy == b"a" * MEMFD_FROM
    assert bytes(view) == b"a" * MEMFD_FROM


def test_an_error_names_the_argument_its_type_and_the_cure():
    lock = threading.Lock()

    with pytest.raises(SerializationError, match=r"argument 2 of work \(type _thread\.lock\).*Make the lock"):
        call(1, lock)
    with pytest.raises(SerializationError, match=r"argument 'guard' of work \(type _thread\.lock\)"):
        call(1, guard=lock)
    with pytest.raises(SerializationError, match=r"argument 1 of work \(type generator\).*Pass a list"):
        call(x for x in "abc")
    with pytest.raises(SerializationError, match=r"the result of f \(type _thread\.lock\) cannot be pickled"):
        payload.dumps(lock, what="the result of f")


@pytest.mark.parametrize("mode", ["r", "w", "r+", "rb"])
def test_open_files_are_refused_with_the_cure(mode, tmp_path):
    path = tmp_path / "generator, recursion, socket, thread.lock"
    path.write_text("content")

    with path.open(mode) as file, pytest.raises(SerializationError, match="Pass the file's path"):
        call([file])


def test_an_unbuffered_file_is_refused_with_the_cure():
    with (
        open(os.devnull, "rb", buffering=0) as file,
        pytest.raises(SerializationError, match="Pass the file's path"),
    ):
        call(file)


def test_the_cure_for_locks_is_not_told_of_what_is_merely_called_so():
    class Clock:
        def __reduce__(self):
            raise TypeError("cannot pickle 'Clock' object")

    with pytest.raises(SerializationError, match="Pass plain data"):
        call(Clock())


def test_a_temporary_file_is_not_deleted_by_its_copy():
    with tempfile.NamedTemporaryFile("w+") as file:
        with pytest.raises(SerializationError, match="Pass the file's path"):
            call(file)
        gc.collect()

        assert os.path.exists(file.name)


@pytest.mark.usefixtures("processes")
def test_streams_are_those_of_the_process_that_they_come_to():
    code = (
        "import sys; from taskmesh.serialize import payload; "
        "assert payload.loads(payload.dumps([sys.stdout, sys.stderr])) == [sys.stdout, sys.stderr]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.parametrize("bad", [RaisesInReduce(), RaisesInGetstate()], ids=["reduce", "getstate"])
def test_values_whose_own_code_raises_are_named(bad):
    with pytest.raises(
        SerializationError, match=r"argument 1 of work .*no (way out|state).*\. Pass plain data"
    ):
        call(bad)
    with pytest.raises(SerializationError, match=r"the result .*\. Pass plain data"):
        payload.dumps(bad)


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), RecursionError(), GeneratorExit()])
def test_values_whose_unpickling_raises_are_typed_errors(error):
    sent = payload.dumps(RaisesInSetstate(error))

    with pytest.raises(
        SerializationError, match=r"an argument of work cannot be rebuilt.*Its class's own code failed"
    ) as caught:
        payload.loads(sent, what="an argument of work")
    assert type(caught.value.__cause__) is type(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TaskTimeout("soft limit")], ids=["ctrl-c", "timeout"])
def test_what_signals_raise_passes_through_unchanged(error):
    class Interrupted:
        """The signal strikes once: a second attempt at pickling would succeed and hide it."""

        def __init__(self):
            self.strikes = [error]

        def __reduce__(self):
            if self.strikes:
                raise self.strikes.pop()
            return int, ()

    with pytest.raises(type(error)):
        payload.dumps(Interrupted())
    with pytest.raises(type(error)):
        payload.dumps_call((Interrupted(),), {}, where="f")
    with pytest.raises(type(error)):
        payload.dumps_chunk([(Interrupted(),)])
    with pytest.raises(type(error)):
        payload.dumps_chunk_result([Interrupted()], {})
    with pytest.raises(type(error)):
        payload.loads(payload.dumps(RaisesInSetstate(error)))


@pytest.mark.parametrize(
    ("make", "levels"),
    [
        (lambda inner: [inner], 1_000_000),
        (lambda inner: {"k": inner}, 100_000),
        (lambda inner: Point(inner, 0), 100_000),
    ],
    ids=["lists", "dicts", "instances"],
)
def test_a_million_levels_are_an_error_and_no_crash(make, levels):
    deep = []
    for _ in range(levels):
        deep = make(deep)

    with pytest.raises(SerializationError, match=r"argument 1 of work.*nested too deeply"):
        call(deep)
    with pytest.raises(SerializationError, match="nested too deeply"):
        payload.dumps(deep)
    while isinstance(deep, (Point, dict)):  # instances are freed by recursion: take them apart by hand
        deep = deep.x if isinstance(deep, Point) else deep.get("k")


@given(st.binary(max_size=200))
@pytest.mark.parametrize("loads", [payload.loads, payload.loads_call])
def test_bytes_that_are_no_payload_are_a_typed_error_or_a_value(loads, data):
    with contextlib.suppress(SerializationError):
        loads(data)


scalar_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
)


@given(args=st.lists(scalar_values, max_size=20))
@example(args=[2**64, -(2**63) - 1, 2**64 - 1, -(2**63)])
@example(args=["\ud800", "x" * 2 * SMALL])
@example(args=[-0.0, float("inf"), float("nan"), True, 1, 1.0])
def test_scalars_come_back_with_their_types(args):
    (came, kwargs), results = call(*args), [payload.loads(payload.dumps(arg)) for arg in args]

    assert kwargs == {}
    for values in (came, results):
        assert [(type(value), repr(value)) for value in values] == [(type(arg), repr(arg)) for arg in args]


class Celsius(float):
    """More than a number."""


class Colour(enum.IntEnum):
    """More than a number, too."""

    RED = 1


@pytest.mark.parametrize("value", [Celsius(20.5), Colour.RED, np.float64(1.5), np.int64(1), np.str_("a")])
def test_what_only_resembles_a_scalar_keeps_its_type(value):
    ((argument,), _), result = call(value), payload.loads(payload.dumps(value))

    assert (type(argument), argument) == (type(value), value)
    assert (type(result), result) == (type(value), value)


def test_a_missing_module_is_named_with_its_cure():
    sent = pickle.dumps(Point(1, 2), 5).replace(__name__.encode(), b"x" * len(__name__))

    with pytest.raises(SerializationError, match=r"No module named.*Install or ship the module 'xxx"):
        payload.loads(sent)


def test_code_of_another_python_is_refused_before_it_is_run():
    sent = payload.dumps_call((lambda: 1,), {}, where="f")
    assert sent[-2] == sys.version_info[1]

    other = sent[:-2] + bytes((sys.version_info[1] + 1,)) + sent[-1:]

    with pytest.raises(
        SerializationError, match=r"made by Python 3\.\d+, and this is.*same Python minor version"
    ):
        payload.loads(other)


def test_texts_that_mention_main_do_not_depend_on_the_python_version():
    source = 'if __name__ == "__main__":\n    main()\n'
    for value in ([source], ["__main__"], {"__main__": 1}):
        sent = payload.dumps(value)

        assert payload.loads(sent) == value
        assert sent.endswith(b"."), "no mark: there is no code inside"


def test_size_limits_name_the_largest_argument():
    args, kwargs = (b"x" * 500, 1), {"table": b"y" * 90_000}
    sent = payload.dumps_call(args, kwargs, where="work")

    payload.check_size(sent, len(sent), "the call of work", args, kwargs)
    payload.check_size(sent, 0, "the call of work", args, kwargs)
    with pytest.raises(
        TooLarge,
        match=r"of work takes 90,\d+ bytes \(argument .table. alone takes 90,\d+\), above max_payload = 1,0",
    ):
        payload.check_size(sent, 1000, "the call of work", args, kwargs)
    with pytest.raises(TooLarge, match=r"the result of work takes .* Pass a path"):
        payload.check_size(payload.dumps(b"x" * 2000), 1000, "the result of work")


def test_retry_filters_travel():
    assert dumps_filter((Exception,), ()) == b""
    assert loads_filter(b"") == ((Exception,), ())

    sent = dumps_filter((ValueError, OSError), (FileNotFoundError,))

    assert loads_filter(sent) == ((ValueError, OSError), (FileNotFoundError,))
    with pytest.raises(SerializationError, match="a class in Retry"):
        loads_filter(b"\x80nonsense")


def test_no_descriptor_is_left_when_large_values_fail_to_pickle():
    class Bad:
        def __reduce__(self):
            raise ValueError("late")

    with pytest.raises(SerializationError, match=r"argument 2 .*late"):
        call(np.zeros(MEMFD_FROM), Bad())


@pytest.mark.parametrize(
    "send",
    [
        lambda end: payload.dumps_call((1, [end]), {}, where="work"),
        payload.dumps,
        lambda end: FunctionCodec().encode(functools.partial(print, end)),
    ],
    ids=["argument", "result", "callable"],
)
def test_an_end_of_a_pipe_is_refused_with_the_cure(send):
    for end in multiprocessing.Pipe():
        with (
            end,
            pytest.raises(SerializationError, match=r"Connection .*Pass a Queue of multiprocessing\.Ma"),
        ):
            send(end)


def test_a_proxy_of_another_program_s_manager_says_what_it_is():
    error = multiprocessing.AuthenticationError("digest sent was rejected")

    assert "use sinks, promises and limits of the mesh" in cannot_rebuild("an argument", error)


@pytest.mark.parametrize("size", [0, SMALL, MEMFD_FROM])
@pytest.mark.parametrize(
    "load", [payload.loads, payload.loads_plain, payload.loads_call, payload.loads_chunk]
)
def test_somebody_s_bytes_that_a_task_returned_as_they_are_are_never_unpickled(size, load, tmp_path):
    """A hub that was taken over cannot have them taken for a value: the signer said that they are bytes."""

    class Intruder:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    data = pickle.dumps((Intruder(), bytes(size)), 5)
    encoded = payload.dumps_encoded(data)

    assert payload.loads_encoded(encoded) == data
    with pytest.raises(SerializationError):
        load(encoded)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("value", [1, [1], bytes(MEMFD_FROM)])
def test_what_is_no_encoded_bytes_is_not_taken_for_such(value):
    with pytest.raises(SerializationError, match="no bytes with a codec"):
        payload.loads_encoded(payload.dumps(value))
