"""The pool's scheduler: which slot gets what, and what is taken back from slots that are stuck.

Work is handed over ahead of need, so that a slot never waits for the supervisor, and taken back exactly, by
tickets, when the task before it turns out long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

from taskmesh.core.actions import HandOver, PeekSlot, RecallSlot
from taskmesh.core.credit import MOST_AHEAD, SLOT_HORIZON, WORTH, Credit, ServiceTime
from taskmesh.core.specs import evicted
from taskmesh.messages.runs import DoneRun, Failed, Held, LaneRun, Spec
from taskmesh.messages.slot_messages import SlotTasks
from taskmesh.pool.machine.slots import UP, Piece, Slot
from taskmesh.pool.machine.values import Values

MOST_SPECS = 2000
"""Specs that a pool keeps, at most, but for those of its tasks."""
SPEC_BYTES = 256 << 20
"""The same in bytes of functions that travel by value; a hub keeps no more."""
MOST_SUSPECTED = 10_000
"""Tasks that are remembered as suspects of a crash."""
SUSPECTED_S = 600.0
"""Seconds for which they are: another pool may have run them."""
STEAL_AFTER = 0.003
"""Seconds of silence of a slot with tasks queued after which they are taken back, when another is idle."""
STEAL_WORTH = 0.002
"""Seconds of work queued in one slot that are worth sharing with an idle one at once."""
UNSTICK_AFTER = 0.020
"""Like STEAL_AFTER, while no slot is idle."""
UNSTICK_LAST_AFTER = 0.250
"""Like UNSTICK_AFTER, for a single task: no other slot would start it at once, and when the long one ends it
is at hand (a refill after a nap of 100 ms took 0.5 to 1 ms; skewed naps over ideal 1.028, not 1.034)."""

Recall = PeekSlot | RecallSlot
Attempt = tuple[int, int, int]
"""Client, counter and number of an attempt."""


class KnownSpec(ServiceTime):
    """A spec as the pool keeps it, with the time that its tasks take.

    Attributes:
        spec: The spec.
        limit: Seconds after which its task, which is alone in its slot, is killed; 0 for never; infinite if
            it is alone for another reason: what it prints must be told from what others print, or it has a
            time limit and runs in a thread, which may have to be left to it.
    """

    __slots__ = ("limit", "spec")

    def __init__(self, spec: Spec, *, threads: bool = False) -> None:
        super().__init__()
        self.spec = spec
        alone = spec.timeout > 0 if threads else spec.stream_logs
        self.limit = spec.hard_timeout or (math.inf if alone else 0.0)


class Scheduler:
    """The pool's backlog and the portions that slots get of it.

    Args:
        slots: All slots of the pool.
        disturb: Called when a slot has got a task with a limit.
        threads: Slots are threads.

    Attributes:
        backlog: Tasks that no slot has, first the one that goes next.
        suspected: Tasks that may have killed a process that they shared, by client and counter: since when.
        suspects: Those of them that wait: they run in processes of their own.
        specs: Specs of tasks, by number, oldest first.
        cancelled: Attempts here that are not to be run.
        credit: Work that slots are handed ahead of need.
        crowded: True if a slot may have more than one task.
    """

    def __init__(self, slots: dict[int, Slot], disturb: Callable[[], None], *, threads: bool = False) -> None:
        self.backlog: deque[Piece] = deque()
        self.suspected: dict[tuple[int, int], float] = {}
        self.suspects: deque[Piece] = deque()
        self._threads = threads
        self.specs: dict[int, KnownSpec] = {}
        self.values = Values()
        self.cancelled: set[Attempt] = set()
        self.credit = Credit(SLOT_HORIZON, fall=0.1)
        self.crowded = False
        self._slots = slots
        self._disturb = disturb

    # --- in and back --------------------------------------------------------------------------------------

    def add(self, run: LaneRun) -> None:
        piece = Piece(run, 0, len(run.seqs))
        if not self.suspected:
            self.backlog.append(piece)
            return
        while len(piece):
            ahead = 0
            while ahead < len(piece) and (run.client, run.seqs[piece.low + ahead]) not in self.suspected:
                ahead += 1
            if ahead:
                self.backlog.append(piece.split(ahead))
            else:
                self.suspects.append(piece.split(1))

    def suspect(self, client: int, seq: int, now: float) -> None:
        """Have a task run in a process of its own when it comes again."""
        self.suspected.pop((client, seq), None)
        if len(self.suspected) >= MOST_SUSPECTED:
            del self.suspected[next(iter(self.suspected))]
        self.suspected[client, seq] = now

    def release_suspects(self) -> None:
        """Have suspects that wait be handed back, as other tasks: no slot is started for them."""
        self.put_back(list(self.suspects))
        self.suspects.clear()

    def put_back(self, pieces: list[Piece]) -> None:
        """Take in tasks that a slot did not start; they come before all others."""
        self.backlog.extendleft(reversed(pieces))

    def keep_values(self) -> None:
        """Drop the outcomes that the hub has sent, but those that tasks here need: a session begins."""
        if self.values:
            self.values.keep_only([piece.run for piece in self._pieces()])

    def waiting(self) -> int:
        """Return how many tasks no slot has."""
        return sum(map(len, self.backlog)) + len(self.suspects)

    def hand_back(self, count: int) -> list[Held]:
        """Take up to `count` tasks off the end of the backlog, to be handed back to the hub."""
        given: list[Held] = []
        while count > 0 and self.backlog:
            piece = self.backlog[-1]
            taken = self.backlog.pop() if len(piece) <= count else piece.split_tail(count)
            count -= len(taken)
            held = taken.held()
            if self.cancelled:
                self.cancelled.difference_update((held.client, seq, held.attempt) for seq in held.seqs)
            given.append(held)
        return given

    # --- specs --------------------------------------------------------------------------------------------

    def learn(self, specs: list[tuple[int, Spec]]) -> None:
        """Take in specs by number. What has been measured of one that comes again stays known."""
        for number, spec in specs:
            if number not in self.specs:
                self.specs[number] = KnownSpec(spec, threads=self._threads)

    def evict(self, now: float) -> None:
        """Drop suspects that have not come again, and, if there are too many, specs that no task here needs.

        A spec that the hub takes for known and that is gone is asked for, which costs its tasks a way back
        and forth. The hub keeps fewer, so that most are evicted there first, and come again by themselves.
        """
        while self.suspected and now - (first := next(iter(self.suspected.items())))[1] > SUSPECTED_S:
            del self.suspected[first[0]]
        sizes = {number: len(known.spec.function) for number, known in self.specs.items()}
        if len(sizes) > MOST_SPECS or sum(sizes.values()) > SPEC_BYTES:
            used = {piece.run.spec for piece in (*self.backlog, *self.suspects)}
            used.update(*[slot.work for slot in self._slots.values()])
            for number in evicted(sizes, used.__contains__, most=MOST_SPECS, most_bytes=SPEC_BYTES):
                del self.specs[number]

    # --- out ----------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[HandOver]:
        """Hand each slot with room one portion, the emptiest first; nothing to those that are stuck."""
        backlog = self.backlog
        if not backlog:
            return []
        if len(backlog) == 1 and backlog[0].high - backlog[0].low == 1 and not self.cancelled:
            lone = self._dispatch_lone(now)
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
        waiting = sum([piece.high - piece.low for piece in backlog])
        for index, slot in enumerate(ready):
            share = -(-waiting // (len(ready) - index))
            before = slot.count
            message = self._portion(slot, share, now)
            if message is not None:
                handed.append(message)
                waiting -= slot.count - before
            if not backlog:
                break
        return handed

    def _dispatch_lone(self, now: float) -> HandOver | None:
        """Hand the only task there is to the first idle slot, if there is one: there is nothing to weigh."""
        for slot in self._slots.values():
            if not slot.count and slot.takes_work:
                piece = self.backlog.popleft()
                return self._hand(slot, [piece], now, self.specs[piece.run.spec].limit)
        return None

    def dispatch_suspect(self, slot: Slot, now: float) -> HandOver | None:
        """Hand a slot, which has a process to itself, the next suspect; None if there is none."""
        while self.suspects:
            piece = self.suspects.popleft()
            attempt = (piece.run.client, piece.run.seqs[piece.low], piece.run.attempt)
            if attempt not in self.cancelled:
                return self._hand(slot, [piece], now, self.specs[piece.run.spec].limit)
            self.cancelled.discard(attempt)
        return None

    def _load(self, slot: Slot) -> float:
        """Return the seconds of work that a slot has, the whole horizon if it may have no more tasks."""
        credit, specs = self.credit, self.specs
        if slot.count >= MOST_AHEAD:
            return credit.horizon
        return sum([count * credit.cost(specs[spec].service) for spec, count in slot.work.items()])

    def _portion(self, slot: Slot, share: int, now: float) -> HandOver | None:
        """Hand a slot its share of what waits, no more than the horizon, one task if that is long.

        The whole share, not half of it for a better balance at the end: what one slot has too much of is
        taken back when another is idle, and a slot that runs dry waits for a loop that may lack the GIL. And
        as much as is worth a message, while others get nothing.
        """
        horizon = self.credit.horizon
        room = horizon - self._load(slot)
        left = room - WORTH  # by a portion that is worth a message
        pieces: list[Piece] = []
        count, limit = slot.count, 0.0
        most_ahead = min(MOST_AHEAD, count + slot.end - slot.serial)
        while self.backlog and share > 0 and not limit:
            piece = self._next()
            if piece is None:
                break
            known = self.specs[piece.run.spec]
            cost = self.credit.cost(known.service)
            if known.limit > 0 or cost >= horizon:
                fits = 0 if count else 1
            else:
                most = max(share, int((room - left) / cost))
                fits = min(most, math.ceil(room / cost), most_ahead - count) if room > 0 else 0
            if fits <= 0:
                break
            size = piece.high - piece.low
            if fits >= size:
                self.backlog.popleft()
            else:
                piece, size = piece.split(fits), fits
            pieces.append(piece)
            limit = known.limit
            count += size
            share -= size
            room -= size * cost
        return self._hand(slot, pieces, now, limit) if pieces else None

    def _next(self) -> Piece | None:
        """Return the first piece of the backlog, cut so that none of its tasks has been cancelled."""
        if not self.cancelled:
            return self.backlog[0] if self.backlog else None
        while self.backlog:
            piece = self.backlog[0]
            run = piece.run
            seqs = run.seqs[piece.low : piece.high]
            bad = [i for i, seq in enumerate(seqs) if (run.client, seq, run.attempt) in self.cancelled]
            if not bad:
                return piece
            if bad[0]:
                self.backlog.appendleft(piece.split(bad[0]))
                return self.backlog[0]
            self.cancelled.discard((run.client, seqs[0], run.attempt))
            piece.split(1)
            if not len(piece):
                self.backlog.popleft()
        return None

    def _hand(self, slot: Slot, pieces: list[Piece], now: float, limit: float) -> HandOver:
        prints = False
        if limit > 0:
            if limit < math.inf:
                self._disturb()
            prints = not self._threads and self.specs[pieces[0].run.spec].spec.stream_logs
        first = slot.hand(pieces, now, limit)
        if slot.state is not UP:
            self._disturb()
        self.crowded |= slot.count > 1
        specs: list[tuple[int, Spec | None]] = []
        for piece in pieces:
            number = piece.run.spec
            if number not in slot.specs:
                slot.learn(number, spec := self.specs[number].spec)
                specs.append((number, spec))
        if specs:
            specs += [(number, None) for number in slot.evict()]
        runs = [
            self.values.of(piece.run.client, piece.part()) if piece.run.needs else piece.part()
            for piece in pieces
        ]
        return HandOver(slot.number, SlotTasks(first, slot.generation, specs, runs, prints))

    # --- what is here -------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[Piece]:
        """Yield everything that slots and backlog hold."""
        yield from self.backlog
        yield from self.suspects
        for slot in self._slots.values():
            yield from slot.pieces

    def inventory(self) -> list[Held]:
        """List the tasks that slots and backlog hold."""
        found: list[Held] = []
        for piece in self._pieces():
            held = piece.held()
            spec = self.specs[piece.run.spec].spec
            held.bound, held.limits = spec.on_client_loss == "cancel", spec.limits
            found.append(held)
        return found

    # --- cancelled tasks ----------------------------------------------------------------------------------

    def cancel(self, tasks: list[Held]) -> None:
        """Those of these tasks that are here are not to be run."""
        wanted = {(held.client, seq, held.attempt) for held in tasks for seq in held.seqs}
        pieces = [piece.held() for piece in self._pieces()]
        self.cancelled |= wanted & {(held.client, seq, held.attempt) for held in pieces for seq in held.seqs}

    def has_cancelled(self, slot: Slot) -> bool:
        cancelled = self.cancelled
        return any(
            (piece.run.client, seq, piece.run.attempt) in cancelled
            for piece in slot.pieces
            for seq in piece.run.seqs[piece.low : piece.high]
        )

    def ended(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Cancelled tasks that were quicker need not be dropped any more; suspects that lived are none."""
        if self.cancelled:
            self.cancelled.difference_update(
                (run.client, seq, run.attempt) for run in done for seq in run.seqs
            )
            self.cancelled.difference_update((one.client, one.seq, one.attempt) for one in failed)
        if self.suspected:
            for client, seq in [(run.client, seq) for run in done for seq in run.seqs]:
                self.suspected.pop((client, seq), None)
            for failure in failed:
                self.suspected.pop((failure.client, failure.seq), None)

    # --- recall -------------------------------------------------------------------------------------------

    def unstick(self, now: float) -> list[Recall]:
        """Take tasks back from slots that are silent, or that have much while another has nothing."""
        stuck = self._stuck()
        if not stuck:
            return []
        actions: list[Recall] = []
        idle = self._some_idle()
        for slot in stuck:
            if now - slot.heard >= self._patience(slot, idle=idle):
                if idle or slot.peeked or slot.count > 2:
                    actions += self.recall(slot)
                else:  # if one of the two is done, the other must not hold its result up
                    slot.peek()
                    actions.append(PeekSlot(slot.number))
            elif idle and self._load(slot) - (now - slot.heard) >= STEAL_WORTH:
                actions += self.recall(slot, silent=False)
        return actions

    def recall(self, slot: Slot, *, silent: bool = True) -> list[Recall]:
        """Take every unstarted task of a slot back; it is given nothing until it reports."""
        return [PeekSlot(slot.number), RecallSlot(slot.number, slot.recall(silent=silent))]

    def recall_deadline(self) -> float:
        """Return when `unstick` should be asked next."""
        stuck = self._stuck()
        if not stuck:
            return math.inf
        idle = self._some_idle()
        return min([slot.heard + self._patience(slot, idle=idle) for slot in stuck])

    def _stuck(self) -> list[Slot]:
        """Return slots that may be stuck, with tasks that can be taken back."""
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
