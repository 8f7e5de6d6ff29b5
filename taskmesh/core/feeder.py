"""Which slot gets what: the pool's own little ventilator, with recall from slots that are stuck.

Work is handed over ahead of need, so that a slot never waits for the supervisor, and taken back exactly, by
tickets, when the task before it turns out long.
"""

from __future__ import annotations

from collections import deque

from taskmesh.core.actions import HandOver, PeekSlot, RecallSlot
from taskmesh.core.slots import Piece, Slot, SlotState
from taskmesh.wire.messages import DoneRun, Failed, Held, LaneRun, SlotTasks, Spec

HORIZON = 0.020
"""Seconds of work a slot is handed ahead, at least."""
MAX_HORIZON = 0.500
MAX_AHEAD = 4096
"""Most tasks handed ahead to one slot."""
MIN_PORTION = 0.0002
"""Seconds of work below which a portion is not worth a message of its own."""
STEAL_AFTER = 0.003
"""Silence of a slot with tasks queued after which they are taken back, when another slot is idle."""
UNSTICK_AFTER = 0.020
"""The same when no slot is idle."""


class Feeder:
    """The pool's backlog and the portions that slots get of it."""

    def __init__(self, slots: dict[int, Slot]) -> None:
        self.backlog: deque[Piece] = deque()
        self.specs: dict[int, Spec] = {}
        self.service: dict[int, float] = {}
        self.lag = 0.0
        self.doomed: set[tuple[int, int, int]] = set()
        self._slots = slots

    # --- in and back --------------------------------------------------------------------------------------

    def add(self, run: LaneRun) -> None:
        """Tasks from the lane."""
        self.backlog.append(Piece(run, 0, len(run.seqs)))

    def put_back(self, pieces: list[Piece]) -> None:
        """Tasks that a slot did not start come before all others."""
        self.backlog.extendleft(reversed(pieces))

    def forget(self, numbers: list[int]) -> None:
        """Drops specs that none of the tasks here needs; the hub sends them again before their next use."""
        used = {piece.run.spec for piece in self.backlog}
        used.update(piece.run.spec for slot in self._slots.values() for piece in slot.pieces)
        for number in numbers:
            if number not in used:
                self.specs.pop(number, None)
                self.service.pop(number, None)

    def waiting(self) -> int:
        """How many tasks no slot has."""
        return sum(map(len, self.backlog))

    def give_up(self, count: int) -> list[Held]:
        """Takes up to `count` tasks off the end of the backlog, to hand them back to the hub."""
        given: list[Held] = []
        while count > 0 and self.backlog:
            piece = self.backlog[-1]
            taken = self.backlog.pop() if len(piece) <= count else piece.split_tail(count)
            count -= len(taken)
            held = taken.held()
            if self.doomed:
                self.doomed.difference_update((held.client, seq, held.attempt) for seq in held.seqs)
            given.append(held)
        return given

    def measured(self, spec: int, count: int, elapsed: float) -> None:
        """Takes in `count` runs of a spec that took `elapsed` seconds together."""
        mean, known = elapsed / count, self.service.get(spec)
        self.service[spec] = mean if known is None else known + 0.3 * (mean - known)

    def measured_lag(self, sample: float) -> None:
        """Takes in how long a slot's report waited for this loop: quick to rise, slow to fall."""
        weight = 0.5 if sample > self.lag else 0.1
        self.lag += weight * (max(0.0, sample) - self.lag)

    # --- out ----------------------------------------------------------------------------------------------

    @property
    def horizon(self) -> float:
        """Seconds of work that a slot is handed ahead: 20 ms, or twice the measured refill latency."""
        return min(MAX_HORIZON, max(HORIZON, 2.0 * self.lag))

    def feed(self, now: float) -> list[HandOver]:
        """Hands tasks to slots with room, the emptiest first; nothing to those that are stuck."""
        if not self.backlog:
            return []
        horizon = self.horizon
        up = [slot for slot in self._slots.values() if slot.takes_work]
        ready = [
            slot for slot in up if not slot.count or (not slot.quiet and self._load(slot, horizon) < horizon)
        ]
        ready.sort(key=lambda slot: slot.count)
        handed: list[HandOver] = []
        while self.backlog and ready:
            waiting = self.waiting()
            still = []
            for slot in ready:
                pieces = self._portion(slot, horizon, waiting, len(up), now)
                if pieces:
                    handed.append(self._hand(slot, pieces, now))
                    if self._load(slot, horizon) < horizon:
                        still.append(slot)
            if not still:
                break
            ready = still
        return handed

    def _cost(self, spec: int, horizon: float) -> float:
        service = self.service.get(spec)
        return horizon if service is None or service > horizon else max(service, 1e-7)

    def _load(self, slot: Slot, horizon: float) -> float:
        if slot.count >= MAX_AHEAD:
            return horizon
        return sum(len(piece) * self._cost(piece.run.spec, horizon) for piece in slot.pieces)

    def _portion(self, slot: Slot, horizon: float, waiting: int, slots: int, now: float) -> list[Piece]:
        """The next tasks for a slot: its share of what waits, no more than the horizon, one if it is long."""
        room = horizon - self._load(slot, horizon)
        share = max(1, waiting // (2 * slots))
        pieces: list[Piece] = []
        count = slot.count
        while self.backlog and share > 0:
            piece = self._next()
            if piece is None:
                break
            spec = self.specs[piece.run.spec]
            if spec.hard_timeout > 0 and (slot.count or pieces):
                break
            cost = self._cost(piece.run.spec, horizon)
            worth = max(share, int(MIN_PORTION / cost))
            if spec.hard_timeout > 0:
                fits = 1
                slot.kill_at = now + spec.hard_timeout
            elif cost >= horizon:
                fits = 0 if count else 1
            else:
                fits = max(1 if not count else 0, min(worth, int(room / cost), MAX_AHEAD - count))
            if fits <= 0:
                break
            taken = self.backlog.popleft() if fits >= len(piece) else piece.split(fits)
            pieces.append(taken)
            count += len(taken)
            share -= len(taken)
            room -= len(taken) * cost
            if spec.hard_timeout > 0:
                break
        return pieces

    def _next(self) -> Piece | None:
        """The first piece of the backlog, cut so that none of its tasks has been cancelled."""
        if not self.doomed:
            return self.backlog[0] if self.backlog else None
        while self.backlog:
            piece = self.backlog[0]
            run = piece.run
            seqs = run.seqs[piece.low : piece.high]
            bad = [i for i, seq in enumerate(seqs) if (run.client, seq, run.attempt) in self.doomed]
            if not bad:
                return piece
            if bad[0]:
                self.backlog.appendleft(piece.split(bad[0]))
                return self.backlog[0]
            self.doomed.discard((run.client, seqs[0], run.attempt))
            piece.split(1)
            if not len(piece):
                self.backlog.popleft()
        return None

    def _hand(self, slot: Slot, pieces: list[Piece], now: float) -> HandOver:
        if not slot.count:
            slot.heard = now
            slot.quiet = False
        first = slot.hand(pieces)
        specs = []
        for piece in pieces:
            number = piece.run.spec
            if number not in slot.specs:
                slot.specs.add(number)
                specs.append((number, self.specs[number]))
        return HandOver(
            slot.number, SlotTasks(first, slot.generation, specs, [piece.part() for piece in pieces])
        )

    # --- cancelled tasks ----------------------------------------------------------------------------------

    def has_doomed(self, slot: Slot) -> bool:
        """Whether a slot holds a task that has been cancelled."""
        doomed = self.doomed
        return any(
            (piece.run.client, seq, piece.run.attempt) in doomed
            for piece in slot.pieces
            for seq in piece.run.seqs[piece.low : piece.high]
        )

    def spare(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Cancelled tasks that were quicker need not be dropped any more."""
        self.doomed.difference_update((run.client, seq, run.attempt) for run in done for seq in run.seqs)
        self.doomed.difference_update((failure.client, failure.seq, failure.attempt) for failure in failed)

    # --- recall -------------------------------------------------------------------------------------------

    def unstick(self, now: float) -> list[PeekSlot | RecallSlot]:
        """Takes tasks back from slots that have been silent for too long."""
        actions: list[PeekSlot | RecallSlot] = []
        patience = self._patience()
        for slot in self._slots.values():
            if self._may_be_stuck(slot) and now - slot.heard >= patience:
                actions += self.recall(slot)
        return actions

    def recall(self, slot: Slot) -> list[PeekSlot | RecallSlot]:
        """Takes every unstarted task of a slot back; it is given nothing until it reports."""
        slot.recalling = slot.quiet = True
        slot.generation = (slot.generation + 1) % 256
        return [PeekSlot(slot.number), RecallSlot(slot.number, slot.generation)]

    def recall_deadline(self) -> float | None:
        """When `unstick` should be asked next."""
        patience = self._patience()
        return min(
            (slot.heard + patience for slot in self._slots.values() if self._may_be_stuck(slot)), default=None
        )

    def _patience(self) -> float:
        some_idle = not self.backlog and any(slot.idle for slot in self._slots.values())
        return max(STEAL_AFTER if some_idle else UNSTICK_AFTER, 1.5 * self.lag)

    @staticmethod
    def _may_be_stuck(slot: Slot) -> bool:
        return slot.count >= 2 and slot.state is SlotState.UP and not slot.quiet and not slot.recalling
