"""The pool machine: it decides what a pool does with work, slots and hubs, and runs no user code.

It serves every hub that it is given: each has a membership of its own, all share the slots (docs/adr/0018).
"""

from __future__ import annotations

import math
from typing import assert_never

from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.core.actions import (
    AnswerSlot,
    CancelSlot,
    KillSlot,
    Leave,
    LogEvent,
    PeekSlot,
    PoolAction,
    SendHub,
    StartSlot,
    StopSlot,
)
from taskmesh.core.ids import task_id, text_of
from taskmesh.core.pool.invariants import check_pool
from taskmesh.core.pool.membership import CLIENT_BITS, CLIENT_MASK, Membership, hub_of
from taskmesh.core.pool.permits import Permits
from taskmesh.core.pool.scheduler import Scheduler
from taskmesh.core.pool.settings import PoolSettings
from taskmesh.core.pool.slots import Piece, Slot, SlotCause, SlotState, exit_text
from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Failed, Held, LaneRun, Progress
from taskmesh.wire.slot_messages import SlotFailure, SlotResults

ALL = 1 << 40
"""More tasks than a pool can hold."""
CANCEL_GRACE = 5.0
"""Seconds that a cancelled task which looks at `current_task().cancelled` has to end by itself."""
RETURNED_AT_ONCE = 4096
"""Most tasks that one report hands back: the hub queues each again before it handles anything else."""


class PoolMachine:
    """Decides everything that a pool does; performs nothing.

    Args:
        config: The settings.
        now: The time.

    Attributes:
        config: The settings.
        slots: Its slots, by number.
        permits: Which slots take work.
        scheduler: Tasks that wait, and who gets them.
        members: One membership for each hub.
        state: State of the pool as its beats tell it.
    """

    def __init__(self, config: PoolSettings, now: float) -> None:
        self.config = config
        self.slots = {number: Slot(number) for number in range(config.slots)}
        self.permits = Permits(self.slots, config.slots)
        self.scheduler = Scheduler(self.slots, self.permits.disturb)
        self._out: list[PoolAction] = []
        self.members = [Membership(config, now, hub, self._out) for hub in range(config.memberships)]
        self.state = "ready"
        self._lease = config.lease
        self._spool = self.members[0].spool
        self._drain_until: float | None = None
        self._left = False
        self._now = now

    @property
    def session(self) -> int:
        """Session with the first hub that it has one with; 0 while it has none."""
        return next((member.session for member in self.members if member.session), 0)

    @property
    def epoch(self) -> int:
        """Epoch of that hub; of the first one while there is no session."""
        return next((member.epoch for member in self.members if member.session), self.members[0].epoch)

    @property
    def reported(self) -> bool:
        """True if every hub has all of its results."""
        return all(member.spool.empty for member in self.members)

    # --- the machine contract -----------------------------------------------------------------------------

    def handle(self, event: object, now: float) -> list[PoolAction]:
        """Takes in one event; returns what is to be done, in order."""
        if self._left:
            return []
        if now - self._now > self._lease:
            self._slept(now - self._now, now)
        self._now = max(self._now, now)
        if isinstance(event, ev.SlotFinished):  # a class pattern takes longer
            self._on_finished(self.slots[event.slot], event.results, now)
        elif isinstance(event, ev.FromHub):
            self._on_hub_message(self.members[event.hub], event.message, now)
        elif isinstance(event, ev.RareSlotEvent):
            self._on_slot_event(event, now)
        elif isinstance(event, ev.HubLaneLost):
            if self.members[event.hub].session:
                self.members[event.hub].ask(now)
        elif isinstance(event, ev.DrainRequested):
            self._drain(now, event.grace)
        elif not isinstance(event, ev.Tick):
            raise TypeError(f"not an event of a pool: {event!r}")
        return self._finish(now)

    @property
    def deadline(self) -> float:
        """Time when a Tick is due at the latest."""
        if self._left:
            return self._now + 3600.0
        first = math.inf
        for member in self.members:
            if member.return_wanted and self._may_give(member):
                return self._now  # the next portion
            first = min(first, member.deadline)
        if self.scheduler.crowded:
            first = min(first, self.scheduler.recall_deadline())
        if not (self.permits.calm or self.permits.calms()):
            first = min(first, self.permits.deadline)
            for slot in self.slots.values():
                if self._drain_until is None or not slot.wants_start:
                    first = min(first, slot.deadline)
        return first if self._drain_until is None else min(first, self._drain_until)

    def check(self) -> None:
        """Raises AssertionError when the machine's own books do not agree; for tests."""
        check_pool(self.slots, self.scheduler, [member.spool for member in self.members])

    def _finish(self, now: float) -> list[PoolAction]:
        out, members = self._out, self.members
        if not (self.permits.calm or self.permits.calms()):
            out += self.permits.settle(now)
            if self._drain_until is None:
                self._start_slots(now)
            self._enforce_limits(now)
        scheduler, held = self.scheduler, False
        for member in members:
            if member.is_due(now):
                self._beat_or_ask(member, now)
            held |= (member.return_wanted > 0 or self.state != "ready") and self._returns(member)
        if scheduler.backlog and self.state == "ready" and not held:
            out += scheduler.dispatch(now)
        if scheduler.crowded:
            out += scheduler.unstick(now)
        for member in members:
            member.report(scheduler.credit.latency, now)
        if self._drain_until is not None:
            self._check_drained(now, self._drain_until)
        actions = out[:]
        out.clear()
        return actions

    # --- hub ----------------------------------------------------------------------------------------------

    def _on_hub_message(self, member: Membership, message: m.ToPool, now: float) -> None:
        if isinstance(message, m.Tasks):
            self._on_tasks(member, message, now)
            return
        match message:
            case m.BeatReply():
                member.replied(message, now)
            case m.Welcome():
                self._on_welcome(member, message, now)
            case m.PoolCommand(verb=verb, instance=instance):
                if instance in (0, member.instance):
                    self._on_command(verb, now)
            case m.Roster():
                member.told(message)
            case m.Refused(instance=instance, reason=reason):
                self._on_refused(member, instance, reason, now)
            case m.Recall() | m.Cancel():
                self._in_session(member, message, now)
            case _:
                assert_never(message)

    def _on_refused(self, member: Membership, instance: int, reason: str, now: float) -> None:
        """A hub does not want this pool, which leaves when none does."""
        if instance != member.instance or member.session:
            return
        member.refuse(reason, now)
        if all(one.refused for one in self.members):
            self._leave("; ".join(dict.fromkeys(one.refused for one in self.members)))

    def _in_session(self, member: Membership, message: m.Recall | m.Cancel, now: float) -> None:
        if not member.is_mine(message.epoch, message.session):
            return
        match message:
            case m.Recall(count=count):
                member.return_wanted = max(member.return_wanted, count)
            case m.Cancel(tasks=tasks):
                self._cancel(member.scoped(tasks), now)
            case _:
                assert_never(message)

    def _on_tasks(self, member: Membership, tasks: m.Tasks, now: float) -> None:
        if not member.admits(tasks, now):
            return
        specs = self.scheduler.specs
        if tasks.specs:
            self.scheduler.learn(tasks.specs)
        if tasks.unused:
            self.scheduler.values.forget(member.hub, tasks.unused)
        missing = []
        for run in tasks.runs:
            if run.values:  # also of what is handed back: they do not come again
                self.scheduler.values.add(run.client | member.hub << CLIENT_BITS, run.values)
            if run.spec not in specs:
                missing.append(run.spec)
                member.spool.returned.append(Held(run.client, run.attempt, run.seqs))
            elif member.hub:
                self.scheduler.add(replace(run, client=run.client | member.hub << CLIENT_BITS))
            else:
                self.scheduler.add(run)
        if missing:
            need = m.PoolNeedSpec(member.epoch, member.session, missing)
            self._out.append(SendHub(need, member.hub))

    def _on_welcome(self, member: Membership, welcome: m.Welcome, now: float) -> None:
        if member.welcomed(welcome, now):
            self._lease = min(one.lease for one in self.members)
            self.scheduler.keep_values(member.hub)
            self.scheduler.thaw(member.hub)
            self._cancel(member.scoped(welcome.stale), now)

    def _beat_or_ask(self, member: Membership, now: float) -> None:
        """Says that the pool lives, or says Hello where it has no session (any more)."""
        if member.beat_is_due(now):
            self._beat(member, now)
        if not member.session and member.is_due(now):
            scheduler, hub = self.scheduler, member.hub
            member.hello(scheduler.inventory(hub), scheduler.dying(hub), self._working, now)

    def _beat(self, member: Membership, now: float) -> None:
        running: list[Progress] = []
        elsewhere = 0
        for slot in self.slots.values():
            if (current := slot.running()) is not None:
                run, seq = current
                if hub_of(run.client) != member.hub:
                    elsewhere += 1
                    continue
                elapsed = max(0.0, now - slot.heard)
                running.append(self._progress(slot, run, seq, elapsed))
        self.scheduler.evict()
        slots = max(min(1, self._working), self._working - elsewhere)
        member.beat(running, self.state, slots, self._others(member), now)
        member.rests_if_told = not running and member.spool.empty and not self.scheduler.holds(member.hub)

    def _progress(self, slot: Slot, run: LaneRun, seq: int, elapsed: float) -> Progress:
        """Returns the news for a hub of a task that runs, or has just ended."""
        done, total = (0, -1) if slot.progress is None else (slot.progress.done, slot.progress.total)
        client = run.client & CLIENT_MASK
        return Progress(client, seq, run.attempt, done, total, self._worker(slot), elapsed)

    def _others(self, member: Membership) -> tuple[list[str], list[str]]:
        """The addresses of the other hubs: those that it has a session with, and those that are away."""
        served: list[str] = []
        away: list[str] = []
        for address, other in zip(self.config.hubs, self.members, strict=False):
            if other is not member:
                (served if other.session else away).append(address)
        return served, away

    @property
    def _working(self) -> int:
        """Number of slots that the hub may count on, with those that have lent their permits."""
        return self.config.slots + self.permits.lent - sum(slot.is_broken for slot in self.slots.values())

    def _slept(self, gap: float, now: float) -> None:
        """Asks hubs what is still wanted before anything more of theirs is started.

        This process stood still for longer than a lease, so that they have given its work to others.
        """
        late = [member for member in self.members if member.session and gap > member.lease]
        for member in late:
            self.scheduler.freeze(member.hub)
            member.ask(now)
        for slot in self.slots.values() if late else ():
            if slot.can_give:
                self._out += self.scheduler.recall(slot)

    # --- slots --------------------------------------------------------------------------------------------

    def _on_slot_event(self, event: ev.RareSlotEvent, now: float) -> None:
        self.permits.disturb()
        match event:
            case ev.SlotRecalled(slot=number, count=count):
                self._on_recalled(self.slots[number], count, now)
            case ev.SlotAsked(slot=number):
                self._on_asked(self.slots[number], event, now)
            case ev.SlotReady(slot=number, pid=pid):
                self.slots[number].started(pid, now)
            case ev.SlotExited():
                self._on_exited(self.slots[event.slot], event, now)
            case ev.SlotReported(slot=number, progress=progress):
                self.slots[number].progressed(progress)
            case _:
                assert_never(event)

    def _worker(self, slot: Slot) -> str:
        return f"{self.config.pool}/{slot.number}"

    def _start_slots(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.wants_start and now >= slot.start_at:
                slot.move(SlotCause.START)
                self._out.append(StartSlot(slot.number))

    def _on_finished(self, slot: Slot, results: SlotResults, now: float) -> None:
        if results.failed:
            self._tell_failed(slot, results.failed)
        if slot.progress is not None:
            self._tell_last(slot, slot.progress.serial, results, now)
        done, failed = slot.finished(results, self._worker(slot), now)
        if not done and not failed:
            return
        if self.permits.take_back(slot):
            self._hurry(now)
        scheduler = self.scheduler
        scheduler.credit.measured(now - results.sent)
        for run in done:
            scheduler.specs[run.spec].measured(len(run.seqs), run.elapsed)
        if scheduler.cancelled:
            scheduler.ended(done, failed)
        if len(self.members) == 1:
            self._spool.done += done
            self._spool.failed += failed
        else:
            self._sort(done, failed)
        if not slot.count and slot.reason == "cancelled":
            self._kill(slot, slot.reason)

    def _tell_last(self, slot: Slot, serial: int, results: SlotResults, now: float) -> None:
        """Adds the last progress of a task that ends to the report of its outcome."""
        ended = any(part.first <= serial < part.first + len(part.payloads) for part in results.done)
        if not (ended or any(failure.serial == serial for failure in results.failed)):
            return
        for run, seq in slot.tasks(serial):
            elapsed = max(0.0, now - slot.heard)
            self.members[hub_of(run.client)].spool.told.append(self._progress(slot, run, seq, elapsed))
        slot.progressed(None)

    def _tell_failed(self, slot: Slot, failures: list[SlotFailure]) -> None:
        """Logs each failed task, before the slot's books forget it."""
        for failure in failures:
            for run, seq in slot.tasks(failure.serial):
                what = {"type": failure.type_name, "text": failure.text, "traceback": failure.traceback}
                self._tell(slot, run, seq, failure.kind, **what)

    def _tell(self, slot: Slot, run: LaneRun, seq: int, kind: str, **what: str) -> None:
        """Logs a failed task, for those who run the pool."""
        task = {
            "task_id": text_of(task_id(run.client & CLIENT_MASK, seq)),
            "name": self.scheduler.specs[run.spec].spec.name,
            "attempt": run.attempt - run.returns,
            "worker": self._worker(slot),
            "kind": kind,
        }
        self._out.append(LogEvent("task.failed", {**task, **what}))

    def _sort(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Gives each report to the spool for the hub that its task came from."""
        for run in done:
            self.members[hub_of(run.client)].spool.done.append(run)
            run.client &= CLIENT_MASK
        for failure in failed:
            self.members[hub_of(failure.client)].spool.failed.append(failure)
            failure.client &= CLIENT_MASK

    def _hurry(self, now: float) -> None:
        """Makes beats due, since something that they tell has changed."""
        for member in self.members:
            member.hurry(now)

    def _on_asked(self, slot: Slot, asked: ev.SlotAsked, now: float) -> None:
        """Answers a task that wants to submit tasks; what waits behind it must not wait for them."""
        slot.asked()
        if granted := asked.lends and self.permits.lend(slot, asked.serial):
            if slot.can_give:
                self._out += self.scheduler.recall(slot)
            self._hurry(now)
        hub = hub_of(slot.pieces[0].run.client) if slot.pieces else 0
        self._out.append(AnswerSlot(slot.number, granted, hub))

    def _on_recalled(self, slot: Slot, count: int, now: float) -> None:
        self.scheduler.put_back(slot.recalled(count))
        if slot.count >= 2:
            self._out.append(PeekSlot(slot.number))  # all but the last are done: it must not hold them up
        if slot.count:
            self._end_cancelled(slot, now)

    def _on_exited(self, slot: Slot, exited: ev.SlotExited, now: float) -> None:
        self.scheduler.put_back(slot.take_back(min(exited.unstarted, slot.count)))
        started = slot.take_back(slot.count)
        for index, piece in enumerate(started):
            while len(piece):
                last = index == len(started) - 1 and len(piece) == 1
                self._blame(slot, piece.split(1), exited, running=last)
        self.permits.exited(slot)
        for member in [member for member in self.members if slot.has_submitted and member.session]:
            self._out.append(SendHub(m.SlotGone(member.epoch, member.session, slot.pid), member.hub))
        failed = not exited.ready and slot.state is not SlotState.STOPPING
        delay = self.config.restart_delay(slot.failures + 1) if failed else 0.0
        slot.ended(now + delay, failed=failed)

    def _blame(self, slot: Slot, piece: Piece, exited: ev.SlotExited, *, running: bool) -> None:
        """Reports a task that had started in a slot that is gone; only the one that ran is blamed."""
        run, seq = piece.run, piece.run.seqs[piece.low]
        attempt = (run.client, seq, run.attempt)
        if attempt in self.scheduler.cancelled:
            self.scheduler.cancelled.discard(attempt)
            held = Held(run.client & CLIENT_MASK, run.attempt, [seq], returns=run.returns)
            self.members[hub_of(run.client)].spool.remember([held])
            return
        kind = "lost"
        if running and slot.reason in ("", "hard_timeout"):
            kind = slot.reason or ("oom" if exited.oom else "crash")
        text = exit_text(exited, kind, self.scheduler.specs[run.spec].spec)
        failure = Failed(run.client, seq, run.attempt, kind, text=text, worker=self._worker(slot))
        failure.returns = run.returns
        self._sort([], [failure])
        self._tell(slot, run, seq, kind, text=text)

    def _enforce_limits(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.kill_at is not None and now >= slot.kill_at and slot.count:
                self._kill(slot, slot.reason or "hard_timeout")

    def _kill(self, slot: Slot, reason: str) -> None:
        slot.kill(reason)
        self._out.append(KillSlot(slot.number))

    # --- cancelling and handing back ----------------------------------------------------------------------

    def _cancel(self, tasks: list[Held], now: float) -> None:
        if not tasks:
            return
        self.scheduler.cancel(tasks)
        for slot in self.slots.values():
            if slot.state is not SlotState.UP or slot.recalling or not self.scheduler.has_cancelled(slot):
                continue
            if slot.refilled:
                self._out += self.scheduler.recall(slot)
            else:
                self._end_cancelled(slot, now)

    def _end_cancelled(self, slot: Slot, now: float) -> None:
        """Ends the running task if it has been cancelled; after a recall only started tasks are left.

        A task that looks at `current_task().cancelled` may clean up for CANCEL_GRACE seconds. Its slot is
        killed when the task returns, and is given nothing until then.
        """
        if not self.scheduler.cancelled or slot.reason:
            return
        piece = slot.pieces[-1]
        if (piece.run.client, piece.run.seqs[piece.high - 1], piece.run.attempt) in self.scheduler.cancelled:
            slot.kill("cancelled", now + CANCEL_GRACE)
            self.permits.disturb()
            self._out.append(CancelSlot(slot.number, piece.first + len(piece) - 1))

    def _may_return(self) -> bool:
        return bool(self.scheduler.backlog) or any(s.recalling or s.can_give for s in self.slots.values())

    def _may_give(self, member: Membership) -> bool:
        """Returns True if tasks can be handed back to a hub at once."""
        return bool(member.session) and self.scheduler.holds(member.hub)

    def _returns(self, member: Membership) -> bool:
        """Hands unstarted tasks back, in portions: from the backlog first, then by recall from slots.

        Returns:
            True if more are to come back; no slot is given any meanwhile.
        """
        if self.state != "ready":
            member.return_wanted = ALL if self._may_return() else 0
        if not member.return_wanted or not member.session:
            return False
        given = self.scheduler.hand_back(min(member.return_wanted, RETURNED_AT_ONCE), member.hub)
        member.give_back(given)
        count = sum(len(held.seqs) for held in given)
        member.return_wanted -= count
        if count >= RETURNED_AT_ONCE:
            return member.return_wanted > 0
        waiting = [slot for slot in self.slots.values() if slot.can_give]
        if member.return_wanted > 0 and waiting:
            for slot in waiting:
                self._out += self.scheduler.recall(slot)
        elif member.return_wanted > 0 and not any(slot.recalling for slot in self.slots.values()):
            member.return_wanted = 0
        return member.return_wanted > 0

    def _on_command(self, verb: str, now: float) -> None:
        if verb == "pause" and self.state == "ready":
            self.state = "paused"
        elif verb == "resume" and self.state == "paused":
            self.state = "ready"
        elif verb == "drain":
            self._drain(now, self.config.grace)
        self._hurry(now)

    # --- leaving ------------------------------------------------------------------------------------------

    def _drain(self, now: float, grace: float) -> None:
        if self._drain_until is None:
            self.state = "draining"
            self._drain_until = now + grace
            self._hurry(now)

    def _check_drained(self, now: float, until: float) -> None:
        """Leaves if nothing runs and each hub has every result; a dead hub is not waited for."""
        busy = any(slot.count or slot.recalling for slot in self.slots.values())
        overdue = now >= until or all(member.is_given_up(now) for member in self.members)
        if busy and overdue:
            for slot in self.slots.values():
                if slot.count and slot.may_be_killed and slot.state is SlotState.UP:
                    self._kill(slot, slot.reason or "drained")
            self._drain_until = now + 1.0
            return
        if not busy and (overdue or all(self._owes_nothing(member, now) for member in self.members)):
            self._leave("")

    def _owes_nothing(self, member: Membership, now: float) -> bool:
        """Returns True if a hub has all that is its own, or is not there to take it."""
        return member.hub_is_silent(now) or (member.spool.empty and not self.scheduler.holds(member.hub))

    def _leave(self, reason: str) -> None:
        for member in self.members:
            member.bye()
        for slot in self.slots.values():
            if slot.state is SlotState.UP:
                slot.move(SlotCause.STOP)
                self._out.append(StopSlot(slot.number))
        self._out.append(Leave(reason))
        self._left = True

    # --- views --------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Returns a view in plain data."""
        return {
            "pool": self.config.pool,
            "session": self.session,
            "state": self.state,
            "backlog": self.scheduler.waiting(),
            "slots": {slot.number: (slot.state.value, slot.count) for slot in self.slots.values()},
            "unacknowledged": not self.reported,
        }
