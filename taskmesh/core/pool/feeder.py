"""Which slot gets what: the pool's own little ventilator, with recall from slots that are stuck.

Work is handed over ahead of need, so that a slot never waits for the supervisor, and taken back exactly, by
tickets, when the task before it turns out long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from taskmesh.core.actions import HandOver, PeekSlot, RecallSlot
from taskmesh.core.credit import MOST_AHEAD, SLOT_HORIZON, Credit, ServiceTime
from taskmesh.core.pool.membership import CLIENT_MASK, hub_of
from taskmesh.core.pool.slots import Piece, Slot
from taskmesh.core.specs import evicted
from taskmesh.wire.runs import DoneRun, Failed, Held, LaneRun, Spec
from taskmesh.wire.slot_messages import SlotTasks

MOST_SPECS = 2000
"""Specs that a pool keeps, at most, but for those of its tasks."""
SPEC_BYTES = 512 << 20
"""The same in bytes of functions that travel by value."""
STEAL_AFTER = 0.003
"""Silence of a slot with tasks queued after which they are taken back, when another slot is idle."""
STEAL_WORTH = 0.002
"""Seconds of work queued in one slot that are worth sharing with an idle one at once."""
GENERATIONS = 1 << 16
"""Tickets have room for so many; no slot is recalled as often while one task runs."""
UNSTICK_AFTER = 0.020
"""The same when no slot is idle."""
UNSTICK_LAST_AFTER = 0.250
"""The same for a single task: no other slot would start it at once, and when the long one ends it is at hand
(a refill after a nap of 100 ms took 0.5 to 1 ms; skewed naps over ideal 1.028 in place of 1.034)."""


class KnownSpec(ServiceTime):
    """A spec as the pool keeps it, with the time that its tasks take."""

    __slots__ = ("spec",)

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec


class Feeder:
    """The pool's backlog and the portions that slots get of it.

    Attributes:
        crowded: whether a slot may have more than one task.
        aside: of the backlog, what belongs to hubs that have to say first what is still wanted.

    Args:
        slots: the pool's.
        disturb: called when a slot has got a task with a hard limit.
    """

    def __init__(self, slots: dict[int, Slot], disturb: Callable[[], None]) -> None:
        self.backlog: deque[Piece] = deque()
        self.specs: dict[int, KnownSpec] = {}
        self.credit = Credit(SLOT_HORIZON, fall=0.1)
        self.doomed: set[tuple[int, int, int]] = set()
        self._frozen: set[int] = set()
        self.aside: list[Piece] = []
        self._slots = slots
        self._disturb = disturb
        self.crowded = False

    # --- in and back --------------------------------------------------------------------------------------

    def add(self, run: LaneRun) -> None:
        """Tasks from the lane."""
        self.backlog.append(Piece(run, 0, len(run.seqs)))

    def learn(self, specs: list[tuple[int, Spec]]) -> None:
        """Takes in specs by number. What has been measured of one that comes again stays known."""
        for number, spec in specs:
            if number not in self.specs:
                self.specs[number] = KnownSpec(spec)

    def put_back(self, pieces: list[Piece]) -> None:
        """Tasks that a slot did not start come before all others."""
        self.backlog.extendleft(reversed(pieces))
        if self._frozen:
            self._set_aside()

    def freeze(self, hub: int, *, frozen: bool = True) -> None:
        """Nothing of this hub's is started until it has said what is still wanted, and this is taken back."""
        if frozen:
            self._frozen.add(hub)
            self._set_aside()
        elif hub in self._frozen:
            self._frozen.remove(hub)
            aside, self.aside = self.aside, []
            self.put_back(aside)

    def _set_aside(self) -> None:
        pieces = list(self.backlog)
        self.backlog.clear()
        for piece in pieces:
            (self.aside if hub_of(piece.run.client) in self._frozen else self.backlog).append(piece)

    def holds(self, hub: int) -> bool:
        """Whether tasks of a hub's wait here for a slot."""
        pieces = (*self.backlog, *self.aside) if self.aside else self.backlog
        return any(hub_of(piece.run.client) == hub for piece in pieces)

    def forget(self, numbers: list[int]) -> None:
        """Drops specs that none of the tasks here needs; the hub sends them again before their next use."""
        used = self._used()
        self._drop(number for number in numbers if number not in used)

    def tidy(self) -> None:
        """Drops the oldest specs that none of the tasks here needs, where they are too many.

        The hub does not tell what an earlier session, or another hub, has left here. What it counts on here
        and is gone is asked for, so it is to forget first: the bounds are far above its own.
        """
        sizes = {number: len(known.spec.function) for number, known in self.specs.items()}
        if len(sizes) > MOST_SPECS or sum(sizes.values()) > SPEC_BYTES:
            self._drop(evicted(sizes, self._used().__contains__, most=MOST_SPECS, most_bytes=SPEC_BYTES))

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.specs.pop(number, None)

    def _used(self) -> set[int]:
        """The specs of the tasks here."""
        used = {piece.run.spec for piece in (*self.backlog, *self.aside)}
        return used.union(*[slot.work for slot in self._slots.values()])

    def waiting(self) -> int:
        """How many tasks no slot has."""
        return sum(map(len, self.backlog)) + sum(map(len, self.aside))

    def give_up(self, count: int, hub: int) -> list[Held]:
        """Takes up to `count` tasks of a hub's off the end of the backlog, to hand them back."""
        given: list[Held] = []
        others: list[Piece] = []
        while count > 0 and self.backlog:
            piece = self.backlog[-1]
            if hub_of(piece.run.client) != hub:
                others.append(self.backlog.pop())
                continue
            taken = self.backlog.pop() if len(piece) <= count else piece.split_tail(count)
            count -= len(taken)
            held = taken.held()
            if self.doomed:
                self.doomed.difference_update((held.client, seq, held.attempt) for seq in held.seqs)
            given.append(held)
        self.backlog.extend(reversed(others))
        return given

    # --- out ----------------------------------------------------------------------------------------------

    def feed(self, now: float) -> list[HandOver]:
        """Hands each slot with room one portion, the emptiest first; nothing to those that are stuck."""
        if not self.backlog:
            return []
        if len(self.backlog) == 1 and len(self.backlog[0]) == 1 and not self.doomed:
            lone = self._feed_lone(now)
            if lone is not None:
                return [lone]
        horizon = self.credit.horizon
        ready = [
            slot
            for slot in self._slots.values()
            if (not slot.count or (not slot.quiet and self._load(slot) < horizon)) and slot.takes_work
        ]
        if len(ready) > 1:
            ready.sort(key=lambda slot: slot.count)
        handed: list[HandOver] = []
        waiting = sum(map(len, self.backlog))  # what is set aside is nobody's to share
        for index, slot in enumerate(ready):
            share = -(-waiting // (len(ready) - index))
            pieces = self._portion(slot, share, now)
            if pieces:
                handed.append(self._hand(slot, pieces, now))
                waiting -= sum(map(len, pieces))
            if not self.backlog:
                break
        return handed

    def _feed_lone(self, now: float) -> HandOver | None:
        """The only task there is goes to the first idle slot, if there is one: no portions to be weighed."""
        for slot in self._slots.values():
            if not slot.count and slot.takes_work:
                piece = self.backlog.popleft()
                limit = self.specs[piece.run.spec].spec.hard_timeout
                if limit > 0:
                    slot.kill_at = now + limit
                    self._disturb()
                return self._hand(slot, [piece], now)
        return None

    def _load(self, slot: Slot) -> float:
        """Returns the seconds of work that a slot has, the whole horizon if it may have no more tasks."""
        credit, specs = self.credit, self.specs
        if slot.count >= MOST_AHEAD:
            return credit.horizon
        return sum([count * credit.cost(specs[spec].service) for spec, count in slot.work.items()])

    def _portion(self, slot: Slot, share: int, now: float) -> list[Piece]:
        """The next tasks for a slot: its share of what waits, no more than the horizon, one if it is long.

        The whole share, not half of it for a better balance at the end: what one slot has too much of is
        taken back when another is idle, and a slot that runs dry waits for a loop that may lack the GIL.
        """
        horizon = self.credit.horizon
        room = horizon - self._load(slot)
        pieces: list[Piece] = []
        count = slot.count
        while self.backlog and share > 0:
            piece = self._next()
            if piece is None:
                break
            known = self.specs[piece.run.spec]
            limit = known.spec.hard_timeout
            if limit > 0 and (slot.count or pieces):
                break
            cost = self.credit.cost(known.service)
            if limit > 0:
                fits = 1
                slot.kill_at = now + limit
                self._disturb()
            elif cost >= horizon:
                fits = 0 if count else 1
            else:
                fits = min(share, math.ceil(room / cost), MOST_AHEAD - count) if room > 0 else 0
            if fits <= 0:
                break
            taken = self.backlog.popleft() if fits >= len(piece) else piece.split(fits)
            pieces.append(taken)
            count += len(taken)
            share -= len(taken)
            room -= len(taken) * cost
            if limit > 0:
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
            slot.quiet = slot.peeked = False
        first = slot.hand(pieces)
        self.crowded |= slot.count > 1
        specs: list[tuple[int, Spec | None]] = []
        for piece in pieces:
            number = piece.run.spec
            if number not in slot.specs:
                slot.learn(number, spec := self.specs[number].spec)
                specs.append((number, spec))
        if specs:
            specs += [(number, None) for number in slot.evict()]
        return HandOver(
            slot.number, SlotTasks(first, slot.generation, specs, [piece.part() for piece in pieces])
        )

    # --- what is here -------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[Piece]:
        """Everything that slots and backlog hold."""
        yield from self.backlog
        yield from self.aside
        for slot in self._slots.values():
            yield from slot.pieces

    def inventory(self, hub: int = 0) -> list[Held]:
        """Lists the tasks that slots and backlog hold for a hub, without the cancelled ones."""
        found: list[Held] = []
        for piece in self._pieces():
            if hub_of(piece.run.client) != hub:
                continue
            held = piece.held()
            if self.doomed:
                held.seqs = [s for s in held.seqs if (held.client, s, held.attempt) not in self.doomed]
            held.client &= CLIENT_MASK
            held.bound = self.specs[piece.run.spec].spec.on_client_loss == "cancel"
            if held.seqs:
                found.append(held)
        return found

    def dying(self, hub: int) -> list[Held]:
        """Lists a hub's running tasks whose slots are about to be killed; the inventory leaves them out."""
        found: list[Held] = []
        for slot in self._slots.values() if self.doomed else ():
            if (current := slot.running()) is not None:
                run, seq = current
                if hub_of(run.client) == hub and (run.client, seq, run.attempt) in self.doomed:
                    client = run.client & CLIENT_MASK
                    found.append(Held(client, run.attempt, [seq], returns=run.returns))
        return found

    # --- cancelled tasks ----------------------------------------------------------------------------------

    def doom(self, tasks: list[Held]) -> None:
        """Those of these tasks that are here are not to be run."""
        wanted = {(held.client, seq, held.attempt) for held in tasks for seq in held.seqs}
        pieces = [piece.held() for piece in self._pieces()]
        self.doomed |= wanted & {(held.client, seq, held.attempt) for held in pieces for seq in held.seqs}

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
        """Takes tasks back from slots that are silent, or that have much while another has nothing."""
        stuck = self._stuck()
        if not stuck:
            return []
        actions: list[PeekSlot | RecallSlot] = []
        idle = self._some_idle()
        for slot in stuck:
            if now - slot.heard >= self._patience(slot, idle=idle):
                if idle or slot.peeked or slot.count > 2:
                    actions += self.recall(slot)
                else:  # if one of the two is done, the other must not hold its result up
                    slot.peeked = True
                    actions.append(PeekSlot(slot.number))
            elif idle and self._load(slot) - (now - slot.heard) >= STEAL_WORTH:
                actions += self.recall(slot)
                slot.quiet = False
        return actions

    def recall(self, slot: Slot) -> list[PeekSlot | RecallSlot]:
        """Takes every unstarted task of a slot back; it is given nothing until it reports."""
        slot.recalling = slot.quiet = True
        slot.refilled = False
        slot.generation = (slot.generation + 1) % GENERATIONS
        return [PeekSlot(slot.number), RecallSlot(slot.number, slot.generation)]

    def recall_deadline(self) -> float:
        """When `unstick` should be asked next."""
        stuck = self._stuck()
        if not stuck:
            return math.inf
        idle = self._some_idle()
        return min([slot.heard + self._patience(slot, idle=idle) for slot in stuck])

    def _stuck(self) -> list[Slot]:
        """Slots that may be, with tasks that can be taken back."""
        crowded = [slot for slot in self._slots.values() if slot.count >= 2]
        self.crowded = bool(crowded)
        return [slot for slot in crowded if slot.can_give and not slot.quiet]

    def _some_idle(self) -> bool:
        return not self.backlog and any([slot.idle for slot in self._slots.values()])  # noqa: C419  a generator costs more here

    def _patience(self, slot: Slot, *, idle: bool) -> float:
        if idle:
            after = STEAL_AFTER
        else:
            after = UNSTICK_LAST_AFTER if slot.peeked and slot.count == 2 else UNSTICK_AFTER
        return max(after, 1.5 * self.credit.latency)
