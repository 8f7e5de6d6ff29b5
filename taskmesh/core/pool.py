"""The pool machine: what a pool does with work, slots and its hub. It runs no user code."""

from __future__ import annotations

from taskmesh.core import events as ev
from taskmesh.core.actions import (
    DialLane,
    HangUp,
    KillSlot,
    Leave,
    SendBeat,
    SendHub,
    StartSlot,
    StopSlot,
)
from taskmesh.core.feeder import Feeder
from taskmesh.core.pool_config import PoolConfig
from taskmesh.core.slots import Piece, Slot, SlotState
from taskmesh.core.spool import Spool
from taskmesh.wire import messages as m

MAX_LOG = 4000


class PoolMachine:
    """Decides everything that a pool does; performs nothing.

    Attributes:
        session: 0 while it asks for one. state: "ready", "paused" or "draining", as told in beats.
    """

    def __init__(self, config: PoolConfig, now: float) -> None:
        self.config = config
        self.slots = {number: Slot(number) for number in range(config.slots)}
        self.feeder = Feeder(self.slots)
        self.spool = Spool()
        self.epoch = 0
        self.session = 0
        self.state = "ready"
        self.received = 0
        self._beat = config.beat
        self._lease = config.lease
        self._hello_number = 0
        self._hello_at = now
        self._beat_at = now + config.beat
        self._replied = now
        self._stamp = (0.0, now)
        self._frozen = False
        self._return_wanted = 0
        self._drain_until: float | None = None
        self._left = False
        self._now = now
        self._out: list[object] = []
        self._ask(now)

    # --- the machine contract -----------------------------------------------------------------------------

    def handle(self, event: object, now: float) -> list[object]:
        """Takes in one event; returns what is to be done, in order."""
        if self._left:
            return []
        if now - self._now > self._lease and self.session:
            self._slept(now)
        self._now = max(self._now, now)
        match event:
            case ev.SlotFinished(slot=number, results=results):
                self._slot_finished(self.slots[number], results, now)
            case ev.FromHub(message=message):
                self._from_hub(message, now)
            case ev.Tick():
                pass
            case ev.SlotRecalled(slot=number, count=count):
                self._slot_recalled(self.slots[number], count)
            case ev.SlotReady(slot=number, pid=pid):
                slot = self.slots[number]
                slot.started()
                slot.pid, slot.heard = pid, now
            case ev.SlotExited():
                self._slot_exited(self.slots[event.slot], event, now)
            case ev.SlotReported(slot=number, progress=progress):
                self._slot_reported(self.slots[number], progress)
            case ev.HubLaneLost():
                if self.session:
                    self._ask(now)
            case ev.DrainRequested(grace=grace):
                self._drain(now, grace)
            case _:
                raise TypeError(f"not an event of a pool: {event!r}")
        return self._finish(now)

    @property
    def deadline(self) -> float:
        """When a Tick is due at the latest."""
        times = [self._beat_at if self.session else self._hello_at]
        recall = self.feeder.recall_deadline()
        if recall is not None:
            times.append(recall)
        if self._drain_until is not None:
            times.append(self._drain_until)
        for slot in self.slots.values():
            if slot.state is SlotState.DOWN:
                times.append(slot.start_at)
            elif slot.kill_at is not None and not slot.reason:
                times.append(slot.kill_at)
        return min(times)

    def _finish(self, now: float) -> list[object]:
        out = self._out
        if self._drain_until is None:
            self._start_slots(now)
        self._enforce_limits(now)
        if self.session and now >= self._beat_at:
            self._beat_now(now)
        if not self.session and now >= self._hello_at:
            self._hello(now)
        if self._return_wanted:
            self._return()
        elif self.state == "ready" and not self._frozen:
            out += self.feeder.feed(now)
        out += self.feeder.unstick(now)
        if self.session and self.spool.has_news:
            self._report(now)
        if self._drain_until is not None:
            self._check_drained(now)
        self._out = []
        return out

    # --- hub ----------------------------------------------------------------------------------------------

    def _from_hub(self, message: m.ToPool, now: float) -> None:
        match message:
            case m.Tasks():
                self._tasks(message, now)
            case m.BeatReply(epoch=epoch, session=session, acked=acked):
                if not self.session:
                    return
                if session != self.session or epoch != self.epoch:
                    if session == 0:
                        self._ask(now)
                    return
                self._replied = now
                self.spool.acknowledged(acked, now)
            case m.Welcome():
                self._welcome(message, now)
            case m.Recall(epoch=epoch, session=session, count=count):
                if self._is_mine(epoch, session):
                    self._return_wanted = max(self._return_wanted, count)
            case m.Cancel(epoch=epoch, session=session, tasks=tasks):
                if epoch == self.epoch and session >= self.session:
                    self._cancel(tasks)
            case m.ForgetSpecs(epoch=epoch, session=session, specs=specs):
                if self._is_mine(epoch, session):
                    for number in specs:
                        self.feeder.specs.pop(number, None)
            case m.PoolCommand(verb=verb):
                self._command(verb, now)
            case m.Refused(instance=instance, reason=reason):
                if instance == self.config.instance and not self.session:
                    self._leave(reason)

    def _is_mine(self, epoch: int, session: int) -> bool:
        return bool(self.session) and session == self.session and epoch == self.epoch

    def _tasks(self, tasks: m.Tasks, now: float) -> None:
        if not self._is_mine(tasks.epoch, tasks.session):
            self._out.append(SendHub(m.Misrouted(self.config.pool, tasks.epoch, tasks.session)))
            return
        if tasks.lane_seq <= self.received:
            return
        if tasks.lane_seq != self.received + 1:
            self._ask(now)
            return
        self.received = tasks.lane_seq
        self.spool.acknowledged(tasks.acked, now)
        self._stamp = (tasks.sent, now)
        self.feeder.specs.update(tasks.specs)
        for run in tasks.runs:
            self.feeder.add(run)
        if self._drain_until is not None:
            self._return_wanted = self.feeder.waiting()

    def _welcome(self, welcome: m.Welcome, now: float) -> None:
        mine = welcome.instance == self.config.instance and welcome.number == self._hello_number
        if self.session or not mine:
            return
        self.epoch, self.session = welcome.epoch, welcome.session
        self._beat, self._lease = welcome.beat, welcome.lease
        self.received = 0
        self._frozen = False
        self._replied = now
        self._stamp = (0.0, now)
        self._out.append(DialLane(welcome.lane))
        self._beat_now(now)

    def _ask(self, now: float) -> None:
        """The session is void: asks for a new one, with all that is held."""
        if self.session:
            self._out.append(HangUp())
        self.session = 0
        self._return_wanted = 0
        self._hello_number += 1
        self._hello_at = now
        self.spool.renew()

    def _hello(self, now: float) -> None:
        self._hello_at = now + self.config.hello
        config = self.config
        hello = m.Hello(
            config.pool,
            config.instance,
            self._hello_number,
            config.slots,
            list(config.queues),
            list(config.tags),
            self.epoch,
            self.session,
            self.inventory(),
            python=config.python,
            host=config.host,
            pid=config.pid,
        )
        self._out.append(SendHub(hello))

    def inventory(self) -> list[m.Held]:
        """Everything it holds: queued, in slots, finished and not acknowledged."""
        pieces: list[Piece] = [*self.feeder.backlog]
        for slot in self.slots.values():
            pieces += slot.pieces
        return [piece.held() for piece in pieces] + self.spool.inventory()

    def _beat_now(self, now: float) -> None:
        self._beat_at = now + self._beat
        if now - self._replied > self.config.patience_beats * self._beat:
            self._ask(now)
            return
        running = []
        busy = 0
        for slot in self.slots.values():
            current = slot.running()
            if current is not None:
                busy += 1
                run, seq = current
                done, total = slot.progress
                running.append(m.Progress(run.client, seq, run.attempt, done, total, self._worker(slot)))
        beat = m.Beat(
            self.epoch,
            self.session,
            self.config.pool,
            self.received,
            self.spool.acked,
            self.spool.number,
            running,
            self.state,
            busy,
        )
        self._out.append(SendBeat(beat))
        for results in self.spool.overdue(now, self._beat):
            self._out.append(SendHub(results))

    def _report(self, now: float) -> None:
        results = self.spool.close(self.epoch, self.session, now)
        results.echo, came = self._stamp
        results.held = now - came
        results.lag = self.feeder.lag
        self._out.append(SendHub(results))

    def _slept(self, now: float) -> None:
        """This process stood still for longer than its lease: the hub has given its work to others.

        Nothing more is started before the hub has said what is still wanted.
        """
        self._frozen = True
        for slot in self.slots.values():
            if slot.state is SlotState.UP and slot.count >= 2 and not slot.recalling:
                self._out += self.feeder.recall(slot)
        self._ask(now)

    # --- slots --------------------------------------------------------------------------------------------

    def _worker(self, slot: Slot) -> str:
        return f"{self.config.pool}/{slot.number}"

    def _start_slots(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.state is SlotState.DOWN and now >= slot.start_at:
                slot.state = SlotState.STARTING
                self._out.append(StartSlot(slot.number))

    def _slot_finished(self, slot: Slot, results: m.SlotResults, now: float) -> None:
        done, failed = slot.finished(results, self._worker(slot))
        if not done and not failed:
            return
        self.feeder.measured_lag(now - results.sent)
        for run in done:
            self.feeder.measured(run.spec, len(run.seqs), run.elapsed)
        self.spool.done += done
        self.spool.failed += failed
        slot.heard = now
        slot.quiet = False
        slot.kill_at = None
        slot.failures = 0
        slot.progress = (0.0, -1.0)

    def _slot_recalled(self, slot: Slot, count: int) -> None:
        slot.recalling = False
        self.feeder.put_back(slot.take_back(count))
        if slot.count:
            self._kill_doomed(slot)
        else:
            slot.quiet = False

    def _slot_reported(self, slot: Slot, progress: m.SlotProgress) -> None:
        if slot.pieces and progress.serial >= slot.pieces[0].first:
            slot.progress = (progress.done, progress.total)

    def _slot_exited(self, slot: Slot, exited: ev.SlotExited, now: float) -> None:
        slot.recalling = False
        self.feeder.put_back(slot.take_back(min(exited.unstarted, slot.count)))
        started = slot.take_back(slot.count)
        stopping = slot.state is SlotState.STOPPING
        for index, piece in enumerate(started):
            while len(piece):
                last = index == len(started) - 1 and len(piece) == 1
                self._blame(slot, piece.split(1), exited, running=last)
        slot.state = SlotState.DOWN
        slot.pid = 0
        slot.kill_at = None
        if exited.ready or stopping:
            slot.start_at = now
        else:
            slot.failures += 1
            slot.start_at = now + min(
                self.config.max_restart, self.config.restart * 2.0 ** min(slot.failures - 1, 10)
            )
        slot.reason = ""

    def _blame(self, slot: Slot, piece: Piece, exited: ev.SlotExited, *, running: bool) -> None:
        """Reports a task that had started in a slot that is gone: only the running one is to blame."""
        run, seq = piece.run, piece.run.seqs[piece.low]
        doom = (run.client, seq, run.attempt)
        if doom in self.feeder.doomed:
            self.feeder.doomed.discard(doom)
            return
        kind = "lost"
        if running and slot.reason in ("", "hard_timeout"):
            kind = slot.reason or ("oom" if exited.oom else "crash")
        text = exit_text(exited, kind, self.feeder.specs[run.spec])
        self.spool.failed.append(
            m.Failed(run.client, seq, run.attempt, kind, text=text, worker=self._worker(slot))
        )

    def _enforce_limits(self, now: float) -> None:
        for slot in self.slots.values():
            if slot.kill_at is not None and now >= slot.kill_at and slot.count and not slot.reason:
                self._kill(slot, "hard_timeout")

    def _kill(self, slot: Slot, reason: str) -> None:
        slot.reason = reason
        self._out.append(KillSlot(slot.number))

    # --- cancelling and handing back ----------------------------------------------------------------------

    def _cancel(self, tasks: list[m.Held]) -> None:
        wanted = {(held.client, seq, held.attempt) for held in tasks for seq in held.seqs}
        known = {
            (held.client, seq, held.attempt)
            for piece in [
                *self.feeder.backlog,
                *(piece for slot in self.slots.values() for piece in slot.pieces),
            ]
            for held in (piece.held(),)
            for seq in held.seqs
        }
        self.feeder.doomed |= wanted & known
        for slot in self.slots.values():
            if slot.state is SlotState.UP and not slot.recalling and self._has_doomed(slot):
                self._out += self.feeder.recall(slot)

    def _has_doomed(self, slot: Slot) -> bool:
        doomed = self.feeder.doomed
        return any(
            (piece.run.client, seq, piece.run.attempt) in doomed
            for piece in slot.pieces
            for seq in piece.run.seqs[piece.low : piece.high]
        )

    def _kill_doomed(self, slot: Slot) -> None:
        """After a recall only started tasks are left: kills the slot when the running one is cancelled."""
        if not self.feeder.doomed or slot.reason:
            return
        piece = slot.pieces[-1]
        if (piece.run.client, piece.run.seqs[piece.high - 1], piece.run.attempt) in self.feeder.doomed:
            self._kill(slot, "cancelled")

    def _return(self) -> None:
        """Hands unstarted tasks back: from the backlog first, then by recall from slots."""
        given = self.feeder.give_up(self._return_wanted)
        self.spool.returned += given
        self._return_wanted -= sum(len(held.seqs) for held in given)
        busy = [slot for slot in self.slots.values() if slot.count >= 2 and not slot.quiet]
        waiting = [slot for slot in busy if not slot.recalling and slot.state is SlotState.UP]
        if self._return_wanted > 0 and waiting:
            for slot in waiting:
                self._out += self.feeder.recall(slot)
        elif self._return_wanted > 0 and not any(slot.recalling for slot in self.slots.values()):
            self._return_wanted = 0

    def _command(self, verb: str, now: float) -> None:
        if verb == "pause" and self.state == "ready":
            self.state = "paused"
        elif verb == "resume" and self.state == "paused":
            self.state = "ready"
        elif verb == "drain":
            self._drain(now, self._lease * 3)
        if self.session:
            self._beat_at = now

    # --- leaving ------------------------------------------------------------------------------------------

    def _drain(self, now: float, grace: float) -> None:
        if self._drain_until is None:
            self.state = "draining"
            self._drain_until = now + grace
            self._return_wanted = 1 << 40
            self._beat_at = now if self.session else self._beat_at

    def _check_drained(self, now: float) -> None:
        assert self._drain_until is not None
        busy = any(slot.count or slot.recalling for slot in self.slots.values())
        overdue = now >= self._drain_until
        if busy and overdue:
            for slot in self.slots.values():
                if slot.count and not slot.reason and slot.state is SlotState.UP:
                    self._kill(slot, "drained")
            self._drain_until = now + 1.0
            return
        hub_gone = not self.session or now - self._replied > self.config.patience_beats * self._beat
        if not busy and (self.spool.empty or hub_gone or overdue):
            self._leave("")

    def _leave(self, reason: str) -> None:
        if self.session:
            self._out.append(SendHub(m.Bye(self.epoch, self.session)))
        for slot in self.slots.values():
            if slot.state is SlotState.UP:
                slot.state = SlotState.STOPPING
                self._out.append(StopSlot(slot.number))
        self._out.append(Leave(reason))
        self._left = True

    # --- views --------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """A view in plain data."""
        return {
            "pool": self.config.pool,
            "session": self.session,
            "state": self.state,
            "backlog": self.feeder.waiting(),
            "slots": {slot.number: (slot.state.value, slot.count) for slot in self.slots.values()},
            "unacknowledged": not self.spool.empty,
        }


def exit_text(exited: ev.SlotExited, kind: str, spec: m.Spec) -> str:
    """What people are told about a slot's end."""
    if kind == "hard_timeout":
        return f"killed after its hard_timeout of {spec.hard_timeout:g} s"
    how = f"signal {-exited.status}" if exited.status < 0 else f"exit code {exited.status}"
    text = "killed by the kernel for lack of memory" if exited.oom else f"its process ended with {how}"
    return f"{text}; last output: {exited.log[-MAX_LOG:]}" if exited.log else text
