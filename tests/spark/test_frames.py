"""Steps as they travel: plain values around a function, which is loaded by its own rules."""

import pyarrow as pa
import pytest

from taskmesh.errors import FunctionUnavailable
from taskmesh.serialize import code
from taskmesh.serialize.code import allow_only, dump_function, load_function
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.chunks import ChunkStep
from taskmesh.spark.steps.step import Step
from tests.spark import tasks

pytestmark = [pytest.mark.spark]

BATCH = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int64())})
DATA = ipc.encode(BATCH.schema, [BATCH])


@pytest.fixture
def only_tasks(monkeypatch):
    monkeypatch.setattr(code, "_allowed", [])
    allow_only(["tests.spark.tasks"])


def _step(function) -> bytes:
    return dump_function(Step(dump_function(function), "arrow", ipc.schema_bytes(BATCH.schema), "raise"))


def test_a_step_round_trips_without_a_pickle():
    data = _step(tasks.same)

    assert data[:1] == b"F"
    assert ipc.decode(load_function(data)(DATA))[1] == [BATCH]
    step = load_function(dump_function(ChunkStep(dump_function(tasks.split), "flat_map")))
    assert step(["a b"]) == (1, ["a", "b"])


def test_row_31_a_pool_for_named_modules_runs_their_functions_in_steps(only_tasks):
    assert ipc.decode(load_function(_step(tasks.same))(DATA))[1] == [BATCH]


def test_row_31_and_no_function_that_travels_by_value(only_tasks):
    step = load_function(_step(lambda batch: batch))

    with pytest.raises(FunctionUnavailable, match="travels by value is not run here"):
        step(DATA)


@pytest.mark.parametrize(
    "data",
    [
        b"F",
        b"Fgarbage",
        code.msgspec.msgpack.encode(("os", ["true"])),
        b"F" + code.msgspec.msgpack.encode(("os", ["true"])),
        b"F" + code.msgspec.msgpack.encode(("taskmesh.spark.steps.step", [1])),
        b"F" + code.msgspec.msgpack.encode(("taskmesh.spark.steps.step", ["one"])),
    ],
)
def test_row_31_what_is_no_step_is_refused(data):
    with pytest.raises(FunctionUnavailable, match="these are not a function's bytes"):
        load_function(data)


@pytest.mark.parametrize("data", [b"", b"garbage" * 100, bytes(DATA)[:40], bytes(DATA)[:-30] + b"\xff" * 30])
def test_row_31_a_corrupt_batch_is_an_error_of_the_task(data):
    with pytest.raises((pa.ArrowException, OSError)):
        load_function(_step(tasks.same))(data)
