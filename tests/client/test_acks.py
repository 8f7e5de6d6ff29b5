"""Acceptance knows the counters that the hub has confirmed, in whatever order they come."""

import random

from taskmesh.client.sequence import Acceptance


class Unseen(dict[int, object]):
    """Tasks at which nobody needs to look."""

    def keys(self):
        raise AssertionError("nobody needs to know the oldest")


def test_acceptance_in_order_is_one_number():
    acceptance = Acceptance(Unseen())

    acceptance.add(range(1, 1001))
    acceptance.add([1001])

    assert acceptance.to == 1001
    assert 1001 in acceptance
    assert 1002 not in acceptance


def test_acceptance_fills_gaps_whatever_the_order():
    for seed in range(50):
        chance = random.Random(seed)
        seqs = list(range(1, 200))
        chance.shuffle(seqs)
        acceptance = Acceptance(Unseen())
        added = set()
        while seqs:
            part = [seqs.pop() for _ in range(min(len(seqs), chance.randint(1, 20)))]
            part += chance.sample(sorted(added), min(len(added), 2))  # repeats are harmless
            added |= set(part)
            acceptance.add(part)
            assert {seq for seq in range(1, 220) if seq in acceptance} == added
        assert acceptance.to == 199


def test_acceptance_with_scattered_numbers_that_look_contiguous_is_not_fooled():
    acceptance = Acceptance(Unseen())

    acceptance.add([1, 7, 3])

    assert acceptance.to == 1
    assert 2 not in acceptance
    assert 7 in acceptance


def test_acceptance_with_a_gap_for_ever_does_not_grow_for_ever():
    unresolved = {}
    acceptance = Acceptance(unresolved)

    for first in range(2, 400_002, 1000):
        unresolved[first] = "a task"
        acceptance.add(range(first, first + 1000))
        del unresolved[first]

    assert len(acceptance._ahead) < 200_000
    assert 400_001 in acceptance


def test_acceptance_keeps_nothing_of_what_stands_before_its_number():
    acceptance = Acceptance(Unseen())
    for first in range(1, 1001, 10):
        acceptance.add([first + 4])  # cancelled
        acceptance.add(range(first, first + 10))
    acceptance.add([1003])
    acceptance.add([1000, 1004])  # a repeat of one that has its place long since

    assert acceptance.to == 1000
    assert acceptance._ahead == {1003, 1004}
