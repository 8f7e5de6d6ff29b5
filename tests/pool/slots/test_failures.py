"""What can go wrong with one task, at each of the four points, and that its slot goes on."""

import pickle
import sys

import pytest

from taskmesh.messages.runs import CHUNK
from taskmesh.retry import NoRetry, RetryAfter
from taskmesh.serialize import payload
from taskmesh.serialize.exceptions import load_exception
from taskmesh.serialize.payload import dumps_filter
from tests.harness import nasty
from tests.messages.samples import items_of
from tests.pool.slots import tasks


@pytest.fixture
def slot(driver):
    """A driver with slot 0 started, which must be the same process at the end."""
    driver.start(0)
    pid = driver.host.pids()[0]
    yield driver
    assert driver.result(0, driver.call(0, tasks.pid)[0]) == pid


def test_users_exception(slot):
    failure = slot.failure(0, slot.call(0, nasty.fail, ("noted",))[0])

    assert (failure.kind, failure.type_name) == ("exception", "LookupError")
    assert (failure.text, failure.retryable, failure.retry_after) == ("meant", True, -1.0)
    assert "in fail" in failure.traceback
    assert "taskmesh/pool" not in failure.traceback
    assert "remember" in failure.traceback
    error = pickle.loads(failure.pickled)
    assert isinstance(error, LookupError)
    assert error.__notes__ == ["remember"]
    assert failure.elapsed > 0


def test_exception_that_cannot_be_pickled_is_told_all_the_same(slot):
    failure = slot.failure(0, slot.call(0, nasty.fail, ("unpicklable",))[0])

    assert failure.type_name == "tests.harness.nasty.UnpicklableError"
    assert "stuck" in failure.text


def test_exception_that_forbids_assignments_comes_back_as_itself(slot):
    failure = slot.failure(0, slot.call(0, nasty.fail, ("frozen",))[0])

    assert failure.kind == "exception"
    told = (failure.type_name, failure.text, failure.traceback, failure.pickled)
    error = load_exception(*told, task="t", worker="w", attempt=1)
    assert type(error) is nasty.FrozenError
    assert error.code == 3


def test_exception_without_attributes_is_told_all_the_same(slot):
    failure = slot.failure(0, slot.call(0, nasty.fail, ("broken",))[0])

    assert (failure.kind, failure.type_name) == ("exception", "tests.harness.nasty.BrokenError")
    assert (failure.text, failure.retryable, failure.pickled) == ("meant", True, b"")


def test_exception_without_attributes_fails_its_item_alone(slot):
    data = payload.dumps_chunk([("broken",)])
    [serial] = slot.give(0, [slot.run_of(slot.spec(nasty.fail, kind=CHUNK), [data])])
    slot.decode = False
    [(ok, failure)] = items_of(slot.result(0, serial))
    slot.decode = True

    assert (ok, failure.kind, failure.text) == (False, "exception", "meant")


@pytest.mark.parametrize("error", ["silent", "nameless"])
def test_exception_whose_own_methods_fail(slot, error):
    failure = slot.failure(0, slot.call(0, nasty.fail, (error,))[0])

    assert failure.kind == "exception"
    assert failure.type_name


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        (b"R" + b"no_such_module\0f", "no_such_module"),
        (b"R" + b"tests.pool.slots.tasks\0no_such_function", "no_such_function"),
        (b"R" + b"tests.pool.slots.broken_module\0f", "broken on purpose"),
        (b"nonsense", ""),
    ],
)
def test_function_that_is_not_to_be_had(slot, reference, word):
    number = slot.spec(tasks.nothing, name=f"x{word}")
    slot._all_specs[number] = slot._all_specs[number].__class__(function=reference, name="x")

    serials = slot.give(0, [slot.run_of(number, [payload.dumps_call((), {}, where="")] * 3)])
    slot.run_until(lambda: slot.finished(0, serials))

    for serial in serials:
        failure = slot.failures[0][serial]
        assert (failure.kind, failure.type_name) == ("function", "taskmesh.errors.FunctionUnavailable")
        assert word in failure.text


def test_argument_that_cannot_be_rebuilt(slot):
    before, bad, after = slot.call(0, tasks.echo, (1,), (nasty.NotRebuilt(),), (3,))

    failure = slot.failure(0, bad)
    assert (failure.kind, failure.type_name) == ("argument", "taskmesh.errors.SerializationError")
    assert "cannot be rebuilt" in failure.text
    slot.run_until(lambda: slot.finished(0, [before, after]))


def test_payload_that_is_no_pickle(slot):
    [serial] = slot.give(0, [slot.run_of(slot.spec(tasks.echo), [b"\x80\x05nonsense."])])

    assert slot.failure(0, serial).kind == "argument"


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("lock", "Make the lock where it is used"),
        ("generator", "Pass a list made of it"),
        ("unpicklable", "Pass plain data instead"),
        ("deep", "flatten it"),
    ],
)
def test_result_that_cannot_be_pickled(slot, what, remedy):
    before, bad, after = slot.call(0, nasty.make, ("plain",), (what,), ("plain",))

    failure = slot.failure(0, bad)
    assert (failure.kind, failure.type_name) == ("result", "taskmesh.errors.SerializationError")
    assert not failure.retryable
    assert remedy in failure.text
    slot.run_until(lambda: slot.finished(0, [before, after]))


def test_wrong_arguments(slot):
    failure = slot.failure(0, slot.call(0, tasks.add, (1, 2, 3, 4))[0])

    assert (failure.kind, failure.type_name) == ("exception", "TypeError")


def test_retry_filter_and_the_exceptions_that_overrule_it(slot):
    retry_filter = dumps_filter((ValueError,), (UnicodeError,))
    errors = [ValueError("v"), KeyError("k"), UnicodeError("u"), RetryAfter(2.5), NoRetry(ValueError("n"))]

    serials = slot.call(0, tasks.raise_this, *[(error,) for error in errors], retry_filter=retry_filter)
    slot.run_until(lambda: slot.finished(0, serials))

    told = [slot.failures[0][serial] for serial in serials]
    assert [failure.retryable for failure in told] == [True, False, False, True, False]
    assert [failure.retry_after for failure in told] == [-1.0, -1.0, -1.0, 2.5, -1.0]
    assert told[4].type_name == "ValueError"


def test_chunk_that_cannot_be_rebuilt(slot):
    [serial] = slot.give(0, [slot.run_of(slot.spec(tasks.echo, kind=CHUNK), [b"\x80\x05nonsense."])])

    assert slot.failure(0, serial).kind == "argument"


def test_items_of_a_chunk_fail_alone(slot):
    items = [("plain",), ("lock",), ("unpicklable",), ("plain",)]
    [serial] = slot.give(0, [slot.run_of(slot.spec(nasty.make, kind=CHUNK), [payload.dumps_chunk(items)])])
    slot.decode = False

    outcome = items_of(slot.result(0, serial))
    slot.decode = True
    assert [ok for ok, _ in outcome] == [True, False, False, True]
    assert outcome[1][1].kind == "result"


def test_results_and_failures_mixed(slot):
    calls = [(i, "x" if i % 7 == 0 else 1) for i in range(1000)]

    serials = slot.call(0, tasks.add, *calls)
    slot.run_until(lambda: slot.finished(0, serials))

    assert set(slot.failures[0]) == {serial for serial in serials if serial % 7 == 0}
    assert all(slot.values[0][serial] == serial + 1 for serial in serials if serial % 7)


@pytest.mark.parametrize("limit", [40, 77])
def test_a_lower_recursion_limit_is_one_tasks_alone(slot, limit):
    nested = []
    for _ in range(100):
        nested = [nested]

    assert slot.result(0, slot.call(0, tasks.limit_recursion, (limit,))[0]) == limit
    assert slot.result(0, slot.call(0, tasks.echo, (nested,))[0]) == nested

    failure = slot.failure(0, slot.call(0, tasks.limit_recursion, (limit, "why"))[0])
    assert (failure.type_name, failure.text) == ("ValueError", "why")


def test_a_higher_recursion_limit_stays(slot):
    assert slot.result(0, slot.call(0, tasks.limit_recursion, (5000,))[0]) == 5000
    assert slot.result(0, slot.call(0, sys.getrecursionlimit)[0]) == 5000
