"""What slots print."""

import io
import os
import sys
import threading

import pytest

from taskmesh.pool.slots.output import OutputTail, Tee
from tests.harness.waiting import wait_until
from tests.pool.slots import tasks
from tests.pool.slots.driver import Driver, SlotFinished, SlotReported


@pytest.fixture
def loud(processes):
    with Driver(tee=True) as driver:
        yield driver


def test_output_is_passed_on(loud, monkeypatch):
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    loud.start(0)

    loud.result(0, loud.call(0, tasks.speak, ("to stdout é", "to stderr"))[0])

    loud.run_until(lambda: all(stream.getvalue() for stream in streams.values()))
    assert streams["stdout"].getvalue() == "to stdout é\n"
    assert streams["stderr"].getvalue() == "to stderr\n"


def test_last_lines_are_told_with_the_exit(driver, capfd):
    driver.start(0)
    driver.result(0, driver.call(0, tasks.chatter, (1000,))[0])
    driver.call(0, tasks.exit_at_once, (1,))

    lines = driver.exit_of(0).log.splitlines()

    assert lines == [f"line {i}" for i in range(900, 1000)]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("function", "args"),
    [(tasks.close_descriptors, (0, 100)), (tasks.close_streams, ()), (tasks.turn_stdout_to, (os.devnull,))],
)
def test_next_task_prints_whatever_one_has_done_to_its_streams(driver, function, args):
    driver.start(0)
    driver.call(0, function, args)

    [spoken] = driver.call(0, tasks.speak, ("to stdout", "to stderr"))

    driver.run_until(lambda: driver.finished(0, [spoken]))
    assert driver.values[0][spoken] is None
    driver.call(0, tasks.exit_at_once, (1,))
    assert set(driver.exit_of(0).log.splitlines()) >= {"to stdout", "to stderr"}


def test_records_of_a_task_are_told_before_its_result_and_not_printed(driver):
    driver.start(0)
    driver.result(0, driver.call(0, tasks.log_line)[0])
    driver.call(0, tasks.exit_at_once, (1,))

    assert "watch this" not in driver.exit_of(0).log
    [told] = [event.news for event in driver.of(SlotReported)]
    assert ["watch this" in line.text for line in told.lines] == [True]
    kinds = [type(event) for event in driver.events if isinstance(event, SlotReported | SlotFinished)]
    assert kinds[:2] == [SlotReported, SlotFinished]


def test_unread_stdout_holds_up_the_printing_task_alone(processes, monkeypatch):
    gate = threading.Event()
    text = io.StringIO()

    class Stuck:
        def write(self, data: str) -> None:
            gate.wait(30)
            text.write(data)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Stuck())
    with Driver(tee=True) as driver:
        driver.start(0, 1)
        [loud] = driver.call(0, tasks.chatter, (200_000,))

        assert driver.result(1, driver.call(1, tasks.add, (1, 1))[0]) == 2
        driver.run_until(lambda: driver.host._console._held)
        for _ in range(10):
            driver.turn(0.01)
        assert not driver.finished(0, [loud])

        [logging] = driver.call(1, tasks.chatter, (300,), stream_logs=True)
        assert driver.result(1, logging) == 300
        assert driver.printed(1, logging) == [f"line {i}" for i in range(300)]

        gate.set()
        assert driver.result(0, loud) == 200_000
        driver.close()
    assert text.getvalue() == "".join(f"line {i}\n" for i in range(200_000))


def test_stream_of_the_users_that_fails_loses_output_alone(processes, monkeypatch):
    class Broken:
        def write(self, data: str) -> None:
            raise ValueError("closed")

    monkeypatch.setattr(sys, "stdout", Broken())
    with Driver(tee=True) as driver:
        driver.start(0)

        assert driver.result(0, driver.call(0, tasks.chatter, (10,))[0]) == 10


def test_what_the_users_stream_cannot_show_is_escaped(processes, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with Driver(tee=True) as driver:
        driver.start(0)
        assert driver.result(0, driver.call(0, tasks.speak, ("h\xe9", ""))[0]) is None
        driver.close(1.0)

    assert shown.getvalue().strip() == b"h\\xe9"


def test_tail_joins_characters_and_lines_across_reads():
    tail = OutputTail()
    try:
        data = "grün\nunfinished".encode()
        pieces = []
        for i in range(len(data)):
            os.write(tail.slot_ends[0], data[i : i + 1])
            pieces.append(tail.read(tail.pipes[0]))
        assert "".join(pieces) == "grün\nunfinished"
        assert tail.text() == "grün\nunfinished"
        assert tail.read(tail.pipes[0]) == ""
        tail.close_slot_ends()
        assert tail.read(tail.pipes[0]) is None
    finally:
        tail.close()


def test_tee_says_when_it_is_full_and_when_it_is_relieved(monkeypatch):
    gate, relieved = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, data: str) -> int:
            gate.wait(30)
            return super().write(data)

    monkeypatch.setattr(sys, "stdout", Slow())
    tee = Tee(relieved.set)
    for _ in range(20):
        tee.put(0, "x" * 100_000)

    assert tee.full
    assert not relieved.is_set()
    gate.set()
    assert relieved.wait(5)
    wait_until(lambda: not tee.full)
    tee.close(5)
    assert len(sys.stdout.getvalue()) == 2_000_000


def test_output_that_finds_no_thread_is_passed_on_with_the_next(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    tee = Tee(lambda: None)
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse_to_start)
        for _ in range(30):
            tee.put(0, "x" * 100_000)
            assert not tee.full  # else nothing more would be read, and nothing tried again
        tee.put(0, "first ")
        tee.close(5)
    tee.put(0, "second")
    tee.close(5)

    assert sys.stdout.getvalue().endswith("first second")


def refuse_to_start(thread):
    raise RuntimeError("can't start new thread")
