"""The client machine: how a client's submissions reach the ledger and its outcomes come back, once each.

The pending table (futures, or their stand-ins in a simulation) keeps every task until it is resolved, so that
the machine can submit all of them again to a hub that has lost its memory.
"""

from __future__ import annotations

import math
from typing import assert_never

from msgspec.structs import replace

from taskmesh.client.machine.requests import PendingRequests, Request
from taskmesh.client.machine.settings import ClientSettings, UnresolvedTasks
from taskmesh.client.machine.sinks import OpenSinks
from taskmesh.client.machine.submission import Ages, SubmitWindow, portions
from taskmesh.core import events as ev
from taskmesh.core.actions import Accept, ClientAction, Reconnect, Resolve, Send, Tell
from taskmesh.link.link import DOUBLINGS, SLOWEST, ReceiveWindow, size_of_outcomes
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run, Spec

LONGEST_BACKOFF = 0.5
"""Seconds between two attempts to have a Submit taken in by a hub that is full, at most."""
LONGEST_WAIT = 10.0
"""Seconds that a client waits at a time for a hub that is full."""
IN_ORDER = 0
"""Deliveries that are taken in beyond a missing one. The failure of a dependent must not come before that of
its cause: the client might hear from the next hub that the cause has succeeded."""
GLANCE = 0.001
"""Seconds between two looks at what is due. A Tick, which comes when something is due, always looks."""


class ClientMachine:
    """One client session, over as many links, and lives of its hub, as it takes.

    Args:
        config: The settings.
        pending: The tasks that the program waits for.
        now: The time.

    Attributes:
        config: The settings.
        epoch: The hub's that it was last welcomed by, 0 before the first.
        open: True while a hub has welcomed it over the present link.
        refused: Why the hub will not have it, for good; empty as a rule.
        slots: For each queue and tags of the tasks under way, how many slots serve them, and when the hub has
            said so; of tasks before that, while there are none. Replaced, not changed: other threads read it.
    """

    def __init__(self, config: ClientSettings, pending: UnresolvedTasks, now: float) -> None:
        self.config = config
        self.epoch = 0
        self.open = False
        self.refused = ""
        self.slots: dict[tuple[str, frozenset[str]], tuple[int, float]] = {}
        self._pending = pending
        self._link = 1
        self._submits = SubmitWindow(pending)
        self._reached = self._refusals = 0
        self._hello_at = self._heard = self._opened = now
        self._beat = 1.0
        self._beat_at = now
        self._silences = 0
        self._busy_until = 0.0
        self._look_at = now
        self._deliveries = ReceiveWindow(IN_ORDER, config.credit)
        self._session = 0
        self._requests = PendingRequests(config.question)
        self._unstarted: set[int] = set()
        self._ages = Ages()
        self._sinks = OpenSinks()
        self._out: list[ClientAction] = []

    def take(self, event: object, now: float) -> None:
        """Take in one event."""
        out = self._out
        if isinstance(event, ev.FromHubToClient):  # a class pattern takes longer
            self._on_hub_message(event.message, now, out)
        elif isinstance(event, ev.Queued):
            self._stir(now)
            self._on_queued(event.specs, event.runs, now, out)
        elif isinstance(event, ev.RareClientEvent):
            self._on_others(event, now, out)
        else:
            raise TypeError(f"not an event of a client: {event!r}")

    def act(self, now: float) -> list[ClientAction]:
        """Return what is to be done after the events that were taken in; see `link.shell.Machine`."""
        out, self._out = self._out, []
        if now >= self._look_at or not self.open:
            self._look_at = now + GLANCE
            self._on_time(now, out)
        if self._deliveries.due < math.inf:
            self._acknowledge(now, out)
        return out

    def _on_others(self, event: ev.RareClientEvent, now: float, out: list[ClientAction]) -> None:
        match event:
            case ev.Requested(message=message):
                if not isinstance(message, m.ClientBye):
                    self._stir(now)
                self._on_request(message, now, out)
            case ev.LinkLost():
                self._lost(now, out)
            case ev.LinkCut():
                self._again(now, out)
            case ev.Tick():
                self._look_at = now
            case ev.SinkOpened(name=name, credit=credit):
                self._stir(now)
                out += self._sinks.open(name, credit, now, linked=self.open)
            case ev.SinkAcked(name=name, tasks=tasks):
                out += self._sinks.acknowledge(name, tasks, now, linked=self.open)
            case ev.SinkClosed(name=name):
                out += self._sinks.close(name, now, linked=self.open)
            case _:
                assert_never(event)

    @property
    def deadline(self) -> float:
        if self.refused:
            return math.inf
        if not self.open:
            return self._hello_at
        first = min(self._beat_at, self._lost_at, self._deliveries.due)
        if self._sinks.by_name:
            first = min(first, self._sinks.deadline)
        if self._busy_until or self._submits.kept:
            first = min(first, self._busy_until or self._submits.deadline(self.config.resend))
        return first

    @property
    def under_way(self) -> int:
        """Number of Submits that the hub has not acknowledged."""
        return len(self._submits.kept)

    # --- hub ----------------------------------------------------------------------------------------------

    def _on_hub_message(self, message: m.ToClient, now: float, out: list[ClientAction]) -> None:
        self._heard = now
        if isinstance(message, m.Deliver):
            self._on_deliver(message, now, out)
            return
        match message:
            case m.Accepted(number=number, slots=slots):
                self._on_accepted(number, now, out)
                self.slots = {(queue, frozenset(tags)): (n, now) for queue, tags, n in slots} or self.slots
            case m.ClientWelcome():
                self._on_welcome(message, now, out)
            case m.Busy():
                self._on_busy(message, now)
            case m.NeedSpec() | m.NeedValues():
                self._on_need(message, now, out)
            case m.ClientRefused():
                self._on_refused(message, now, out)
            case m.SinkDeliver() | m.SinkReportAck():
                out += self._sinks.on_message(message, now) if self.open else ()
            case m.Answer():
                self._requests.answered(message.number)
                out.append(Tell(message))
            case m.Notice():
                out.append(Tell(message))
            case _:
                assert_never(message)

    def _on_busy(self, busy: m.Busy, now: float) -> None:
        """Wait, since the hub is full, longer with each refusal."""
        wait = min(busy.retry_after, LONGEST_WAIT)
        if not self._busy_until:
            wait = max(wait, min(LONGEST_BACKOFF, wait * (1 << min(self._refusals, 10))))
            self._refusals += 1
        self._busy_until = max(self._busy_until, now + wait)

    def _on_need(self, need: m.NeedSpec | m.NeedValues, now: float, out: list[ClientAction]) -> None:
        """Send a Submit again with something that the hub lacks.

        A Submit that has all of it already is under way: answering each repetition would make more of them.
        """
        submit = self._submits.kept.get(need.number)
        if submit is None:
            return
        if isinstance(need, m.NeedSpec):
            added = self._add_specs(submit, need.specs)
        else:
            added = self._submits.add_values(submit, need.seqs)
        if added:
            self._send_from(need.number, now, out)

    def _add_specs(self, submit: m.Submit, specs: list[int]) -> bool:
        """Add specs that the hub lacks to a Submit that is kept; return False if it has them already.

        Tasks whose specs the pending table does not have any more were given up meanwhile.
        """
        lacking = set(specs).difference(known for known, _ in submit.specs)
        if lacking:
            found = self._pending.specs_of(sorted(lacking))
            unknown = lacking.difference(known for known, _ in found)
            runs = [run for run in submit.runs if run.spec not in unknown]
            self._submits.kept[submit.number] = replace(submit, specs=[*submit.specs, *found], runs=runs)
        return bool(lacking)

    def _on_refused(self, refused: m.ClientRefused, now: float, out: list[ClientAction]) -> None:
        if refused.reason:
            self.refused = refused.reason
            out.append(Tell(refused))
        elif self.open:
            self._lost(now, out)

    def _on_welcome(self, welcome: m.ClientWelcome, now: float, out: list[ClientAction]) -> None:
        """Take in the hub's answer to a Hello over this link.

        A hub that stood still answers older ones as well, and those of the first link as if it knew nothing.
        """
        if welcome.link not in (0, self._link):
            return
        if self.open:
            if welcome.epoch != self.epoch or welcome.session > self._session > 0:
                self._lost(now, out)
            elif not self._session:
                self._session = welcome.session
            return
        same = welcome.epoch == self.epoch and welcome.session == self._session > 0
        former, self.epoch = self.epoch, welcome.epoch
        first_time = not former
        self.open = True
        self._beat = welcome.beat
        self._beat_at = now + self._beat
        self._opened = now
        self._busy_until = 0.0
        submits = self._submits
        submits.welcomed(welcome, self.config.max_payload)
        if same or first_time:
            if failed := submits.fit():
                out.append(Resolve([], failed))
            if first_time:
                submits.recut(now)
            self._send_from(0, now, out)
            self._session = welcome.session
        else:
            self._start_over(welcome, now, out)
            if former != self.epoch:
                self._requests.declare(out)
        out += self._sinks.welcomed(now)
        self._requests.again(now, out)

    def _start_over(self, welcome: m.ClientWelcome, now: float, out: list[ClientAction]) -> None:
        """Submit everything unresolved again, to a hub that does not have it."""
        self._deliveries.restart()
        self._session = welcome.session
        submits = self._submits
        never = submits.cancels()
        waiting = [submit for number, submit in submits.kept.items() if number > self._reached]
        unsent = {seq for submit in waiting for run in submit.runs for seq in run.seqs}
        submits.restart(submits.next)
        if lost := self._pending.lose_early(unsent):
            out.append(Resolve([], lost))
            never += [failure.seq for failure in lost]
        specs, runs = self._pending.pending_runs()
        self._unstarted.intersection_update([seq for run in runs for seq in run.seqs])
        out.append(Send(self._hello()))
        self._on_queued(specs, self._ages.stated(runs, now), now, out)
        submits.give_up(never, [], now, whole=True)
        self._send_more(out)

    def _on_accepted(self, number: int, now: float, out: list[ClientAction]) -> None:
        submits = self._submits
        if number >= submits.first:
            accepted = submits.acknowledge(number, now)
            seqs: list[int] = []
            for submit in accepted:
                for run in submit.runs:
                    seqs += run.seqs
                if self._ages.expiring:
                    self._ages.accepted(submit.runs, now)
            if accepted:
                self._refusals = 0
            if seqs:
                out.append(Accept(seqs))
        if self.open and submits.sent + 1 < submits.next and not self._busy_until:
            self._send_more(out)

    def _on_deliver(self, deliver: m.Deliver, now: float, out: list[ClientAction]) -> None:
        if not self.open:
            return
        if deliver.epoch != self.epoch:
            self._lost(now, out)
            return
        if deliver.accepted:
            self._on_accepted(deliver.accepted, now, out)
        new = self._deliveries.take(deliver.number)
        if self.config.credit:
            self._deliveries.owe(size_of_outcomes(deliver.done, deliver.failed), now, at_once=not new)
        if new:
            if self._ages.since:
                self._ages.ended([seq for run in deliver.done for seq in run.seqs])
                self._ages.ended([failure.seq for failure in deliver.failed])
            out.append(Resolve(deliver.done, deliver.failed))
            if self._unstarted:
                self._unstarted.difference_update(*[run.seqs for run in deliver.done])
                self._unstarted.difference_update([failure.seq for failure in deliver.failed])

    def _acknowledge(self, now: float, out: list[ClientAction]) -> None:
        """Acknowledge deliveries when that is due, or ahead of what is sent anyway unless that does so."""
        if not self.open:
            return
        if now < self._deliveries.due:
            for action in out:
                if type(action) is Send:
                    break
            else:
                return
        arrived = self._deliveries.acknowledged()
        if arrived:
            out.insert(0, Send(m.ResultAck(self.epoch, arrived)))

    # --- submitting ---------------------------------------------------------------------------------------

    def _on_request(
        self, message: Request | m.CancelTasks | m.ClientBye, now: float, out: list[ClientAction]
    ) -> None:
        match message:
            case m.CancelTasks(seqs=seqs, unstarted=unstarted):
                self._on_cancel(seqs, unstarted, now, out)
            case m.Query() | m.Command() | m.Fulfil() | m.PutSchedule() | m.DropSchedule():
                self._requests.ask(message, now, out, linked=self.open)
            case m.ClientBye():
                if self.open:
                    out.append(Send(message))
            case _:
                assert_never(message)

    def _on_cancel(self, seqs: list[int], unstarted: list[int], now: float, out: list[ClientAction]) -> None:
        """Give tasks up in a Submit, which cannot be lost.

        A hub that is full takes none, and so it hears of it in a message of its own as well: that makes room.
        Submits that wait for room say it too when they are sent, or some of `unstarted` would start first.
        """
        if self.open and self._submits.kept:
            out += [Send(m.CancelTasks(*some)) for some in portions(seqs, unstarted)]
        self._ages.ended(seqs)
        self._unstarted.update(unstarted)
        self._unstarted.difference_update(seqs)
        self._submits.give_up(seqs, unstarted, now)
        if self.open:
            self._send_more(out)

    def _on_queued(
        self, specs: list[tuple[int, Spec]], runs: list[Run], now: float, out: list[ClientAction]
    ) -> None:
        """Submit tasks; those that are too large fail, and the hub hears their numbers or it would wait."""
        submits = self._submits
        if specs and self.config.credit:
            self._ages.submitted(specs)
        if not submits.max_payload:
            submits.submit(specs, runs, now)
        else:
            fitting, failed = submits.fitting(runs)
            submits.submit(specs, fitting, now)
            if failed:
                out.append(Resolve([], failed))
                submits.give_up([failure.seq for failure in failed], [], now)
        if self.open:
            self._send_more(out)

    def _send_from(self, number: int, now: float, out: list[ClientAction]) -> None:
        """Send what is unacknowledged once more, from a number on."""
        self._submits.rewind(number, now)
        self._send_more(out)

    def _send_more(self, out: list[ClientAction]) -> None:
        """Send the Submits that follow as far as the window goes; one at least is under way.

        A hub that is full is shown one alone: to say all again that it would refuse again costs both.
        """
        for submit in self._submits.send(1 if self._refusals else self._submits.limit):
            stamped = replace(submit, epoch=self.epoch, delivered=self._deliveries.acknowledged())
            if self._unstarted and submit.runs:
                stamped.unstarted = [s for run in submit.runs for s in run.seqs if s in self._unstarted]
            out.append(Send(stamped))
        self._reached = max(self._reached, self._submits.sent)

    # --- time ---------------------------------------------------------------------------------------------

    def _on_time(self, now: float, out: list[ClientAction]) -> None:
        if self.refused:
            return
        if not self.open:
            if now >= self._hello_at:
                self._hello_at = now + self.config.hello
                out.append(Send(self._hello()))
            return
        if now >= self._lost_at:
            brief = now - self._opened < 4 * self._patience
            self._silences = min(self._silences + 1, DOUBLINGS) if brief else 0
            self._lost(now, out)
            return
        if self._busy_until:
            if now >= self._busy_until:
                self._say_again(now, out)
        elif now >= self._submits.deadline(self.config.resend):
            self._submits.repeat(now)
            self._again(now, out)
        if now >= self._beat_at:
            owed = self._pending or self._submits.kept or self._sinks.by_name or self._requests
            self._beat_at = now + self._beat if owed else math.inf
            out += [Send(m.ClientBeat(self.epoch))] if owed else ()
        if self._sinks.by_name and now >= self._sinks.deadline:
            out += self._sinks.on_time(now)

    def _stir(self, now: float) -> None:
        """Ask the hub for a Welcome before it says something after a silence: another one may be there."""
        if self.open and self._beat_at == math.inf:
            self.open, self._hello_at = False, now
            self._link += 1

    def _say_again(self, now: float, out: list[ClientAction]) -> None:
        """Repeat what the hub has not answered, since it was full."""
        self._busy_until = 0.0
        self._send_from(0, now, out)
        self._requests.again(now, out)

    def _again(self, now: float, out: list[ClientAction]) -> None:
        """Say Hello, which states the first Submit, and send again what is unacknowledged."""
        if not self.open:
            return
        out.append(Send(self._hello()))
        self._send_from(0, now, out)

    @property
    def _lost_at(self) -> float:
        """Time at which the link counts as lost, unless the hub is heard of: no beat, no answer."""
        return self._heard + self._patience if self._beat_at < math.inf else math.inf

    @property
    def _patience(self) -> float:
        """Seconds of silence after which the link counts as lost: more after links that did not last."""
        return self.config.patience * (1 << self._silences) + self._submits.in_flight / SLOWEST

    def _hello(self) -> m.ClientHello:
        return self.config.statement(self.epoch, self._submits.first, self._link)

    def _lost(self, now: float, out: list[ClientAction]) -> None:
        self.open = False
        self._hello_at = now
        self._link += 1
        out.append(Reconnect())
