"""Groups of tasks whose function is at hand as bytes, with arguments pickled or encoded by the caller."""

import itertools
import os
import pickle
import threading

import pytest

from taskmesh import Mesh
from taskmesh.client.group import TaskGroup
from taskmesh.client.options import TaskOptions
from taskmesh.errors import SerializationError
from taskmesh.messages.runs import ARROW_IPC
from taskmesh.serialize.code import dump_function

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(params=[Mesh, Mesh.inline], ids=["processes", "inline"])
def mesh(request):
    with request.param(workers=1) as mesh:
        yield mesh


def _reverse(data):
    return bytes(data)[::-1]


def _letters(data):
    return data[:1].decode() if isinstance(data, bytes) else type(data).__name__


def _wrong(data):
    return {"no": "buffer"}


def _stay(_item):
    threading.Event().wait()


def _group(mesh, function, codec=ARROW_IPC, **options):
    return TaskGroup(mesh, dump_function(function), "a name", TaskOptions().with_changes(options), codec)


@pytest.mark.parametrize("limit", [None, 30])
def test_encoded_bytes_of_any_size_come_as_they_are(limit):
    with Mesh(workers=1) as mesh:  # in here: what nobody has acknowledged goes with its mesh
        group = _group(mesh, _reverse, timeout=limit)
        for size in (0, 1, 1000, 1 << 16, (1 << 16) + 1, 1 << 20, 20 << 20):
            data = bytes(itertools.islice(itertools.cycle(range(251)), size))

            future = group.submit(memoryview(data))

            assert bytes(future.result(30)) == data[::-1]
            assert TaskGroup.failure(future) is None
            assert TaskGroup.success(future).seconds > 0


def test_a_group_without_a_codec_pickles_its_argument(mesh):
    group = _group(mesh, sum, "pickle5")

    assert [group.submit([number, 1]).result(20) for number in range(3)] == [1, 2, 3]


def test_what_is_no_buffer_is_refused_with_its_type(mesh):
    with pytest.raises(SerializationError, match="the argument of a name has to be bytes, not list"):
        _group(mesh, _reverse).submit([1])


def test_a_function_that_returns_no_buffer_fails_its_task(mesh):
    future = _group(mesh, _wrong).submit(b"x")

    with pytest.raises(SerializationError, match="the result of a name has to be bytes, not dict"):
        future.result(20)


def test_a_failure_can_be_read_without_unpickling_it(mesh):
    future = _group(mesh, _letters).submit(b"\xff")

    future.exception(20)

    failed = TaskGroup.failure(future)
    assert failed.type_name == "UnicodeDecodeError"
    assert "_letters" in failed.traceback
    assert TaskGroup.success(future).seconds == 0


def test_a_group_can_be_given_up(mesh):
    group = _group(mesh, _stay, "pickle5")
    futures = [group.submit(30) for _ in range(3)]

    group.cancel(futures)

    assert all(future.cancelled() for future in futures)


def _give(data):
    return data


def _arrived(value):
    return value


def test_bytes_with_a_codec_of_their_own_are_no_values_for_other_tasks_and_programs(mesh, tmp_path):
    class Intruder:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    held = _group(mesh, _give).submit(pickle.dumps(Intruder(), 5))
    sunk = _group(mesh, _give, sink="bytes")

    with pytest.raises(SerializationError):
        mesh.submit(_arrived, held).result(20)
    waited = mesh.attach(_group(mesh, _give, delay=0.2).submit(pickle.dumps(Intruder(), 5)).task_id)
    with pytest.raises(SerializationError):
        waited.result(20)
    with mesh.sink("bytes") as sink:
        sunk.submit(pickle.dumps(Intruder(), 5))
        outcome = sink.get(20)
        with pytest.raises(SerializationError):
            outcome.result()
        sink.ack(outcome)
    assert not (tmp_path / "was here").exists()
