"""What a slot was handed and what of it has come back, by serials."""

import pytest

from taskmesh.errors import LocalProtocolError
from taskmesh.messages.runs import LaneRun
from taskmesh.messages.slot_messages import SlotFailure, SlotResults, SlotSegment
from taskmesh.pool.machine.slots import Piece, Slot, SlotCause, SlotState


def slot_with(*sizes: int) -> Slot:
    slot = Slot(0)
    slot.move(SlotCause.START)
    slot.started(1, 0.0)
    first = 1
    for size in sizes:
        run = LaneRun(5, 1, 1, 0, list(range(first, first + size)), [b""] * size)
        slot.hand([Piece(run, 0, size)], 0.0)
        first += size
    return slot


def results(*segments: tuple[int, int], failed: tuple[int, ...] = ()) -> SlotResults:
    done = [
        SlotSegment(first, [b"%d" % (first + index) for index in range(count)], 0.1)
        for first, count in segments
    ]
    return SlotResults(done, [SlotFailure(serial, "exception") for serial in failed], 0.0)


def reported(slot: Slot, report: SlotResults) -> tuple[list[int], list[int]]:
    done, failed = slot.finished(report, "p/0", 0.0)
    for run in done:
        assert [int(payload) + 1 for payload in run.payloads] == run.seqs
    return [seq for run in done for seq in run.seqs], [failure.seq for failure in failed]


def test_the_next_serials_are_the_next_tasks():
    slot = slot_with(3, 2)

    assert reported(slot, results((0, 4))) == ([1, 2, 3, 4], [])
    assert slot.count == 1
    assert slot.running()[1] == 5


def test_failures_stand_between_successes():
    slot = slot_with(5)

    assert reported(slot, results((0, 2), (3, 2), failed=(2,))) == ([1, 2, 4, 5], [3])
    assert slot.count == 0
    assert slot.work == {}


def test_what_was_reported_before_is_passed_over():
    slot = slot_with(4)
    assert reported(slot, results((0, 2))) == ([1, 2], [])
    assert reported(slot, results((0, 3), failed=(3,))) == ([3], [4])
    assert reported(slot, results((0, 3), failed=(3,))) == ([], [])


def test_a_failure_that_was_reported_before_is_passed_over_while_others_are_under_way():
    """It was read from the outbox, and then from the socket: the next task must not fail for it."""
    slot = slot_with(3)
    assert reported(slot, results(failed=(0,))) == ([], [1])

    assert reported(slot, results(failed=(0,))) == ([], [])
    assert slot.count == 2


def test_a_gap_is_a_broken_slot():
    slot = slot_with(4)

    with pytest.raises(LocalProtocolError, match="reports 2 before 0"):
        slot.finished(results((2, 1)), "p/0", 0.0)


def test_taking_back_takes_the_newest_and_serials_go_on():
    slot = slot_with(3, 3)
    taken = slot.take_back(4)
    assert [seq for piece in taken for seq in piece.held().seqs] == [3, 4, 5, 6]
    assert slot.count == 2

    slot.hand([Piece(LaneRun(5, 1, 1, 0, [9], [b""]), 0, 1)], 0.0)
    assert slot.pieces[-1].first == 6
    done, _ = slot.finished(
        SlotResults([SlotSegment(0, [b"", b""], 0.1), SlotSegment(6, [b""], 0.1)], [], 0.0), "p/0", 0.0
    )
    assert [seq for run in done for seq in run.seqs] == [1, 2, 9]


def test_a_part_is_a_run_of_its_own():
    run = LaneRun(5, 1, 3, 1, [1, 2, 3, 4], [b"a", b"b", b"c", b"d"])
    piece = Piece(run, 0, 4)
    head, tail = piece.split(1), piece.split_tail(1)

    assert [one.part().payloads for one in (head, piece, tail)] == [[b"a"], [b"b", b"c"], [b"d"]]
    assert (piece.part().attempt, piece.part().returns) == (3, 1)
    assert Piece(run, 0, 4).part() is run


def test_there_is_something_to_give_only_after_a_hand_over():
    slot = slot_with(3)
    assert slot.can_give
    slot.refilled = False
    assert not slot.can_give, "all that is left has started"
    slot.hand([Piece(LaneRun(5, 1, 1, 0, [9], [b""]), 0, 1)], 0.0)
    assert slot.can_give
    slot.recalling = True
    assert not slot.can_give


def test_a_slot_that_is_to_be_killed_or_has_a_limit_takes_no_work():
    slot = slot_with()
    assert slot.idle
    slot.reason = "cancelled"
    assert not slot.takes_work
    slot.reason, slot.kill_at = "", 5.0
    assert not slot.takes_work
    slot.ended(7.0)
    assert (slot.state, slot.kill_at, slot.start_at) == (SlotState.DOWN, None, 7.0)
