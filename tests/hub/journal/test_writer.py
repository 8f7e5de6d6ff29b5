"""The thread that writes a journal: what it merges, what it keeps while the store is away, how it ends."""

import random
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskmesh.hub.journal import writer as writer_module
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.store import Changes, JournalUnavailable
from taskmesh.hub.journal.writer import JournalState, JournalWriter
from tests.harness.waiting import wait_until
from tests.hub.journal.contract import entries
from tests.hub.journal.gated import Gated, Loop
from tests.hub.journal.transactions import expected, transaction
from tests.simulation.memory_journal import MemoryDisk, MemoryJournal


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def store(disk: MemoryDisk) -> Gated:
    return Gated(disk)


@pytest.fixture
def loop(store: Gated) -> Iterator[Loop]:
    made = Loop(store)
    yield made
    store.gate.set()
    made.close(2.0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch) -> None:
    monkeypatch.setattr(writer_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(writer_module, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(writer_module, "IDLE", 0.02)


# --- writing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_handed_over_is_in_the_file_in_its_order(tmp_path: Path, strict: bool):
    path = tmp_path / "tasks.journal"
    loop = Loop(FileJournal(path, strict), strict)
    for number in range(1, 60):
        position = loop.writer.put(transaction(number))
    assert position == 59

    assert loop.close(10.0)

    assert loop.writer.confirmed == loop.writer.synced == 59
    with closing(FileJournal(path)) as store:
        assert 0 < store.open().number <= 59
        assert entries(store) == expected(59)


def test_numbers_go_on_from_those_that_are_stored(disk: MemoryDisk, loop: Loop):
    loop.confirmed(loop.put({b"a": b"1"}))
    assert loop.close(2.0)
    assert disk.number == 1

    again = Loop(MemoryJournal(disk))
    again.confirmed(again.put({b"b": b"2"}))
    assert again.close(2.0)

    assert disk.number == 2
    assert disk.entries == {b"a": b"1", b"b": b"2"}


def test_what_gathers_while_a_transaction_is_on_its_way_becomes_the_next_one(store: Gated, loop: Loop):
    store.hold()
    loop.put({b"first": b""})
    assert store.inside.wait(10)
    for number in range(100):
        loop.put({b"%d" % number: b"old", b"same": b"%d" % number}, {b"%d" % (number - 1)})
    assert loop.writer.confirmed == 0

    store.gate.set()
    loop.confirmed(101)

    assert [len(changes.puts) for changes in store.writes] == [1, 2]
    assert entries(store) == loop.has == {b"first": b"", b"99": b"old", b"same": b"99"}


def test_a_transaction_is_bounded_but_takes_what_was_handed_over_together(store, loop, monkeypatch):
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 10_000)
    store.hold()
    loop.put({b"first": b""})
    assert store.inside.wait(10)
    loop.put({b"large/%d" % number: bytes(1000) for number in range(20)})
    for number in range(20):
        last = loop.put({b"%d" % number: bytes(4000)})

    store.gate.set()
    loop.confirmed(last)

    assert [len(changes.puts) for changes in store.writes] == [1, 20, 3, 3, 3, 3, 3, 3, 2]


def test_an_image_takes_the_place_of_what_waits_before_it(store: Gated, loop: Loop):
    store.hold()
    loop.put({b"first": b""})
    assert store.inside.wait(10)
    loop.put({b"before": b""})
    loop.writer.replace({b"image": b"1"})
    last = loop.put({b"after": b"2"})

    store.gate.set()
    loop.confirmed(last)

    assert entries(store) == {b"image": b"1", b"after": b"2"}
    assert [set(changes.puts) for changes in store.writes] == [{b"first"}, {b"after"}]
    assert loop.writer.unconfirmed.size == 0


def test_empty_changes_are_no_transaction(store: Gated, loop: Loop):
    assert loop.put() == 0
    position = loop.put({b"a": b"1"})
    assert loop.put() == position
    loop.confirmed(position)

    assert len(store.writes) == 1


def test_the_loop_is_woken_when_something_is_confirmed(store: Gated, loop: Loop):
    store.hold()
    position = loop.put({b"a": b"1"})
    loop.bell.clear()
    store.gate.set()

    assert select.select([loop.bell.fd], [], [], 10)[0]
    assert loop.writer.confirmed == position


def test_lag_and_backlog_count_from_the_oldest_that_is_not_confirmed(store: Gated, loop: Loop):
    assert (loop.writer.unconfirmed.lag, loop.writer.unconfirmed.size) == (0.0, 0)
    store.hold()
    began = time.monotonic()
    loop.put({b"a": bytes(5000)})
    assert store.inside.wait(10)
    loop.put({b"b": bytes(7000)})

    wait_until(lambda: loop.writer.unconfirmed.lag > 0.05)
    assert loop.writer.unconfirmed.lag <= time.monotonic() - began
    assert 12_002 < loop.writer.unconfirmed.size < 15_000
    view = loop.listen()
    assert (view["waiting"], view["waiting_bytes"]) == (2, loop.writer.unconfirmed.size)

    store.gate.set()
    loop.confirmed(2)
    assert (loop.writer.unconfirmed.lag, loop.writer.unconfirmed.size) == (0.0, 0)


# --- tiers ------------------------------------------------------------------------------------------------


def test_strict_confirms_what_a_loss_of_power_does_not_take(disk: MemoryDisk):
    loop = Loop(MemoryJournal(disk, strict=True), strict=True)
    loop.confirmed(loop.put({b"a": b"1"}))

    assert loop.writer.synced == 1
    assert disk.lose_power() == 0
    assert loop.close(2.0)


def test_the_other_tier_confirms_at_once_and_syncs_later(disk, store, loop, monkeypatch):
    monkeypatch.setattr(writer_module, "SYNC", 0.6)
    monkeypatch.setattr(writer_module, "IDLE", 10)
    loop.confirmed(loop.put({b"a": b"1"}))
    began = time.monotonic()
    assert (loop.writer.synced, disk.unsynced, store.syncs) == (0, 1, 0)

    wait_until(lambda: loop.writer.synced == 1)

    assert time.monotonic() - began > 0.3
    assert (disk.unsynced, store.syncs) == (0, 1)
    assert loop.listen()["unsynced"] == 0


def test_work_without_a_break_does_not_put_the_sync_off(store: Gated, loop: Loop, monkeypatch):
    monkeypatch.setattr(writer_module, "SYNC", 0.05)
    written = store.write

    def write(number: int, changes: Changes) -> None:
        written(number, changes)
        if store.syncs < 3:  # something waits whenever the writer looks
            loop.put({b"a": b"%d" % number})

    monkeypatch.setattr(store, "write", write)
    loop.put({b"a": b"1"})
    wait_until(lambda: store.syncs >= 3)

    assert len(store.writes) > 10


# --- away -------------------------------------------------------------------------------------------------


def test_what_comes_while_the_store_is_away_is_kept_and_each_change_told_once(disk: MemoryDisk, loop: Loop):
    loop.confirmed(loop.put({b"a": b"1"}))
    disk.away = "frozen"
    for number in range(50):
        position = loop.put({b"%d" % number: b"x"}, {b"%d" % (number - 10)})
    loop.becomes(JournalState.AWAY)
    wait_until(lambda: loop.listen()["why"] == "frozen")
    disk.away = "still frozen"
    wait_until(lambda: loop.listen()["why"] == "still frozen")
    assert loop.writer.confirmed == 1
    assert loop.listen()["waiting"] == 50

    disk.away = ""
    loop.confirmed(position)
    loop.becomes(JournalState.CONNECTED)

    assert disk.entries == loop.has
    assert loop.listen()["waiting"] == 0
    assert loop.news == ["journal.away", "journal.connected"]


def test_a_store_that_goes_while_nothing_is_written_is_noticed(disk: MemoryDisk, loop: Loop):
    disk.away = "down"
    loop.becomes(JournalState.AWAY)
    disk.away = ""
    loop.becomes(JournalState.CONNECTED)

    assert disk.number == 0


def test_a_backlog_above_its_limit_says_so_and_loses_nothing(disk: MemoryDisk, monkeypatch):
    monkeypatch.setattr(writer_module, "BACKLOG_BYTES", 50_000)
    loop = Loop(MemoryJournal(disk))
    disk.away = "down"
    taken = 0
    while not loop.writer.is_full:
        taken += 1
        loop.put({b"%d" % taken: bytes(1000)})
    assert 25 < taken < 50
    assert loop.listen()["full"]
    last = loop.put({b"what ends": b"is taken"})

    disk.away = ""
    loop.confirmed(last)

    assert not loop.writer.is_full
    assert disk.entries == loop.has
    assert loop.close(2.0)


def test_a_transaction_whose_answer_was_lost_counts_once(disk: MemoryDisk, loop: Loop):
    disk.unanswered = 1
    loop.confirmed(loop.put({b"a": b"1"}))
    loop.confirmed(loop.put({b"a": b"2"}))

    assert (disk.number, disk.entries) == (2, {b"a": b"2"})


def test_a_store_that_fails_in_an_unknown_way_is_away_until_it_works(loop: Loop, store: Gated, monkeypatch):
    def fails(number: int, changes: Changes) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", fails)
        position = loop.put({b"a": b"1"})
        loop.becomes(JournalState.AWAY)
        assert loop.listen()["why"] == "ZeroDivisionError"

    loop.confirmed(position)


@pytest.mark.parametrize("succeeds", ["never", "now and then"])
def test_pauses_grow_and_a_store_that_comes_and_goes_does_not_shorten_them(
    loop: Loop, store: Gated, monkeypatch, succeeds: str
):
    monkeypatch.setattr(writer_module, "LONGEST_PAUSE", 0.128)
    failures: list[float] = []
    chance = iter(range(1000))

    def write(number: int, changes: Changes) -> None:
        if succeeds == "now and then" and next(chance) % 2:
            return
        failures.append(time.monotonic())
        raise JournalUnavailable("a replica")

    def go_on() -> bool:
        loop.put({b"a": b"1"})
        return len(failures) > 10

    monkeypatch.setattr(store, "write", write)
    monkeypatch.setattr(store, "rejoin", lambda number: number)
    wait_until(go_on)

    assert failures[10] - failures[9] >= 0.128
    assert loop.close(0.3 if succeeds == "never" else 10.0) is (succeeds != "never")


# --- regressed --------------------------------------------------------------------------------------------


def test_a_journal_that_came_back_empty_gets_all_that_the_loop_has(
    disk: MemoryDisk, store: Gated, loop: Loop
):
    loop.confirmed(loop.put({b"a": b"1"}))
    epoch = loop.writer.epoch
    disk.erase()
    loop.put({b"b": b"2"})
    loop.becomes(JournalState.REGRESSED)
    loop.put({b"c": b"3"})
    wait_until(lambda: loop.writer.unconfirmed.size == 0, message="the image will have it")
    assert loop.writer.confirmed == 1

    image = loop.writer.replace(dict(loop.has))
    last = loop.put({b"d": b"4"}, {b"a"})
    assert (image, last) == (4, 5)
    loop.confirmed(last)
    loop.becomes(JournalState.CONNECTED)

    assert disk.entries == loop.has == {b"b": b"2", b"c": b"3", b"d": b"4"}
    assert store.replacements == 1
    assert loop.writer.epoch == disk.epoch == epoch + 1
    loop.listen()
    assert loop.news == ["journal.regressed", "journal.connected"]


def test_an_image_whose_answer_is_lost_or_whose_store_goes_is_written_all_the_same(disk, store, loop):
    loop.confirmed(loop.put({b"a": b"1"}))
    disk.erase()
    loop.becomes(JournalState.REGRESSED)
    disk.away, disk.unanswered = "down again", 1

    image = loop.writer.replace(dict(loop.has))
    loop.becomes(JournalState.AWAY)
    disk.away = ""
    loop.confirmed(image)

    assert disk.entries == loop.has
    assert disk.number == 1


def test_a_journal_that_regresses_again_under_an_image_gets_it_again(disk, store, loop):
    loop.confirmed(loop.put({b"a": b"1"}))
    disk.erase()
    loop.becomes(JournalState.REGRESSED)
    store.hold()
    image = loop.writer.replace(dict(loop.has))
    last = loop.put({b"b": b"2"})
    assert store.inside.wait(10)
    disk.erase()

    store.gate.set()
    loop.confirmed(last)

    assert image < last
    assert disk.entries == loop.has
    loop.listen()
    assert loop.news.count("journal.regressed") == 1


# --- superseded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [True, False])
def test_another_hub_ends_the_thread_and_nothing_is_kept_any_more(disk: MemoryDisk, loop: Loop, busy: bool):
    loop.confirmed(loop.put({b"a": b"1"}))
    other = MemoryJournal(disk)
    other.open()
    other.write(2, Changes({b"other": b""}))

    if busy:
        loop.put({b"b": b"2"})
    loop.becomes(JournalState.SUPERSEDED)
    wait_until(lambda: not loop.writer._thread.is_alive())
    loop.put({b"c": b"3"})

    assert loop.writer.unconfirmed.size == 0
    assert not loop.close(2.0)
    assert disk.entries == {b"a": b"1", b"other": b""}
    assert "another hub" in str(loop.listen()["why"])
    assert loop.news == ["journal.superseded"]


# --- the end ----------------------------------------------------------------------------------------------


def test_a_close_writes_and_syncs_what_waits(disk: MemoryDisk, store: Gated, loop: Loop):
    store.hold()
    for number in range(100):
        loop.put({b"%d" % number: b"x"})
    opener = threading.Timer(0.05, store.gate.set)
    opener.start()

    assert loop.close(10.0)

    opener.join()
    assert disk.entries == loop.has
    assert disk.unsynced == 0
    assert store.closed.is_set()


def test_a_close_waits_for_a_store_that_comes_back_in_time(disk: MemoryDisk, loop: Loop):
    disk.away = "down"
    loop.put({b"a": b"1"})
    loop.becomes(JournalState.AWAY)
    healer = threading.Timer(0.05, setattr, (disk, "away", ""))
    healer.start()

    assert loop.close(10.0)

    healer.join()
    assert disk.entries == loop.has


@pytest.mark.parametrize("regressed", [False, True])
def test_a_close_gives_a_store_up_that_stays_away(disk: MemoryDisk, loop: Loop, regressed: bool):
    if regressed:
        loop.confirmed(loop.put({b"a": b"1"}))
        disk.erase()
        loop.becomes(JournalState.REGRESSED)
    disk.away = "down"
    loop.put({b"b": b"1"})
    if regressed:
        loop.writer.replace(dict(loop.has))
    loop.becomes(JournalState.AWAY)

    began = time.monotonic()
    assert not loop.close(0.2)

    assert 0.15 < time.monotonic() - began < 2
    assert not loop.writer._thread.is_alive()


def test_a_close_gives_up_a_journal_that_nobody_answers_for(disk: MemoryDisk, loop: Loop):
    loop.confirmed(loop.put({b"a": b"1"}))
    disk.erase()
    loop.becomes(JournalState.REGRESSED)
    loop.put({b"b": b"1"})

    began = time.monotonic()
    assert not loop.close(20.0)

    assert time.monotonic() - began < 5
    assert disk.entries == {}


def test_a_close_cuts_off_a_call_that_hangs(store: Gated, loop: Loop, monkeypatch):
    def hangs(number: int, changes: Changes) -> None:
        store.inside.set()
        assert store.closed.wait(30)
        raise JournalUnavailable("closed")

    monkeypatch.setattr(store, "write", hangs)
    loop.put({b"a": b"1"})
    assert store.inside.wait(10)

    began = time.monotonic()
    assert not loop.close(0.1)

    assert time.monotonic() - began < 3
    assert not loop.writer._thread.is_alive()


def test_one_that_never_started_closes_its_store(store: Gated):
    writer = JournalWriter(store, store.open(), strict=False, wake=bool)
    assert writer.close(2.0)
    assert store.closed.is_set()


# --- all of it --------------------------------------------------------------------------------------------


def disturb(disk: MemoryDisk, chance: random.Random) -> None:
    fault = chance.randrange(10)
    if fault == 0:
        disk.away = chance.choice(["", "down"])
    elif fault == 1:
        disk.unanswered = 1
    elif fault == 2 and chance.random() < 0.3:
        disk.erase()
    elif fault == 3:
        disk.lose_power(chance.randrange(4))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_journal_ends_as_the_loop_has_it(disk: MemoryDisk, monkeypatch, seed: int):
    monkeypatch.setattr(writer_module, "SYNC", 0.002)
    monkeypatch.setattr(writer_module, "IDLE", 0.002)
    chance = random.Random(seed)
    loop = Loop(MemoryJournal(disk))
    position, answered = 0, 0

    def settled() -> bool:
        nonlocal position, answered
        loop.listen()
        if loop.news.count("journal.regressed") > answered:
            answered += 1
            position = loop.writer.replace(dict(loop.has))
        return loop.writer.confirmed == position

    for _ in range(400):
        for _ in range(chance.randrange(5)):
            key, gone = (b"%d" % chance.randrange(40) for _ in range(2))
            position = loop.put({key: chance.randbytes(10)}, {gone})
        disturb(disk, chance)
        if chance.random() < 0.3:
            disk.away = ""
            wait_until(settled, 10, tick=0.0005)
    disk.away = ""
    position = loop.put({b"end": b""})  # a write notices all that has happened

    wait_until(lambda: settled() and loop.writer.synced == position, 10)

    assert loop.close(10.0)
    assert disk.entries == loop.has
