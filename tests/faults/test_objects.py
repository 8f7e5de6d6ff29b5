"""Bad objects at each of the four points: argument, result, exception, function."""

import re
import sys
import time
import types

import pytest

from tests.faults.workload import raise_bad, return_bad, take
from tests.harness.nasty import BlocksWhenRebuilt, NotRebuilt

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


def _of_missing_module():
    """A function of a module that workers do not have."""
    module = types.ModuleType("module_that_workers_lack")

    def function(log, index):
        pytest.fail("must not run")

    function.__module__, function.__qualname__ = module.__name__, "function"
    module.function = function
    sys.modules[module.__name__] = module
    return function
