"""The contract that every journal keeps, whatever it is stored in; test_contract.py runs it for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskmesh.hub.journal.store import (
    PORTION_BYTES,
    PORTION_ENTRIES,
    Changes,
    JournalRegressed,
    JournalStore,
    JournalSuperseded,
)

Make = Callable[[], JournalStore]


def entries(store: JournalStore) -> dict[bytes, bytes]:
    found = [entry for portion in store.load() for entry in portion]
    assert len(found) == len(dict(found)), "no key comes twice"
    return dict(found)


class Contract:
    """A class of tests; one derived from it has a fixture `place`, which makes stores of one journal."""

    @pytest.fixture
    def make(self, place: Make) -> Iterator[Make]:
        made: list[JournalStore] = []

        def one() -> JournalStore:
            made.append(place())
            return made[-1]

        yield one
        for store in made:
            store.close()

    def test_a_new_one_is_empty_and_has_no_transaction(self, make: Make):
        store = make()

        assert store.open() == (1, 0)
        assert list(store.load()) == []

    def test_what_was_written_is_there_after_a_close(self, make: Make):
        store = make()
        store.open()
        store.write(1, Changes({b"a": b"1", b"b": b"2", b"empty": b""}))
        store.write(2, Changes({b"a": b"3", bytes(range(200)): bytes(range(256))}, {b"b", b"unknown"}))
        store.sync()
        store.close()

        again = make()

        assert again.open() == (2, 2)
        assert entries(again) == {b"a": b"3", b"empty": b"", bytes(range(200)): bytes(range(256))}

    def test_a_number_that_is_stored_is_not_stored_again(self, make: Make):
        store = make()
        store.open()
        store.write(1, Changes({b"a": b"1"}))
        store.write(2, Changes({b"b": b"1"}))

        store.write(2, Changes({b"b": b"other"}))
        store.write(1, Changes({}, {b"b"}))

        assert entries(store) == {b"a": b"1", b"b": b"1"}
        assert store.rejoin(2) == 2

    def test_a_number_beyond_the_next_one_tells_that_transactions_are_missing(self, make: Make):
        store = make()
        store.open()
        store.write(1, Changes({b"a": b"1"}))

        with pytest.raises(JournalRegressed):
            store.write(3, Changes({b"c": b"1"}))

        assert entries(store) == {b"a": b"1"}
        with pytest.raises(JournalRegressed):
            store.rejoin(2)
        assert store.rejoin(1) == 1
        assert store.rejoin(0) == 1, "a transaction whose answer was lost"

    def test_an_empty_batch_counts(self, make: Make):
        store = make()
        store.open()

        store.write(1, Changes())

        assert store.rejoin(1) == 1

    def test_the_newer_of_two_supersedes_the_older_which_changes_nothing_any_more(self, make: Make):
        old, new = make(), make()
        old.open()
        old.write(1, Changes({b"a": b"1"}))

        assert new.open() == (2, 1)

        for attempt in (
            lambda: old.write(2, Changes({b"a": b"old"})),
            lambda: old.write(1, Changes({b"a": b"old"})),
            lambda: old.replace(2, {}),
            old.check,
            lambda: old.rejoin(1),
        ):
            with pytest.raises(JournalSuperseded):
                attempt()
        new.write(2, Changes({b"b": b"2"}))
        new.check()
        assert entries(new) == {b"a": b"1", b"b": b"2"}

    def test_each_opening_has_a_higher_epoch(self, make: Make):
        store = make()

        assert [store.open().epoch for _ in range(3)] == [1, 2, 3]
        assert store.open(above=10).epoch == 11
        assert store.open(above=10).epoch == 12
        store.write(1, Changes({b"a": b"1"}))

    def test_a_replacement_takes_the_place_of_all(self, make: Make):
        store = make()
        store.open()
        store.write(1, Changes({b"a": b"1", b"b": b"2"}))

        store.replace(2, {b"b": b"3", b"c": bytes(9 << 20), b"d": bytes(9 << 20)})
        store.replace(2, {b"other": b""})

        assert {key: len(value) for key, value in entries(store).items()} == {
            b"b": 1,
            b"c": 9 << 20,
            b"d": 9 << 20,
        }
        store.write(3, Changes({b"a": b"4"}))
        store.replace(4, {})
        assert entries(store) == {}
        assert store.rejoin(4) == 4
        with pytest.raises(JournalRegressed):
            store.replace(6, {b"a": b""})

    def test_portions_have_bounds_and_a_large_value_comes_alone(self, make: Make):
        store = make()
        store.open()
        large = b"x" * (40 << 20)
        store.write(1, Changes({b"%d" % number: b"%d" % number for number in range(2500)}))
        store.write(2, Changes({b"large": large}))
        store.write(3, Changes({b"m%d" % number: bytes(1 << 20) for number in range(20)}))

        portions = list(store.load())

        assert sum(len(portion) for portion in portions) == 2521
        found = {key: value for portion in portions for key, value in portion}
        assert found[b"large"] == large
        assert all(found[b"%d" % number] == b"%d" % number for number in range(2500))
        for portion in portions:
            assert len(portion) <= PORTION_ENTRIES
            assert len(portion) == 1 or sum(len(value) for _, value in portion) <= PORTION_BYTES

    def test_a_batch_of_many_small_changes(self, make: Make):
        store = make()
        store.open()
        store.write(1, Changes({b"%d" % number: b"x" for number in range(20_000)}))
        store.write(2, Changes({}, {b"%d" % number for number in range(19_990)}))

        assert len(entries(store)) == 10

    def test_it_can_be_looked_at_without_being_taken_over(self, make: Make):
        hub, other = make(), make()
        hub.open()
        hub.write(1, Changes({b"a": bytes(1000), b"b": b""}))

        status = other.status()

        assert status["entries"] == 2
        assert int(str(status["bytes"])) >= 1000
        assert int(str(status["disk_bytes"])) >= 1000
        assert status["where"]
        assert status["survives"]
        assert len(entries(other)) == 2
        hub.write(2, Changes({b"a": b""}))
        hub.check()

    def test_a_closed_one_can_be_opened(self, make: Make, tmp_path: Path):
        store = make()
        store.open()
        store.close()
        store.close()

        assert store.open().epoch == 2
