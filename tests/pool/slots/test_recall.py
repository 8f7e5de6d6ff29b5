"""Taking tasks back: what is handed back never starts, what is not handed back does."""

import random

import pytest

from taskmesh.pool.slots.tickets import TicketPipe, ticket
from taskmesh.serialize import payload
from tests.harness import nasty
from tests.harness.gate import wait_at
from tests.harness.journal import Journal, note
from tests.pool.slots import tasks


def test_everything_behind_the_running_task_comes_back_and_never_runs(driver, gates, tmp_path):
    log = str(tmp_path / "log")
    gate = gates()
    driver.start(0)
    first = driver.call(0, wait_at, (gate.path,))
    behind = driver.call(0, note, *[(log, f"recalled {i}") for i in range(99)])
    driver.run_until(gate.reached)

    count = driver.recall(0)

    assert count == 99
    again = driver.call(0, note, *[(log, f"fresh {i}") for i in range(5)])
    gate.open()
    driver.run_until(lambda: driver.finished(0, first + again))
    assert not driver.finished(0, behind[:1])
    assert Journal(log).lines() == [f"fresh {i}" for i in range(5)]


def test_recall_within_one_message(driver, gates, tmp_path):
    gate = gates()
    driver.start(0)
    log = str(tmp_path / "log")
    payloads = [payload_of((gate.path,))]
    runs = [
        driver.run_of(driver.spec(wait_at), payloads),
        driver.run_of(driver.spec(note), [payload_of((log, str(i))) for i in range(99)]),
    ]
    serials = driver.give(0, runs)
    driver.run_until(gate.reached)

    assert driver.recall(0) == 99

    gate.open()
    [last] = driver.call(0, note, (log, "last"))
    assert driver.result(0, last) == "last"
    assert sorted(driver.values[0]) == [serials[0], last]


def payload_of(args):
    return payload.dumps_call(args, {}, where="test")


def test_recall_of_an_idle_slot_takes_nothing(driver):
    driver.start(0)
    serials = driver.call(0, tasks.nothing, *[()] * 10)
    driver.run_until(lambda: driver.finished(0, serials))

    assert driver.recall(0) == 0

    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_recall_before_the_slot_is_ready(driver):
    driver.host.start(0)
    driver.call(0, tasks.nothing, *[()] * 10)

    taken = driver.recall(0)
    serials = driver.call(0, tasks.add, (1, 1))

    assert taken == 10
    assert driver.result(0, serials[0]) == 2


def test_recalled_message_that_had_not_left_is_dropped_and_its_specs_are_not(driver, gates):
    gate = gates()
    driver.start(0)
    first = driver.call(0, wait_at, (gate.path,))
    driver.run_until(gate.reached)
    heavy = [serial for _ in range(10) for serial in driver.call(0, tasks.echo, *[(b"x" * 60_000,)] * 10)]
    queued = driver.call(0, tasks.add, (1, 1))

    assert driver.recall(0) == len(heavy + queued)

    again = driver.call(0, tasks.add, (2, 2))
    gate.open()
    driver.run_until(lambda: driver.finished(0, first + again))
    assert driver.values[0][again[0]] == 4
    assert len(driver.values[0]) == 2


def test_what_a_recalled_message_forgets_is_forgotten_and_what_came_later_is_not(driver, gates):
    gate = gates()
    driver.start(0)
    one, two = nasty.Counted(), nasty.Counted()

    def kept():
        return one is not None

    def gone():
        return two is not None

    first = driver.call(0, kept) + driver.call(0, gone) + driver.call(0, wait_at, (gate.path,))
    driver.run_until(gate.reached)
    driver.call(0, tasks.echo, *[(b"x" * 60_000,)] * 10)  # the socket is full from here on
    driver.forget(0, gone)
    driver.forget(0, kept)
    driver.call(0, kept)
    driver.recall(0)

    again = driver.call(0, kept) + driver.call(0, tasks.count_counted)
    gate.open()
    driver.run_until(lambda: driver.finished(0, first + again))
    assert [driver.values[0][serial] for serial in again] == [True, 1]


def test_more_recalls_than_a_byte_counts_while_one_task_runs(driver, gates, tmp_path):
    log = tmp_path / "log"
    gate = gates()
    driver.start(0)
    driver.call(0, wait_at, (gate.path,))
    driver.run_until(gate.reached)

    for i in range(300):
        driver.call(0, note, (str(log), f"recalled {i}"))
        assert driver.recall(0) == 1
    serials = driver.call(0, note, (str(log), "fresh"))
    gate.open()

    driver.run_until(lambda: driver.finished(0, serials))
    assert log.read_text() == "fresh\n"


@pytest.mark.parametrize("seed", range(3))
def test_recalls_at_random_times_lose_and_repeat_nothing(driver, seed):
    chance = random.Random(seed)
    driver.start(0)
    driver.decode = False
    total, batch = 20_000, 200
    recalled: set[int] = set()
    outstanding: list[int] = []
    given = 0

    def unfinished():
        return [s for s in outstanding if s not in driver.values[0]]

    while given < total or unfinished():
        if given < total:
            outstanding += driver.call(0, tasks.nothing, *[()] * min(batch, total - given))
            given = driver.next_serial[0]
        for _ in range(chance.randrange(4)):
            driver.turn(chance.choice([0, 0, 0.001]))
        if chance.random() < 0.5 or given == total:
            count = driver.recall(0)
            back = outstanding[len(outstanding) - count :]
            del outstanding[len(outstanding) - count :]
            recalled.update(back)
        if len(outstanding) > 2000:
            driver.run_until(lambda: not unfinished())
        if given == total:
            driver.run_until(lambda: not unfinished())

    finished = set(driver.values[0])
    assert not driver.failures[0]
    assert not finished & recalled
    assert finished | recalled == set(range(total))
    assert recalled
    assert finished


def test_ticket_pipe_counts_what_it_gave_out_and_takes_back():
    pipe = TicketPipe()
    try:
        written = pipe.write(100_000, 3)
        assert 1000 < written < 100_000
        assert pipe.write(1, 3) == 0
        assert pipe.take_back() == written
        assert pipe.take_back() == 0
    finally:
        pipe.close()


def test_tickets_tell_generations_apart():
    assert len({ticket(generation) for generation in range(65_536)}) == 65_536
