"""Dicts that a journal has: what is written of their items, and when."""

import pytest

from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.messages.journal_entries import (
    HOUSE,
    LIMIT,
    OUTCOME,
    SPEC,
    JournalHouse,
    JournalOutcome,
    by_kind,
    key_of,
)
from taskmesh.messages.runs import LimitRule, Spec

ONE, TWO = Spec(b"1", "one"), Spec(b"2", "two")


@pytest.fixture
def journal() -> JournalChanges:
    return JournalChanges()


def specs_of(journal: JournalChanges | None) -> JournaledDict[int, Spec]:
    return JournaledDict(journal, SPEC)


def houses_of(journal: JournalChanges) -> JournaledDict[str, int]:
    return JournaledDict(
        journal,
        HOUSE,
        encode=lambda user, client: JournalHouse(client, user),
        decode=lambda _, entry: (entry.user, entry.client),
    )


def test_every_way_to_change_a_dict_is_noted(journal):
    specs = specs_of(journal)
    specs[1] = ONE
    specs.update({2: ONE, 3: ONE, 4: ONE})
    assert specs.pop(2) is ONE
    assert specs.pop(5, None) is None
    del specs[3]
    assert specs.setdefault(6, TWO) is TWO

    there = {1: ONE, 2: None, 3: None, 4: ONE, 6: TWO}
    assert journal.take() == (1, {key_of(SPEC, number): entry for number, entry in there.items()}, False)
    specs.clear()
    assert journal.changes == {key_of(SPEC, number): None for number in (1, 4, 6)}


def test_what_may_be_late_is_written_together_as_it_is_then(journal):
    specs, other = specs_of(journal), JournaledDict[str, LimitRule](journal, LIMIT)
    specs[1] = ONE
    journal.take()
    specs.drop_later(1)
    specs.drop_later(9)
    specs.put_later(2, ONE)
    specs.put_later(2, TWO)
    other.put_later("api", LimitRule("api", 1))
    assert (1 in specs, journal.changes) == (False, {})

    journal.sweep()
    assert {key[0]: entry for key, entry in journal.changes.items() if key[0] == LIMIT} == {
        LIMIT: LimitRule("api", 1)
    }
    assert [journal.changes[key_of(SPEC, number)] for number in (1, 2)] == [None, TWO]
    journal.take()
    journal.sweep()
    assert journal.changes == {}


def test_an_item_that_is_dropped_later_is_in_the_changes_that_had_it(journal):
    """Somebody waits for these: the item goes with what ends it, not before."""
    specs = specs_of(journal)
    specs[1] = ONE
    specs.drop_later(1)
    assert journal.take()[1] == {key_of(SPEC, 1): ONE}
    journal.sweep()
    assert journal.take()[1] == {key_of(SPEC, 1): None}


def test_an_outcome_is_pending_until_the_changes_that_have_it_are_written(journal):
    outcomes: JournaledDict[int, JournalOutcome] = JournaledDict(journal, OUTCOME)
    outcomes[1] = JournalOutcome(None, None)
    assert (outcomes.pending(1), outcomes.pending(2), journal.all_pending) == (1, 0, 1)
    journal.take()
    outcomes[2] = JournalOutcome(None, None)
    journal.take()
    outcomes[1] = JournalOutcome(None, None)
    journal.take()
    assert (outcomes.pending(1), outcomes.pending(2)) == (3, 2)

    journal.on_written(2)
    assert (outcomes.pending(1), outcomes.pending(2), journal.all_pending) == (3, 0, 3)
    journal.on_written(3)
    assert (outcomes.pending(1), journal.all_pending) == (0, 0)


def test_the_next_hub_has_the_same_items_and_writes_none_of_them(journal):
    specs, houses = specs_of(journal), houses_of(journal)
    specs.update({2: TWO, 1: ONE})
    houses["ann"] = 7

    after = JournalChanges()
    specs, houses = specs_of(after), houses_of(after)
    after.fill(by_kind(journal.take()[1]))
    assert (dict(specs), dict(houses)) == ({1: ONE, 2: TWO}, {"ann": 7})
    assert after.changes == {}


def test_all_is_written_again_once_it_was_lost(journal):
    specs, houses = specs_of(journal), houses_of(journal)
    specs.update({1: ONE, 2: TWO})
    houses["ann"] = 7
    journal.take()
    specs.drop_later(1)

    journal.rewrite()
    number, changes, is_whole = journal.take()
    assert (number, is_whole) == (2, True)
    assert by_kind(changes)[SPEC] == {2: TWO}
    assert list(by_kind(changes)[HOUSE].values()) == [JournalHouse(7, "ann")]
    journal.sweep()
    assert journal.changes == {}


def test_without_a_journal_it_is_a_dict():
    specs = specs_of(None)
    specs[1] = ONE
    specs.put_later(2, TWO)
    specs.drop_later(1)
    assert (dict(specs), specs.later, specs.pending(2)) == ({2: TWO}, {}, 0)
