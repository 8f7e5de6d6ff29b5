"""Invariants of a pool machine between two events: its books agree with each other.

Slow (it looks at everything) and meant for tests; a failure names the book that is wrong.
"""

from __future__ import annotations

from typing import Protocol

from taskmesh.core.pool.feeder import Feeder
from taskmesh.core.pool.slots import Slot, SlotState
from taskmesh.core.state_machine import require


class PoolBooks(Protocol):
    """The part of a pool machine that the checks read."""

    feeder: Feeder
    slots: dict[int, Slot]


def check_pool(pool: PoolBooks) -> None:
    """The agreement of slots, backlog and spool; no attempt twice in a pool."""
    seen: set[tuple[int, int, int]] = set()
    pieces = [*pool.feeder.backlog, *pool.feeder.aside]
    for slot in pool.slots.values():
        require(slot.count == sum(map(len, slot.pieces)), "a slot's count is wrong", slot.number, slot.count)
        require(slot.count >= 0, "a slot's count is negative", slot.number)
        require(slot.work.keys() <= slot.specs.keys(), "a slot's task's spec was forgotten", slot.number)
        require(slot.spec_bytes == sum(slot.specs.values()), "a slot's spec bytes are wrong", slot.number)
        if slot.pieces:
            require(
                slot.state in (SlotState.UP, SlotState.STOPPING),
                "a slot that is down holds tasks",
                slot.number,
            )
            last = slot.pieces[-1]
            require(last.first + len(last) <= slot.serial, "serials beyond what was handed over", slot.number)
        require(
            slot.parent is None or (slot.count > 0 and slot.benched_at is None),
            "a slot without a task has given its place away",
            slot.number,
        )
        at = -1
        for piece in slot.pieces:
            require(piece.first >= at, "serials out of order", slot.number, piece.first, at)
            at = piece.first + len(piece)
        pieces += slot.pieces
    for piece in pieces:
        require(len(piece) > 0, "an empty piece", piece.run.seqs)
        for seq in piece.run.seqs[piece.low : piece.high]:
            key = (piece.run.client, seq, piece.run.attempt)
            require(key not in seen, "an attempt is twice in a pool", key)
            seen.add(key)
        require(piece.run.spec in pool.feeder.specs, "a piece's spec was forgotten", piece.run.spec)
    require(pool.feeder.doomed <= seen, "dooms of tasks that are not here", pool.feeder.doomed - seen)
