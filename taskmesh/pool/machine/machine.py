"""The pool machine: it decides what a pool does with work, slots and its hub, and runs no user code."""

from __future__ import annotations

from typing import assert_never

from taskmesh.core import events as ev
from taskmesh.core.actions import (
    AnswerSlot,
    AskSlotStack,
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
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import FIRING, Failed, Held, LaneRun, Progress
from taskmesh.messages.slot_messages import SlotFailure, SlotNews, SlotProgress, SlotResults
from taskmesh.pool.machine.invariants import check_pool
from taskmesh.pool.machine.membership import Membership
from taskmesh.pool.machine.permits import Permits
from taskmesh.pool.machine.recycling import Recycling
from taskmesh.pool.machine.scheduler import Scheduler
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.sharing import REPLACED, SharedProcesses
from taskmesh.pool.machine.slots import ANY_NUMBER, Piece, Slot, SlotCause, SlotState, exit_text

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
        recycling: Which slots are replaced.
        scheduler: Tasks that wait, and who gets them.
        member: Its membership with the hub.
        state: State of the pool as its beats tell it.
    """

    def __init__(self, config: PoolSettings, now: float) -> None:
        self.config = config
        most = config.max_tasks or ANY_NUMBER
        self.slots = {number: Slot(number, most) for number in range(config.slots)}
        self.permits = Permits(self.slots, config.slots, most, stop_first=config.stop_first)
        self.scheduler = Scheduler(self.slots, self.permits.disturb, threads=config.shared > 0)
        self.recycling = Recycling(config, self.slots, self.permits, self.scheduler)
        self._processes = SharedProcesses(self.slots, self.scheduler, config, self.permits.disturb)
        self._out: list[PoolAction] = []
        self.member = Membership(config, now, self._out)
        self.state = "ready"
        self._spool = self.member.spool
        self._drain_until: float | None = None
        self._left = False
        self._asks_first = False  # after a standstill, until the hub has said what is still wanted
        self._now = now

    @property
    def session(self) -> int:
        """The session with the hub; 0 while there is none."""
        return self.member.session

    @property
    def reported(self) -> bool:
        """True if the hub has all of its results."""
        return self._spool.empty

    # --- the machine contract -----------------------------------------------------------------------------

    def take(self, event: object, now: float) -> None:
        """Take in one event."""
        if self._left:
            return
        self._advance(now)
        if isinstance(event, ev.SlotFinished):  # a class pattern takes longer
            self._on_finished(self.slots[event.slot], event.results, now)
        elif isinstance(event, ev.FromHub):
            self._on_hub_message(event.message, now)
        elif isinstance(event, ev.RareSlotEvent):
            self._on_slot_event(event, now)
        elif isinstance(event, ev.HubLaneLost):
            if self.member.session:
                self.member.ask(now)
        elif isinstance(event, ev.DrainRequested):
            self._drain(now, event.grace)
        elif not isinstance(event, ev.Tick):
            raise TypeError(f"not an event of a pool: {event!r}")

    def act(self, now: float) -> list[PoolAction]:
        """Return what is to be done after the events that were taken in; see `link.shell.Machine`."""
        if not self._left:
            self._advance(now)
            self._finish(now)
        actions = self._out[:]
        self._out.clear()
        return actions

    @property
    def deadline(self) -> float:
        if self._left:
            return self._now + 3600.0
        member = self.member
        if member.return_wanted and member.session and self.scheduler.backlog:
            return self._now  # the next portion
        first = member.deadline
        if self.scheduler.crowded:
            first = min(first, self.scheduler.recall_deadline())
        if not (self.permits.calm or self.permits.calms()):
            first = min(first, self.permits.deadline)
            if self._drain_until is None:
                first = min(first, self.recycling.deadline)
            for slot in self.slots.values():
                if self._drain_until is None or not slot.wants_start:
                    first = min(first, slot.deadline)
        if self.config.shared and self._processes.is_busy:
            first = min(first, self._processes.deadline)
        return first if self._drain_until is None else min(first, self._drain_until)

    def check(self) -> None:
        """Raise AssertionError when the machine's own books do not agree; for tests."""
        check_pool(self.slots, self.scheduler, self._spool)

    def _advance(self, now: float) -> None:
        """Advance the time. After a gap of a lease this process has stood still."""
        if self.member.session and now - self._now > self.member.lease:
            self._slept(now)
        self._now = max(self._now, now)

    def _finish(self, now: float) -> None:
        out, member = self._out, self.member
        if self.config.shared and self._processes.is_busy:
            out += self._processes.settle(now, starts=self.state == "ready" and self._may_dispatch())
        if not (self.permits.calm or self.permits.calms()):
            out += self.permits.settle(now)
            if self._drain_until is None:
                out += self.recycling.turn()
                self._start_slots(now)
            self._enforce_limits(now)
        scheduler = self.scheduler
        if member.is_due(now):
            self._beat_or_ask(now)
        held = (member.return_wanted > 0 or self.state != "ready") and self._returns()
        if scheduler.backlog and self.state == "ready" and not held and self._may_dispatch():
            out += scheduler.dispatch(now)
        if scheduler.crowded:
            out += scheduler.unstick(now)
        member.report(scheduler.credit.latency, now)
        if self._drain_until is not None:
            self._check_drained(now, self._drain_until)

    def _may_dispatch(self) -> bool:
        """Return True if tasks may go to slots.

        Cancelled ones are dropped then. A hub that a Hello lists them to may not know that they were
        cancelled, and counts on this pool for all that it has listed: they stay until it has answered.
        """
        return not self._asks_first and (self.member.session > 0 or not self.scheduler.cancelled)

    # --- hub ----------------------------------------------------------------------------------------------

    def _on_hub_message(self, message: m.ToPool, now: float) -> None:
        if isinstance(message, m.Tasks):
            self._on_tasks(message, now)
            return
        match message:
            case m.BeatReply():
                self.member.replied(message, now)
            case m.Welcome():
                self._on_welcome(message, now)
            case m.PoolCommand(verb=verb, instance=instance):
                if instance in (0, self.config.instance):
                    self._on_command(verb, now)
            case m.Refused(instance=instance, reason=reason):
                if instance == self.config.instance and not self.member.session:
                    self._leave(reason)
            case m.Recall() | m.Cancel() | m.AskStack():
                self._in_session(message, now)
            case _:
                assert_never(message)

    def _in_session(self, message: m.Recall | m.Cancel | m.AskStack, now: float) -> None:
        if not self.member.is_mine(message.epoch, message.session):
            return
        match message:
            case m.Recall(count=count):
                self.member.return_wanted = max(self.member.return_wanted, count)
            case m.Cancel(tasks=tasks):
                self._cancel(tasks, now)
            case m.AskStack(task=task):
                self._show_stack(task)
            case _:
                assert_never(message)

    def _on_tasks(self, tasks: m.Tasks, now: float) -> None:
        member = self.member
        if not member.admits(tasks, now):
            return
        specs = self.scheduler.specs
        if tasks.specs:
            self.scheduler.learn(tasks.specs)
        if tasks.unused:
            self.scheduler.values.forget(tasks.unused)
        missing = []
        for run in tasks.runs:
            if run.values:  # also of what is handed back: they do not come again
                self.scheduler.values.add(run.client, run.values)
            if run.spec not in specs:
                missing.append(run.spec)
                self._spool.returned.append(Held(run.client, run.attempt, run.seqs))
            else:
                self.scheduler.add(run)
        if missing:
            self._out.append(SendHub(m.PoolNeedSpec(member.epoch, member.session, missing)))

    def _on_welcome(self, welcome: m.Welcome, now: float) -> None:
        if self.member.welcomed(welcome, now):
            self.scheduler.keep_values()
            self.scheduler.cancelled.clear()  # it was all listed: the hub says again what it does not want
            self._asks_first = False
            self._cancel(welcome.stale, now)

    def _beat_or_ask(self, now: float) -> None:
        """Say that the pool lives, or say Hello where it has no session (any more)."""
        member, scheduler = self.member, self.scheduler
        if member.beat_is_due(now):
            self._beat(now)
        if not member.session and member.is_due(now):
            member.hello(scheduler.inventory(), self._working, now)

    def _beat(self, now: float) -> None:
        running: list[Progress] = []
        for slot in self.slots.values():
            if (current := slot.running()) is not None:
                run, seq = current
                elapsed = max(0.0, now - slot.heard)
                running.append(self._progress(slot, run, seq, elapsed))
        self.scheduler.evict(now)
        self.member.beat(running, self.state, self._working, now)

    def _progress(self, slot: Slot, run: LaneRun, seq: int, elapsed: float) -> Progress:
        """Return the news for the hub of a task that runs, or has just ended."""
        done, total = (0, -1) if slot.progress is None else (slot.progress.done, slot.progress.total)
        return Progress(run.client, seq, run.attempt, done, total, self._worker(slot), elapsed)

    @property
    def _working(self) -> int:
        """Number of slots that the hub may count on, with those that have lent their permits."""
        return self.config.slots + self.permits.lent - sum(slot.is_broken for slot in self.slots.values())

    def _slept(self, now: float) -> None:
        """Ask the hub what is still wanted before anything more is started.

        This process stood still for longer than a lease, so that the hub has given its work to others.
        """
        self._asks_first = True
        self.member.ask(now)
        for slot in self.slots.values():
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
                self.recycling.ready(self.slots[number], now)
                self._processes.joined(self.slots[number])
            case ev.SlotDue(slot=number, reason=reason):
                self._on_due(number, reason, now)
            case ev.ProcessTold(slot=number, kind=kind, text=text, is_worn=is_worn):
                self._out.append(LogEvent(kind, {"pool": self.config.pool, "text": text}))
                if is_worn:
                    self._out += self._processes.replace(self.slots[number], now)
            case ev.SlotExited():
                self._on_exited(self.slots[event.slot], event, now)
            case ev.SlotReported(slot=number, news=news):
                self._on_news(self.slots[number], news)
            case _:
                assert_never(event)

    def _worker(self, slot: Slot) -> str:
        return f"{self.config.pool}/{slot.number}"

    def _on_due(self, number: int, reason: str, now: float) -> None:
        """Have a slot replaced, and with it its process if others share that; those of suspects are new."""
        slot = self.slots.get(number)
        if slot is not None and self._processes.shares(slot):
            self._out += self._processes.replace(slot, now)
        elif number >= 0:
            self.recycling.fall_due(number, reason)

    def _start_slots(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.wants_start and now >= slot.start_at:
                slot.move(SlotCause.START)
                self._out.append(StartSlot(slot.number, self.config.process_of(slot.number)))

    def _on_finished(self, slot: Slot, results: SlotResults, now: float) -> None:
        if results.failed:
            self._tell_failed(slot, results.failed)
        if slot.progress is not None:
            self._tell_last(slot, slot.progress.serial, results, now)
        done, failed = slot.finished(results, self._worker(slot), now)
        if not done and not failed:
            return
        if slot.parent is not None and self.permits.take_back(slot, slot.parent):
            self.member.hurry(now)
        scheduler = self.scheduler
        scheduler.credit.measured(now - results.sent)
        for run in done:
            scheduler.specs[run.spec].measured(len(run.seqs), run.elapsed)
        if scheduler.cancelled or scheduler.suspected:
            scheduler.ended(done, failed)
        self._spool.done += done
        self._spool.failed += failed
        if not slot.count and slot.reason == "cancelled":
            if self._processes.shares(slot):
                self._processes.returned(slot)
            else:
                self._kill(slot, slot.reason, now)

    def _tell_last(self, slot: Slot, serial: int, results: SlotResults, now: float) -> None:
        """Add the last progress of a task that ends to the report of its outcome."""
        ended = any(part.first <= serial < part.first + len(part.payloads) for part in results.done)
        if not (ended or any(failure.serial == serial for failure in results.failed)):
            return
        for run, seq in slot.tasks(serial):
            elapsed = max(0.0, now - slot.heard)
            self._spool.told.append(self._progress(slot, run, seq, elapsed))
        slot.progressed(None)

    def _on_news(self, slot: Slot, news: SlotNews) -> None:
        """Keep a task's progress, or pass on what it has logged: to the hub, and with it to its client.

        A schedule's firing has no client: those who run the pool are told, too.
        """
        if isinstance(news, SlotProgress):
            slot.progressed(news)
            return
        for run, seq in slot.tasks(news.serial):
            self._spool.tell(self._progress(slot, run, seq, 0.0), news.lines)
            for line in news.lines if self.scheduler.specs[run.spec].spec.kind == FIRING else ():
                what = {"level": line.level_name, "logger": line.logger, "text": line.text}
                self._out.append(LogEvent("task.log", {**self._named(slot, run, seq), **what}))

    def _tell_failed(self, slot: Slot, failures: list[SlotFailure]) -> None:
        """Log each failed task, before the slot's books forget it."""
        for failure in failures:
            for run, seq in slot.tasks(failure.serial):
                what = {"type": failure.type_name, "text": failure.text, "traceback": failure.traceback}
                self._tell(slot, run, seq, failure.kind, **what)

    def _tell(self, slot: Slot, run: LaneRun, seq: int, kind: str, **what: str) -> None:
        """Log a failed task, for those who run the pool."""
        self._out.append(LogEvent("task.failed", {**self._named(slot, run, seq), "kind": kind, **what}))

    def _named(self, slot: Slot, run: LaneRun, seq: int) -> dict[str, object]:
        """Return what a line about a task says first."""
        return {
            "task_id": text_of(task_id(run.client, seq)),
            "name": self.scheduler.specs[run.spec].spec.name,
            "attempt": run.attempt - run.returns,
            "worker": self._worker(slot),
        }

    def _show_stack(self, task: Held) -> None:
        for slot in self.slots.values():
            self._out += [AskSlotStack(slot.number, serial) for serial in slot.serials(task)]

    def _on_asked(self, slot: Slot, asked: ev.SlotAsked, now: float) -> None:
        """Answer a task that wants to submit tasks; what waits behind it must not wait for them."""
        slot.asked()
        if granted := asked.lends and self.permits.lend(slot, asked.serial):
            if slot.can_give:
                self._out += self.scheduler.recall(slot)
            self.member.hurry(now)
        client = next((run.client for run, _ in slot.tasks(asked.serial)), 0)
        self._out.append(AnswerSlot(slot.number, granted, self._processes.place_of(slot), client))

    def _on_recalled(self, slot: Slot, count: int, now: float) -> None:
        self.scheduler.put_back(slot.recalled(count))
        if slot.count >= 2:
            self._out.append(PeekSlot(slot.number))  # all but the last are done: it must not hold them up
        if slot.count:
            self._end_cancelled(slot, now)

    def _on_exited(self, slot: Slot, exited: ev.SlotExited, now: float) -> None:
        unstarted = slot.take_back(min(exited.unstarted, slot.count))
        if slot.number < 0:
            self.scheduler.suspects.extendleft(unstarted)
        else:
            self.scheduler.put_back(unstarted)
        started = slot.take_back(slot.count)
        for index, piece in enumerate(started):
            while len(piece):
                last = index == len(started) - 1 and len(piece) == 1
                self._blame(slot, piece.split(1), exited, running=last)
        self.permits.exited(slot)
        self._out += self.recycling.exited(slot, exited)
        if slot.has_submitted and self.member.session:
            place = self._processes.place_of(slot)
            self._out.append(SendHub(m.SlotGone(self.member.epoch, self.member.session, place)))
        failed = not exited.ready and slot.state is not SlotState.STOPPING
        delay = self.config.restart_delay(slot.failures + 1) if failed else 0.0
        slot.ended(now + delay, failed=failed)

    def _blame(self, slot: Slot, piece: Piece, exited: ev.SlotExited, *, running: bool) -> None:
        """Report a task that had started in a slot that is gone; only the one that ran is blamed."""
        run, seq = piece.run, piece.run.seqs[piece.low]
        attempt = (run.client, seq, run.attempt)
        if attempt in self.scheduler.cancelled:
            self.scheduler.cancelled.discard(attempt)
            if self.member.session:
                return  # a next hub may not know that it was cancelled
        kind = "lost"
        if running and exited.suspects > 1 and not slot.reason:
            self.scheduler.suspect(run.client, seq, self._now)
        elif running and slot.reason in ("", "hard_timeout"):
            kind = slot.reason or ("oom" if exited.oom else "crash")
        text = exit_text(exited, kind, self.scheduler.specs[run.spec].spec)
        failure = Failed(run.client, seq, run.attempt, kind, text=text, worker=self._worker(slot))
        failure.returns = run.returns
        self._spool.failed.append(failure)
        self._tell(slot, run, seq, kind, text=text)

    def _enforce_limits(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.kill_at is None or now < slot.kill_at:
                continue
            if slot.count or slot.state is SlotState.STOPPING:
                reason = "" if slot.reason == REPLACED else slot.reason
                self._kill(slot, reason or "hard_timeout", now)

    def _kill(self, slot: Slot, reason: str, now: float) -> None:
        slot.kill(reason)
        if self._processes.shares(slot):
            self._out += self._processes.replace(slot, now)
        else:
            self._out.append(KillSlot(slot.number))

    # --- cancelling and handing back ----------------------------------------------------------------------

    def _cancel(self, tasks: list[Held], now: float) -> None:
        if not tasks:
            return
        self.scheduler.cancel(tasks)
        for slot in self.slots.values():
            if not slot.is_up or slot.recalling or not self.scheduler.has_cancelled(slot):
                continue
            if slot.refilled:
                self._out += self.scheduler.recall(slot)
            else:
                self._end_cancelled(slot, now)

    def _end_cancelled(self, slot: Slot, now: float) -> None:
        """End the running task if it has been cancelled; after a recall only started tasks are left.

        A task that looks at `current_task().cancelled` may clean up for CANCEL_GRACE seconds. Its slot is
        killed when the task returns, and is given nothing until then. One that shares its process says
        itself when it has given the task up.
        """
        if not self.scheduler.cancelled or slot.reason:
            return
        piece = slot.pieces[-1]
        if (piece.run.client, piece.run.seqs[piece.high - 1], piece.run.attempt) in self.scheduler.cancelled:
            slot.kill("cancelled", None if self._processes.shares(slot) else now + CANCEL_GRACE)
            self.permits.disturb()
            self._out.append(CancelSlot(slot.number, piece.first + len(piece) - 1))

    def _may_return(self) -> bool:
        return bool(self.scheduler.backlog) or any(s.recalling or s.can_give for s in self.slots.values())

    def _returns(self) -> bool:
        """Hand unstarted tasks back, in portions: from the backlog first, then by recall from slots.

        Returns:
            True if more are to come back; no slot is given any meanwhile.
        """
        member = self.member
        if self.state != "ready":
            self.scheduler.release_suspects()
            member.return_wanted = ALL if self._may_return() else 0
        if not member.return_wanted or not member.session:
            return False
        given = self.scheduler.hand_back(min(member.return_wanted, RETURNED_AT_ONCE))
        self._spool.returned += given
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
        self.member.hurry(now)

    # --- leaving ------------------------------------------------------------------------------------------

    def _drain(self, now: float, grace: float) -> None:
        if self._drain_until is None:
            self.state = "draining"
            self._drain_until = now + grace
            self.member.hurry(now)

    def _check_drained(self, now: float, until: float) -> None:
        """Leave if nothing runs and the hub has every result; a dead hub is not waited for."""
        busy = any(slot.count or slot.recalling for slot in self.slots.values())
        overdue = now >= until or self.member.is_given_up(now)
        if busy and overdue:
            for slot in self.slots.values():
                may_be_killed = slot.may_be_killed or self._processes.shares(slot)
                if slot.count and may_be_killed and slot.is_up:
                    slot.kill(slot.reason or "drained")
                    self._out.append(KillSlot(slot.number))
            self._drain_until = now + 1.0
            return
        owes_nothing = self.reported and not self.scheduler.backlog
        if not busy and (overdue or owes_nothing or self.member.hub_is_silent(now)):
            self._leave("")

    def _leave(self, reason: str) -> None:
        self.member.bye()
        for slot in self.slots.values():
            if slot.is_up:
                slot.move(SlotCause.STOP)
                self._out.append(StopSlot(slot.number))
        self._out.append(Leave(reason))
        self._left = True

    # --- views --------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        return {
            "pool": self.config.pool,
            "session": self.session,
            "state": self.state,
            "backlog": self.scheduler.waiting(),
            "slots": {slot.number: (slot.state.value, slot.count) for slot in self.slots.values()},
            "unacknowledged": not self.reported,
        }
