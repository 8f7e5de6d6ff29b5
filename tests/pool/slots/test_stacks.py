"""Stacks of running tasks: the slot writes them whatever its task does, and the task goes on."""

import os
import signal

import pytest

from taskmesh.core.events import SlotReady
from taskmesh.messages.runs import STACK
from taskmesh.messages.slot_messages import SlotLogs
from taskmesh.pool.slots.supervisor import NO_STACK
from tests.pool.slots import tasks
from tests.pool.slots.driver import Driver, SlotFinished


def stacks(driver: Driver) -> list[tuple[int, str]]:
    """Return the stacks that have been told: serial and text."""
    told = [event.news for event in driver.events if hasattr(event, "news")]
    logs = [news for news in told if isinstance(news, SlotLogs)]
    return [(news.serial, line.text) for news in logs for line in news.lines if line.logger == STACK]


def stack_of(driver: Driver, serial: int) -> str:
    before = len(stacks(driver))
    driver.host.ask_stack(0, serial)
    told, text = driver.run_until(lambda: stacks(driver)[before:])[0]
    assert told == serial
    return text


def test_a_task_that_waits_is_named_with_all_its_threads_and_goes_on_unharmed(driver, tmp_path):
    driver.start(0)
    (serial,) = driver.call(0, tasks.waits_with_a_thread, (str(tmp_path),))
    driver.run_until((tmp_path / "waits").exists)

    for _ in range(20):
        text = stack_of(driver, serial)

        assert text.count("(most recent call first)") == 2
        assert "tests/pool/slots/tasks.py" in text
        assert "in waits_with_a_thread" in text
        assert "in _beside" in text

    (tmp_path / "gate").touch()
    assert driver.result(0, serial) == "unharmed"


def test_a_task_that_keeps_the_interpreter_in_c_is_named_too(driver, tmp_path):
    driver.start(0)
    (serial,) = driver.call(0, tasks.matches_for_hours, (str(tmp_path),))
    driver.run_until((tmp_path / "waits").exists)

    assert "in matches_for_hours" in stack_of(driver, serial)


def test_a_task_behind_others_has_not_started_and_one_that_has_ended_tells_nothing(driver, tmp_path):
    driver.start(0)
    done, running, behind = driver.call(0, tasks.waits_unless, *((str(tmp_path), n) for n in range(3)))
    driver.run_until((tmp_path / "waits").exists)

    assert "it has not started" in stack_of(driver, behind)
    assert "in waits_unless" in stack_of(driver, running), "its predecessor's result is not flushed yet"
    driver.host.ask_stack(0, done)
    driver.host.ask_stack(1, done)
    (tmp_path / "gate").touch()
    driver.run_until(lambda: driver.finished(0, [done, running, behind]))
    assert len(stacks(driver)) == 2


def test_a_slot_that_is_stopped_does_not_answer_and_a_dead_one_is_not_waited_for(driver, tmp_path):
    driver.start(0)
    (serial,) = driver.call(0, tasks.waits_unless, (str(tmp_path), 1))
    driver.run_until((tmp_path / "waits").exists)
    pid = driver.of(SlotReady, 0)[0].pid
    os.kill(pid, signal.SIGSTOP)

    assert stack_of(driver, serial) == NO_STACK
    driver.host.ask_stack(0, serial)
    driver.host.kill(0)
    driver.exit_of(0)
    assert len(stacks(driver)) == 1


@pytest.mark.parametrize("size", [10, 3000])
def test_the_stack_of_deep_code_is_bounded_and_the_next_is_whole_again(driver, tmp_path, size):
    driver.start(0)
    (serial,) = driver.call(0, tasks.waits_below, (str(tmp_path), size))
    driver.run_until((tmp_path / "waits").exists)

    assert "in waits_below" in stack_of(driver, serial)
    (tmp_path / "gate").touch()
    driver.result(0, serial)
    (tmp_path / "waits").unlink()
    (tmp_path / "gate").unlink()
    (serial,) = driver.call(0, tasks.waits_unless, (str(tmp_path), 1))
    driver.run_until((tmp_path / "waits").exists)
    text = stack_of(driver, serial)
    (tmp_path / "gate").touch()
    driver.run_until(lambda: driver.of(SlotFinished)[1:])

    assert "in waits_unless" in text
    assert "waits_below" not in text
