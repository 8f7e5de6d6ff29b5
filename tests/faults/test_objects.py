"""Bad objects at each of the four points: argument, result, exception, function."""

import re
import sys
import threading
import time
import types

import pytest

from taskmesh.errors import SerializationError
from tests.faults.workload import raise_bad, return_bad, take
from tests.harness.nasty import BlocksWhenRebuilt, NotRebuilt, Unpicklable, deep
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault

RAISED = {
    "plain": "ZeroDivisionError",
    "two arguments": "TwoArgumentError",
    "lock": "LockedError",
    "silent": "SilentError",
    "not rebuilt": "NotRebuiltError",
}
"""Every exception comes back as itself if there is any way."""


@pytest.mark.smoke
def test_F43_bad_objects(cluster, connect):
    cluster.start_hub()
    cluster.start_workers(2)
    client = connect()
    expected = {}

    def expect(outcome, index):
        expected[index] = outcome
        client.submit_ordinary(40)

    for what in ("unpicklable", "lock", "generator", "deep"):
        expect("SerializationError", client.submit(return_bad, what))
    expect("TooLarge", client.submit(return_bad, "too large"))
    expect("SerializationError", client.submit(return_bad, "not rebuilt"))
    expect("WorkerCrashed", client.submit(return_bad, "ends the process"))
    expect("TaskTimeout", client.submit(return_bad, "blocks when pickled", hard_timeout=1.0))
    expect("TaskTimeout", client.submit(return_bad, "blocks when pickled", timeout=1.0))
    expect("SerializationError", client.submit(take, NotRebuilt()))
    expect("TaskTimeout", client.submit(take, BlocksWhenRebuilt(), hard_timeout=1.0))
    for what, outcome in RAISED.items():
        expect(outcome, client.submit(raise_bad, what))
    expect("FunctionUnavailable", client.submit(_of_missing_module()))
    began = time.monotonic()
    client.wait_all(20)

    assert time.monotonic() - began < 10
    outcomes = {index: type(client.futures[index].exception()).__name__ for index in expected}
    assert outcomes == expected
    crashed = [index for index, outcome in expected.items() if outcome == "WorkerCrashed"]
    verdict = client.assert_clean(repeated=crashed)
    assert verdict.succeeded == 40 * len(expected)
    words = [str(client.futures[i].exception()) for i, outcome in expected.items() if "Serial" in outcome]
    assert all(
        re.search(r"\. (Pass|Make|Check|Install|Run|Both sides|Its class's|It is nested too deeply:) ?", text)
        for text in words
    ), words


@pytest.mark.parametrize(
    ("argument", "named"),
    [(Unpicklable(), "Unpicklable"), (threading.Lock(), "lock"), (deep(), "recursion")],
    ids=["unpicklable", "lock", "deep"],
)
def test_F43_bad_argument_is_refused_by_submit(embedded, argument, named):
    client = embedded(workers=1)

    with pytest.raises(SerializationError, match=f"(?i){named}") as refused:
        client.mesh.submit(take, "log", 1, argument)

    assert "argument" in str(refused.value)
    assert client.mesh.status()["accepted"] == 0


def _of_missing_module():
    """A function of a module that workers do not have."""
    module = types.ModuleType("module_that_workers_lack")

    def function(log, index):
        pytest.fail("must not run")

    function.__module__, function.__qualname__ = module.__name__, "function"
    module.function = function
    sys.modules[module.__name__] = module
    return function


def test_result_that_blocks_when_it_is_rebuilt_blocks_its_reader_alone(embedded):
    client = embedded(workers=2)
    future = client.mesh.submit(BlocksWhenRebuilt)
    reader = threading.Thread(target=future.result, daemon=True)
    reader.start()
    wait_until(future.done)

    client.submit_ordinary(300)
    client.wait_all()

    client.assert_clean(repeated=[])
    assert reader.is_alive()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
