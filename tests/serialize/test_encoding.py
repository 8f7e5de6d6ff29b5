import enum
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from taskmesh.serialize import encoding, values
from taskmesh.serialize.encoding import Definitions, decode, encode
from tests.serialize.echo_slot import call_in_slot


def definitions_of(data):
    """The bytes of the classes that came apart from a value."""
    assert data[-1] == 0xCC
    return data[int.from_bytes(data[-10:-2]) : -10]


def test_values_that_anyone_can_import_are_plain_pickles():
    data = encode({"a": [1, "__main__"]}, None)

    assert pickle.loads(data) == {"a": [1, "__main__"]}
    assert data[-1:] == b"."


def test_values_with_functions_are_marked_with_the_python_that_made_them():
    data = encode(lambda: 5, None)

    assert data[-2:] == bytes((sys.version_info[1], 0xCB))
    assert decode(data)() == 5


def test_classes_by_value_come_apart_and_are_remembered_on_both_sides(monkeypatch):
    class Local:
        pass

    first, second = encode(Local(), None), encode([Local(), Local], None)
    calls = []
    monkeypatch.setattr(encoding, "encode_by_value", _counting(encoding.encode_by_value, calls))
    third = encode((Local(), 1), None)

    assert definitions_of(first) == definitions_of(second) == definitions_of(third)
    assert len(calls) == 1, "the value alone; its class was known"
    assert type(decode(third)[0]) is Local
    assert decode(second)[1] is Local


def test_a_value_of_such_a_class_goes_with_its_last_reference():
    class Local:
        pass

    gone = weakref.ref(decode(encode(Local(), None)))

    assert gone() is None, "a cycle would keep large results until the collector comes"


def _counting(function, calls):
    def counted(*args):
        calls.append(args)
        return function(*args)

    return counted


@pytest.mark.usefixtures("processes")
def test_a_class_that_changes_is_sent_anew():
    class Local:
        rate = 1
        table = [1]  # noqa: RUF012

    def rates(local):
        return local.rate, local.table

    assert call_in_slot(rates, Local()) == (1, [1])
    before = definitions_of(encode(Local(), None))
    Local.rate = 2
    Local.table.append(2)
    assert definitions_of(encode(Local(), None)) != before
    assert call_in_slot(rates, Local()) == (2, [1, 2])


def in_another_process(sends, expression):
    """What `expression` says of the class of the values that are decoded there, after each."""
    program = (
        "import sys, pickle\n"
        "from taskmesh.serialize.encoding import decode\n"
        "for data in pickle.load(sys.stdin.buffer):\n"
        "    cls = type(decode(data))\n"
        f"    print({expression})\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(sends),
        capture_output=True,
        timeout=50,
        check=True,
    )
    return run.stdout.decode().split()


@pytest.mark.usefixtures("processes")
def test_a_slot_takes_the_latest_state_of_a_class_that_it_has():
    """In one other process, as slots are: the class stays the same, with the attributes of what came last."""
    sends = []

    class Local:
        rate = 1

    for rate in (1, 2, 1):
        Local.rate = rate
        sends.append(encode(Local(), None))

    assert in_another_process(sends, "cls.rate") == ["1", "2", "1"]
    assert in_another_process([sends[0], sends[1], sends[0]], "cls.rate") == ["1", "2", "1"]
    assert len(set(in_another_process(sends, "id(cls)"))) == 1


def test_threads_that_are_given_the_same_class_at_once_have_one():
    class Local:
        def __getstate__(self):
            return {"a": 1}

        def __setstate__(self, state):
            self.state = state

    tracker = values.cloudpickle()._get_or_create_tracker_id(Local).encode()
    begin = threading.Barrier(4)

    def decoded(data):
        begin.wait(20)
        return decode(data)

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            data = encode(Local(), None).replace(tracker, f"{number:032}".encode())
            found = list(threads.map(decoded, [data] * 4))
            assert [one.state for one in found] == [{"a": 1}] * 4
            assert len({Local, *map(type, found)}) == 2


@pytest.mark.usefixtures("processes")
def test_attributes_that_are_gone_go_elsewhere_too():
    class Local:
        rate = 1
        method = len

    sends = [encode(Local(), None)]
    del Local.rate
    sends.append(encode(Local(), None))

    shown = "int(hasattr(cls, 'rate')), int(hasattr(cls, 'method')), sep=''"
    assert in_another_process(sends, shown) == ["11", "01"]


def test_what_comes_back_leaves_the_class_that_went_out_alone():
    @dataclass
    class Local:
        x: int
        seen = 0

    method = Local.__init__
    data = encode(Local(1), None)
    Local.seen = 5

    assert decode(data) == Local(1)
    assert (Local.seen, Local.__init__) == (5, method)


@pytest.mark.usefixtures("processes")
def test_enums_and_their_members_stay_the_same_objects():
    class Level(enum.Enum):
        LOW = 1

    assert decode(encode([Level.LOW], None))[0] is Level.LOW
    assert call_in_slot(lambda level: level, Level.LOW) is Level.LOW


def test_a_class_that_cannot_be_pickled_raises_and_leaves_no_buffers():
    class Local:
        lock = threading.Lock()

    buffers = []

    with pytest.raises(TypeError, match="lock"):
        encode((np.zeros(100_000), Local()), buffers)
    assert buffers == []


def test_buffers_stay_beside_values_by_value():
    class Local:
        pass

    buffers, one = [], Local()
    one.array = np.arange(100_000)

    data = encode(one, buffers)

    assert len(data) < 3000
    assert len(buffers) == 1
    assert np.array_equal(decode(data, buffers).array, one.array)


def test_memory_is_bounded():
    for i in range(200):
        local = type(f"Local{i}", (), {"__module__": "__main__"})
        assert type(decode(encode(local(), None))) is local

    assert len(encoding._dumped) <= 64
    assert len(encoding._loaded) <= 64


def test_definitions_that_nobody_brought_along_are_an_error():
    class Local:
        pass

    data = Definitions().encode(Local(), None)

    with pytest.raises(pickle.UnpicklingError, match="came apart"):
        pickle.loads(data)
    with pytest.raises(pickle.UnpicklingError, match="came apart"):
        decode(data + values.MARK)


@pytest.mark.parametrize(
    "junk", [b"\x80", b"\x80\x05.\x0b\xcb", b"x" * 30, b"\xcc" * 30, b"\x0b\xcc", b"\x0b\xcb"]
)
def test_junk_raises(junk):
    with pytest.raises(Exception):  # noqa: B017, PT011 -- whatever it is, payload turns it into its own
        decode(junk)
