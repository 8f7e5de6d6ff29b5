"""Results that a slot has finished and not sent are seen all the same."""

import os
import signal

import pytest

from taskmesh.core.events import SlotFinished
from taskmesh.pool.slots.outbox import (
    BREAK,
    ENTRIES,
    FAILURE,
    ROOM,
    OutboxReader,
    OutboxWriter,
    create_outbox,
)
from taskmesh.serialize import payload
from tests.harness.gate import wait_at
from tests.pool.slots import tasks
from tests.pool.slots.driver import Driver


@pytest.fixture(params=[False, True], ids=["ordered", "checked"])
def outbox(request):
    """Both sides of an outbox, without and with checksums."""
    fd = create_outbox()
    writer, reader = OutboxWriter(fd, checked=request.param), OutboxReader(fd, checked=request.param)
    os.close(fd)
    yield writer, reader
    reader.close()
    writer.close_after_fork()
    writer.memory.close()


def test_records_are_read_as_written(outbox):
    writer, reader = outbox
    assert reader.read() == (0.0, [])

    writer.reset(7, 1.5)
    assert writer.append(b"one", BREAK, 2.0)
    assert writer.append(b"", 0, 2.25)
    assert writer.append(b"three", FAILURE, 2.5)

    began, records = reader.read()
    assert began == 1.5
    assert [(r.serial, r.flags, r.data, r.ended) for r in records] == [
        (7, BREAK, b"one", 2.0),
        (8, 0, b"", 2.25),
        (9, FAILURE, b"three", 2.5),
    ]


def test_reset_forgets_all_records(outbox):
    writer, reader = outbox
    writer.reset(0, 0.0)
    for _ in range(10):
        writer.append(b"old", 0, 1.0)

    writer.reset(10, 2.0)
    assert reader.read() == (2.0, [])

    writer.append(b"new", 0, 3.0)
    assert [(r.serial, r.data) for r in reader.read()[1]] == [(10, b"new")]


@pytest.mark.parametrize("first", [7, 9])
def test_a_task_that_begins_sets_the_clock_and_elsewhere_the_serial(outbox, first):
    writer, reader = outbox
    writer.begin(7, 1.0)
    tag = writer.tag
    writer.begin(first, 1.5)
    assert (writer.tag == tag) is (first == 7), "where the outbox stands the clock alone changes"
    writer.append(b"one", BREAK, 2.0)

    began, records = reader.read()
    assert began == 1.5
    assert [(r.serial, r.data) for r in records] == [(first, b"one")]


def test_full_outbox_refuses(outbox):
    writer, reader = outbox
    writer.reset(0, 0.0)
    assert writer.append(b"x" * ROOM, 0, 1.0)
    assert not writer.append(b"x", 0, 1.0)

    writer.reset(1, 1.0)
    assert all(writer.append(b"x", 0, 1.0) for _ in range(ENTRIES))
    assert not writer.append(b"x", 0, 1.0)
    assert len(reader.read()[1]) == ENTRIES


def test_half_written_record_is_not_read(outbox):
    writer, reader = outbox
    writer.reset(0, 0.0)
    writer.append(b"whole", 0, 1.0)
    writer.memory[writer.offset : writer.offset + 4] = b"half"

    assert [r.data for r in reader.read()[1]] == [b"whole"]


def test_disowned_outbox_cannot_be_written(outbox):
    writer, reader = outbox
    writer.reset(0, 0.0)
    writer.append(b"parent", 0, 1.0)

    writer.close_after_fork()

    with pytest.raises(ValueError, match="released"):
        writer.append(b"child", 0, 1.0)
    assert [r.data for r in reader.read()[1]] == [b"parent"]


def _blocked_behind_50(driver: Driver, gate) -> list[int]:
    """Hand over 50 quick tasks and one that blocks in one message; wait until it does."""
    driver.start(0)
    warm = driver.call(0, tasks.add, (0, 0))
    driver.run_until(lambda: driver.finished(0, warm))
    runs = [
        driver.run_of(driver.spec(tasks.add), [payload.dumps_call((i, i), {}, where="") for i in range(50)]),
        driver.run_of(driver.spec(wait_at), [payload.dumps_call((gate.path,), {}, where="")]),
    ]
    serials = driver.give(0, runs)
    driver.run_until(gate.reached)
    return serials


def test_peek_sees_all_results_in_front_of_a_blocked_task(driver, gates):
    gate = gates()
    serials = _blocked_behind_50(driver, gate)

    driver.host.peek(0)
    driver.run_until(lambda: driver.finished(0, serials[:50]))

    assert [driver.values[0][serial] for serial in serials[:50]] == [2 * i for i in range(50)]
    segments = [segment for event in driver.of(SlotFinished) for segment in event.results.done]
    assert all(segment.elapsed > 0 for segment in segments)
    gate.open()
    assert driver.result(0, serials[50]) == "passed"  # and the driver fails on a serial that comes twice


def test_peek_sees_failures_too(driver, gates):
    gate = gates()
    driver.start(0)
    warm = driver.call(0, tasks.raise_this, (ValueError("warm"),))
    driver.run_until(lambda: driver.finished(0, warm))
    calls = [(ValueError(str(i)),) for i in range(3)]
    runs = [
        driver.run_of(driver.spec(tasks.raise_this), [payload.dumps_call(c, {}, where="") for c in calls]),
        driver.run_of(driver.spec(tasks.nothing), [payload.dumps_call((), {}, where="")] * 3),
        driver.run_of(driver.spec(wait_at), [payload.dumps_call((gate.path,), {}, where="")]),
    ]
    serials = driver.give(0, runs)
    driver.run_until(gate.reached)

    driver.host.peek(0)
    driver.run_until(lambda: driver.finished(0, serials[:6]))

    assert [driver.failures[0][serial].text for serial in serials[:3]] == ["0", "1", "2"]
    gate.open()
    driver.run_until(lambda: driver.finished(0, serials))


def test_results_in_the_outbox_survive_the_slot(driver, gates):
    gate = gates()
    serials = _blocked_behind_50(driver, gate)

    os.kill(driver.host.pids()[0], signal.SIGKILL)

    assert driver.exit_of(0).unstarted == 0
    assert driver.finished(0, serials[:50])
    assert not driver.finished(0, serials[50:])


def test_peeks_at_any_time_lose_and_repeat_nothing(driver):
    driver.start(0)
    driver.decode = False
    total = 20_000

    serials = [serial for _ in range(20) for serial in driver.call(0, tasks.nothing, *[()] * (total // 20))]
    while not driver.finished(0, serials):
        driver.host.peek(0)
        driver.turn(0.0005)

    assert sorted(driver.values[0]) == serials
    order = [s.first for event in driver.of(SlotFinished) for s in event.results.done]
    assert order == sorted(order)
