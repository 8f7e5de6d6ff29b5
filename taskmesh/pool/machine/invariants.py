"""Invariants of a pool machine between two events: its books agree with each other.

Slow (it looks at everything) and meant for tests; a failure names the book that is wrong.
"""

from __future__ import annotations

from taskmesh.core.state_machine import require
from taskmesh.pool.machine.scheduler import Scheduler
from taskmesh.pool.machine.slots import Piece, Slot, SlotState
from taskmesh.pool.machine.spool import Spool


def check_pool(slots: dict[int, Slot], scheduler: Scheduler, spool: Spool) -> None:
    """Check that slots, backlog and spool agree, and that no attempt is twice in a pool.

    Raises:
        BrokenInvariant: They do not.
    """
    pieces = [*scheduler.backlog, *scheduler.suspects]
    for slot in slots.values():
        _check_slot(slot)
        pieces += slot.pieces
    _check_pieces(pieces, scheduler)
    _check_spool(spool)


def _check_slot(slot: Slot) -> None:
    number = slot.number
    require(slot.count == sum(map(len, slot.pieces)), "a slot's count is wrong", number, slot.count)
    require(slot.count >= 0, "a slot's count is negative", number)
    require(slot.work.keys() <= slot.specs.keys(), "a slot's task's spec was forgotten", number)
    require(slot.spec_bytes == sum(slot.specs.values()), "a slot's spec bytes are wrong", number)
    if slot.pieces:
        has_process = slot.is_up or slot.state is SlotState.STOPPING
        require(has_process, "a slot that is down holds tasks", number)
        last = slot.pieces[-1]
        require(last.first + len(last) <= slot.serial, "serials beyond what was handed over", number)
    require(
        slot.parent is None or (slot.count > 0 and slot.spare_since is None),
        "a slot without a task has lent its permit",
        number,
    )
    require(not slot.is_relief or slot.spare_since is None, "a replacement is spare before it is up", number)
    at = -1
    for piece in slot.pieces:
        require(piece.first >= at, "serials out of order", number, piece.first, at)
        at = piece.first + len(piece)


def _check_pieces(pieces: list[Piece], scheduler: Scheduler) -> None:
    seen: set[tuple[int, int, int]] = set()
    for piece in pieces:
        require(len(piece) > 0, "an empty piece", piece.run.seqs)
        for seq in piece.run.seqs[piece.low : piece.high]:
            key = (piece.run.client, seq, piece.run.attempt)
            require(key not in seen, "an attempt is twice in a pool", key)
            seen.add(key)
        require(piece.run.spec in scheduler.specs, "a piece's spec was forgotten", piece.run.spec)
    gone = scheduler.cancelled - seen
    require(not gone, "cancelled tasks that are not here", gone)


def _check_spool(spool: Spool) -> None:
    reports = spool.reports
    numbers = list(reports.kept)
    require(numbers == list(range(reports.first, reports.next)), "a report is missing", numbers)
    require(reports.size == sum(map(reports.size_of, numbers)), "the spool's bytes are wrong", reports.size)
    require(0 <= reports.in_flight <= reports.size, "bytes in flight are wrong", reports.in_flight)
