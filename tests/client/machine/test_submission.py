"""Runs cut into parts."""

import itertools
import random

from taskmesh.client.machine.submission import split_run
from taskmesh.messages.runs import Run


def run_of(sizes: list[int]) -> Run:
    return Run(1, 7, list(range(len(sizes))), [bytes(size) for size in sizes], "", False)


def test_a_run_within_both_limits_stays_as_it_is():
    run = run_of([10, 20, 30])

    assert split_run(run, 3, 60) == [run]
    assert split_run(run_of([]), 3, 60) == [run_of([])]


def test_a_task_larger_than_the_limit_travels_alone():
    parts = split_run(run_of([10, 200, 10, 10]), 9, 100)

    assert [part.seqs for part in parts] == [[0], [1], [2, 3]]


def test_parts_are_as_large_as_they_may_be_and_nothing_is_lost():
    dice = random.Random(5)
    for _ in range(500):
        run = run_of([dice.choice([0, 1, 5, 20, 60]) for _ in range(dice.randrange(1, 40))])
        limit, size = dice.randrange(1, 12), dice.randrange(1, 80)

        parts = split_run(run, limit, size)

        assert [seq for part in parts for seq in part.seqs] == run.seqs
        assert [payload for part in parts for payload in part.payloads] == run.payloads
        for part in parts:
            assert len(part.seqs) == 1 or sum(map(len, part.payloads)) <= size
            assert 0 < len(part.seqs) <= limit
        for part, after in itertools.pairwise(parts):
            assert len(part.seqs) == limit or sum(map(len, part.payloads)) + len(after.payloads[0]) > size, (
                "the next task had fitted in"
            )
