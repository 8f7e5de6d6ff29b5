"""Soft time limits and interrupts inside a slot."""

import contextlib
import signal
import threading
import time
from itertools import pairwise

import pytest

from taskmesh.errors import TaskTimeout
from taskmesh.messages.runs import CHUNK
from taskmesh.pool.slots.soft_timeout import SoftTimeout
from taskmesh.serialize import payload
from taskmesh.system.signal_timer import SIGNAL
from tests.messages.samples import items_of
from tests.pool.slots import coroutines, tasks


def test_task_that_runs_too_long_gets_task_timeout(driver):
    driver.start(0)

    failure = driver.failure(0, driver.call(0, tasks.spin, timeout=0.1)[0])

    assert (failure.kind, failure.type_name) == ("timeout", "taskmesh.errors.TaskTimeout")
    assert "spin" in failure.traceback
    assert "timeout=0.1" in failure.text
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_task_within_its_limit_is_left_alone(driver):
    driver.start(0)

    serials = driver.call(0, tasks.about_me, (), (), timeout=30)

    driver.run_until(lambda: driver.finished(0, serials))
    assert all(driver.values[0][serial][4] for serial in serials)


def test_task_that_swallows_its_timeout_goes_on(driver):
    driver.start(0)

    assert driver.result(0, driver.call(0, tasks.swallow_timeout, timeout=0.1)[0]) == "went on"


def test_limit_holds_after_a_task_has_changed_the_handlers(driver):
    driver.start(0)
    driver.call(0, tasks.replace_handlers)

    assert driver.failure(0, driver.call(0, tasks.spin, timeout=0.1)[0]).kind == "timeout"


def test_coroutine_that_waits_too_long(driver):
    driver.start(0)

    assert driver.failure(0, driver.call(0, coroutines.endless, timeout=0.2)[0]).kind == "timeout"
    assert driver.result(0, driver.call(0, coroutines.coroutine, (1,))[0]) == 2


def test_result_that_takes_too_long_to_pickle(driver):
    driver.start(0)

    assert driver.failure(0, driver.call(0, tasks.slow_to_pickle, timeout=0.1)[0], 3).kind == "timeout"


def test_limit_of_a_chunk_is_each_items(driver):
    driver.start(0)
    spec = driver.spec(tasks.spin_or_not, kind=CHUNK, timeout=0.1)

    [serial] = driver.give(0, [driver.run_of(spec, [payload.dumps_chunk([(0,), (1,), (2,)])])])
    driver.decode = False

    (first, one), (second, two), (third, three) = items_of(driver.result(0, serial))
    assert (first, one, third, three) == (True, 0, True, 2)
    assert (second, two.kind) == (False, "timeout")


def test_progress_under_a_limit_tears_no_frame(driver):
    driver.start(0)

    serials = driver.call(0, tasks.progress_for_ever, *[()] * 20, timeout=0.02)
    driver.run_until(lambda: driver.finished(0, serials))

    assert {driver.failures[0][serial].kind for serial in serials} == {"timeout"}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), SystemExit("text")])
def test_exceptions_that_end_a_program_end_only_the_task(driver, error):
    driver.start(0)

    failure = driver.failure(0, driver.call(0, tasks.raise_this, (error,))[0])

    assert (failure.kind, failure.type_name, failure.retryable) == ("exception", type(error).__name__, False)
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_sigint_interrupts_the_task_alone(driver):
    driver.start(0)

    failure = driver.failure(0, driver.call(0, tasks.kill_self, (signal.SIGINT,))[0])

    assert failure.type_name == "KeyboardInterrupt"
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_a_task_that_uses_sigalrm_has_its_limit_and_its_alarm(driver):
    driver.start(0)

    assert driver.failure(0, driver.call(0, tasks.use_sigalrm, (False,), timeout=0.3)[0]).kind == "timeout"
    assert driver.result(0, driver.call(0, tasks.use_sigalrm, (True,), timeout=30)[0]) == "alarm"


@pytest.mark.parametrize("seconds", [1e10, float(1 << 62)])
def test_a_limit_of_centuries_is_none(driver, seconds):
    driver.start(0)

    assert driver.result(0, driver.call(0, tasks.add, (1, 1), timeout=seconds)[0]) == 2


@pytest.fixture
def limit():
    before = signal.getsignal(SIGNAL)
    made = SoftTimeout()
    yield made
    made.close()
    signal.signal(SIGNAL, before or signal.SIG_DFL)


def test_limit_leaves_no_timer(limit):
    with pytest.raises(TaskTimeout):
        limit.call(0.05, threading.Event().wait, 10)

    assert limit.fired
    assert limit._timer.left == 0


def test_a_limit_that_is_swallowed_strikes_each_second_until_the_function_ends(limit):
    struck = []

    def stubborn() -> str:
        while len(struck) < 3:
            try:
                threading.Event().wait(10)
            except TaskTimeout:
                struck.append(time.monotonic())
        return "what it has"

    assert limit.call(0.05, stubborn) == "what it has"
    assert [0.5 < later - earlier < 5 for earlier, later in pairwise(struck)] == [True, True]
    assert limit._timer.left == 0


def test_a_limit_that_strikes_in_a_finalizer_strikes_again(limit):
    struck = []

    class Slow:
        def __del__(self):
            with contextlib.suppress(TaskTimeout):
                threading.Event().wait(10)
            struck.append("in the finalizer")

    def work():
        Slow()  # gone at once
        threading.Event().wait(10)

    with pytest.raises(TaskTimeout):
        limit.call(0.05, work)

    assert struck == ["in the finalizer"]
    assert limit._timer.left == 0


def test_limit_holds_after_a_task_has_blocked_the_signal(limit):
    signal.pthread_sigmask(signal.SIG_BLOCK, (SIGNAL,))

    with pytest.raises(TaskTimeout):
        limit.call(0.05, threading.Event().wait, 10)


def test_limit_held_off_strikes_at_the_end(limit):
    passed = []

    def hold() -> None:
        limit.block()
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        passed.append(True)
        limit.unblock()
        passed.append(False)

    with pytest.raises(TaskTimeout):
        limit.call(0.02, hold)
    assert passed == [True]


def test_another_thread_neither_holds_it_off_nor_takes_it(limit):
    """A task's thread that submits, or tells progress, sends frames that no alarm can tear."""
    held, over, taken = threading.Event(), threading.Event(), []

    def other():
        limit.block()
        held.set()
        over.wait(10)
        try:
            limit.unblock()
        except TaskTimeout as error:
            taken.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(10)
    with pytest.raises(TaskTimeout):
        limit.call(0.05, threading.Event().wait, 10)
    over.set()
    thread.join(10)

    assert not taken


def test_late_alarm_is_ignored(limit):
    assert limit.call(30, int) == 0

    signal.raise_signal(SIGNAL)
    assert not limit.fired
