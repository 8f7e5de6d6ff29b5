"""The client machine: how a client's submissions reach the ledger and its outcomes come back, once each.

The pending table (futures, or their stand-ins in a simulation) keeps every task until it is resolved, so that
the machine can submit all of them again to a hub that has lost its memory.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.core.actions import Accept, Reconnect, Resolve, Send, Tell
from taskmesh.core.client.charges import Charges
from taskmesh.core.client.oversize import without_large
from taskmesh.core.client.pending_table import PendingTable
from taskmesh.core.client.questions import OpenQuestions, Question
from taskmesh.core.client.runs import split_run
from taskmesh.core.client.settings import ClientSettings
from taskmesh.core.link import DOUBLINGS, SLOWEST, ReceiveWindow, SendWindow, size_of_outcomes
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Run, Spec

MAX_SUBMIT = 2000
"""Tasks in one Submit: a hub that is full refuses little at a time."""
MAX_CANCELS = 5_000
"""Tasks that one message gives up: some 25 ms of the hub's work, and others get their turn."""
MAX_BYTES = 8 << 20
"""Payload bytes in one Submit, but for a task that has more by itself."""
PARTS = 4
"""Submits that make a window, at least: while one is taken in the next ones are under way."""
LONGEST_BACKOFF = 0.5
"""Seconds between two attempts to have a Submit taken in by a hub that is full, at most."""
LONGEST_WAIT = 10.0
"""Seconds that a client waits at once for a hub that is busy, or that its key has said too much to."""
MOST_LEFT = 8
"""Hubs whose deliveries are remembered after this client has left them: it may come back."""
GLANCE = 0.001
"""Seconds between two looks for what is due; a Tick, which comes when something is, always looks."""


class ClientMachine:
    """One client session, over as many links and hubs as it takes."""

    def __init__(self, config: ClientSettings, pending: PendingTable, now: float) -> None:
        self.config = config
        self.epoch = 0
        self.open = False
        self.refused = ""
        self._pending = pending
        self._link = 1
        self._limit = MAX_SUBMIT
        self._max_payload = 0
        self._submits: SendWindow[m.Submit] = SendWindow()
        self._window = math.inf
        self._most_bytes = MAX_BYTES
        self._refusals = 0
        self._hello_at = self._heard = self._opened = now
        self._beat = 1.0
        self._beat_at = now
        self._silences = 0
        self._busy_until = 0.0
        self._look_at = now
        self._deliveries = ReceiveWindow(credit=config.credit)
        self._elsewhere: dict[int, ReceiveWindow] = {}
        self._questions = OpenQuestions(config.question)
        self._unstarted: set[int] = set()
        self._charges = Charges()

    def handle(self, event: Any, now: float) -> list[object]:
        """Takes in one event; returns what is to be done, in order."""
        out: list[object] = []
        kind = type(event)  # class patterns take longer: see HubMachine.handle
        if kind is ev.FromHubToClient:
            self._from_hub(event.message, now, out)
        elif kind is ev.Queued:
            self._queue(event.specs, event.runs, now, out)
        else:
            self._from_others(event, now, out)
        if now >= self._look_at or not self.open:
            self._look_at = now + GLANCE
            self._on_time(now, out)
        if self._deliveries.due < math.inf:
            self._acknowledge(now, out)
        return out

    def _from_others(self, event: object, now: float, out: list[object]) -> None:
        match event:
            case ev.Requested(message=message):
                self._ask(message, now, out)
            case ev.LinkLost():
                self._lost(now, out)
            case ev.LinkCut():
                self._again(now, out)
            case ev.Tick():
                self._look_at = now
            case _:
                raise TypeError(f"not an event of a client: {event!r}")

    @property
    def deadline(self) -> float:
        """When a Tick is due at the latest."""
        if self.refused:
            return math.inf
        if not self.open:
            return self._hello_at
        first = min(self._beat_at, self._heard + self._patience, self._deliveries.due)
        if self._busy_until or self._submits.kept:
            first = min(first, self._busy_until or self._submits.deadline(self.config.resend))
        return first

    @property
    def under_way(self) -> int:
        """Number of Submits that the hub has not acknowledged."""
        return len(self._submits.kept)

    # --- hub ----------------------------------------------------------------------------------------------

    def _from_hub(self, message: m.ToClient, now: float, out: list[object]) -> None:
        self._heard = now
        if type(message) is m.Deliver:
            self._deliver(message, now, out)
            return
        match message:
            case m.Accepted(number=number):
                self._accepted(number, now, out)
            case m.ClientWelcome():
                self._welcome(message, now, out)
            case m.Busy():
                self._busy(message, now)
            case m.NeedSpec(number=number, specs=specs):
                self._complete(number, specs, now, out)
            case m.ClientRefused():
                self._refused(message, now, out)
            case m.Notice(progress=progress):
                if self.config.credit:
                    self._charges.running(progress)
                out.append(Tell(message))
            case m.Answer(number=number):
                self._questions.answered(number)
                out.append(Tell(message))

    def _busy(self, busy: m.Busy, now: float) -> None:
        """The hub is full, which it is asked about less and less often, or has dropped something."""
        wait = min(busy.retry_after, LONGEST_WAIT)
        if busy.number and not self._busy_until:
            wait = max(wait, min(LONGEST_BACKOFF, wait * (1 << min(self._refusals, 10))))
            self._refusals += 1
        self._busy_until = max(self._busy_until, now + wait)

    def _complete(self, number: int, specs: list[int], now: float, out: list[object]) -> None:
        """The hub lacks these specs: this Submit again, with them.

        Tasks whose specs the pending table does not have any more were given up meanwhile. A Submit that has
        the specs already is under way: answering each repetition would make more of them.
        """
        submit = self._submits.kept.get(number)
        if submit is None:
            return
        lacking = set(specs).difference(known for known, _ in submit.specs)
        if not lacking:
            return
        found = self._pending.specs_of(sorted(lacking))
        unknown = lacking.difference(known for known, _ in found)
        runs = [run for run in submit.runs if run.spec not in unknown]
        self._submits.kept[number] = replace(submit, specs=[*submit.specs, *found], runs=runs)
        self._send_from(number, now, out)

    def _refused(self, refused: m.ClientRefused, now: float, out: list[object]) -> None:
        if refused.reason:
            self.refused = refused.reason
            out.append(Tell(refused))
        elif self.open:
            self._lost(now, out)

    def _welcome(self, welcome: m.ClientWelcome, now: float, out: list[object]) -> None:
        """Takes in the hub's answer to a Hello over this link.

        A hub that stood still answers older ones as well, and those of the first link as if it knew nothing.
        """
        if welcome.link not in (0, self._link):
            return
        if self.open:
            if welcome.epoch != self.epoch:
                self._lost(now, out)
            return
        same = welcome.known and welcome.epoch == self.epoch
        former, self.epoch = self.epoch, welcome.epoch
        first_time = not former
        self.open = True
        self._beat = welcome.beat
        self._beat_at = now + self._beat
        self._opened = now
        self._busy_until = 0.0
        self._limit = max(1, min(MAX_SUBMIT, welcome.max_tasks // 2))
        self._window = welcome.window or math.inf
        self._most_bytes = min(MAX_BYTES, max(1, welcome.window // PARTS)) if welcome.window else MAX_BYTES
        self._max_payload = welcome.max_payload if welcome.max_payload < self.config.max_payload else 0
        if same or first_time:
            if self._max_payload:
                self._fit_kept(out)
            if first_time:
                self._cut_anew(now)
            self._send_from(0, now, out)
        else:
            self._start_over(former, welcome.known, now, out)
        self._questions.again(now, out)

    def _fit_kept(self, out: list[object]) -> None:
        """The hub takes no call as large as some of those that wait: these fail."""
        kept = self._submits.kept
        for number, submit in kept.items():
            runs, over = self._fitting(submit.runs, out)
            kept[number] = replace(submit, runs=runs, cancels=submit.cancels + over)

    def _cut_anew(self, now: float) -> None:
        """Nothing was ever sent: the Submits that wait are made as large as the hub takes them."""
        submits = self._submits
        waiting = list(submits.kept.values())
        if any(self._is_too_large(submit) for submit in waiting):
            submits.restart(submits.first)
            for submit in waiting:
                self._cut(submit.specs, submit.runs, now)
                if submit.cancels or submit.unstarted:
                    submits.append(replace(submit, number=submits.next, specs=[], runs=[]), 0, now)

    def _is_too_large(self, submit: m.Submit) -> bool:
        count = sum(len(run.seqs) for run in submit.runs)
        return count > self._limit or (count > 1 and self._submits.size_of(submit.number) > self._most_bytes)

    def _start_over(self, former: int, known: bool, now: float, out: list[object]) -> None:
        """The hub knows nothing of this session, or no more than before it was with another one.

        Everything unresolved is submitted again. A hub that was left alive goes on counting its deliveries,
        unless it has forgotten this client meanwhile.
        """
        if former != self.epoch:
            self._elsewhere[former] = self._deliveries
            fresh = ReceiveWindow(credit=self.config.credit)
            counted = self._elsewhere.pop(self.epoch, fresh)
            self._deliveries = counted if known else fresh
            if len(self._elsewhere) > MOST_LEFT:
                del self._elsewhere[next(iter(self._elsewhere))]
        else:
            self._deliveries.restart()
        submits = self._submits
        never = [seq for submit in submits.kept.values() for seq in submit.cancels]
        submits.restart(submits.next)
        if lost := self._pending.lose_early():
            out.append(Resolve([], lost))
            never += [failure.seq for failure in lost]
        specs, runs = self._pending.pending_runs()
        self._charges.submitted(specs)
        charged = self._charges.message(runs, now)
        self._unstarted.intersection_update([seq for run in runs for seq in run.seqs])
        out.append(Send(self._hello()))
        if charged:
            submits.append(m.Submit(submits.next, [], [], charged=charged), 0, now)
        self._queue(specs, runs, now, out)
        *portions, (last, _) = _portions(never, [])
        for some, _ in portions:
            submits.append(m.Submit(submits.next, [], [], some), 0, now)
        submits.append(m.Submit(submits.next, [], [], last, whole=True), 0, now)
        self._send_more(out)

    def _accepted(self, number: int, now: float, out: list[object]) -> None:
        submits = self._submits
        if number >= submits.first:
            accepted = submits.acknowledge(number, now)
            seqs: list[int] = []
            for submit in accepted:
                for run in submit.runs:
                    seqs += run.seqs
                if self._charges.expiring:
                    self._charges.accepted(submit.runs, now)
            if accepted:
                self._refusals = 0
            if seqs:
                out.append(Accept(seqs))
        if self.open and submits.sent + 1 < submits.next and not self._busy_until:
            self._send_more(out)

    def _deliver(self, deliver: m.Deliver, now: float, out: list[object]) -> None:
        if not self.open:
            return
        if deliver.epoch != self.epoch:
            self._lost(now, out)
            return
        if deliver.accepted:
            self._accepted(deliver.accepted, now, out)
        new = self._deliveries.take(deliver.number)
        if self.config.credit:
            self._deliveries.owe(size_of_outcomes(deliver.done, deliver.failed), now, at_once=not new)
        if new:
            if deliver.charged:
                self._charges.told(deliver.charged)
            if self._charges.charged or self._charges.since:
                self._charges.delivered(deliver)
            out.append(Resolve(deliver.done, deliver.failed))
            if self._unstarted:
                self._unstarted.difference_update(*[run.seqs for run in deliver.done])
                self._unstarted.difference_update([failure.seq for failure in deliver.failed])

    def _acknowledge(self, now: float, out: list[object]) -> None:
        """Tells the hub what has arrived: in time, or ahead of what is sent anyway, unless that tells it."""
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

    def _ask(self, message: Question | m.CancelTasks | m.ClientBye, now: float, out: list[object]) -> None:
        match message:
            case m.CancelTasks(seqs=seqs, unstarted=unstarted):
                submits = self._submits
                if self.open and submits.kept:  # a hub that is full takes no Submit: this makes room
                    out += [Send(m.CancelTasks(*some)) for some in _portions(seqs, unstarted)]
                self._charges.ended(seqs)
                self._unstarted.update(unstarted)  # Submits that wait for room say so too, when they are sent
                self._unstarted.difference_update(seqs)
                for some, others in _portions(seqs, unstarted):
                    submits.append(m.Submit(submits.next, [], [], some, unstarted=others), 0, now)
                if self.open:
                    self._send_more(out)
            case m.Query() | m.Command():
                self._questions.ask(message, now, out, linked=self.open)
            case m.ClientBye() if self.open:
                out.append(Send(message))

    def _queue(self, specs: list[tuple[int, Spec]], runs: list[Run], now: float, out: list[object]) -> None:
        if specs and self.config.credit:
            self._charges.submitted(specs)
        kept, over = self._fitting(runs, out) if self._max_payload else (runs, [])
        self._cut(specs, kept, now)
        if over:
            self._submits.append(m.Submit(self._submits.next, [], [], over), 0, now)
        if self.open:
            self._send_more(out)

    def _fitting(self, runs: list[Run], out: list[object]) -> tuple[list[Run], list[int]]:
        """Tasks that the hub takes; the others fail. It is told their numbers, or it would wait for them."""
        kept, failed = without_large(runs, self._max_payload)
        if failed:
            out.append(Resolve([], failed))
        return kept, [failure.seq for failure in failed]

    def _cut(self, specs: list[tuple[int, Spec]], runs: list[Run], now: float) -> None:
        """Makes Submits of tasks, none larger than the limit."""
        submits = self._submits
        if len(runs) == 1 and len(runs[0].payloads) == 1:  # a task alone is never cut
            submits.append(m.Submit(submits.next, specs, runs), len(runs[0].payloads[0]), now)
            return
        batch: list[Run] = []
        count = size = 0
        for run in runs:
            for part in split_run(run, self._limit, self._most_bytes):
                weight = sum(map(len, part.payloads))
                if batch and (count + len(part.seqs) > self._limit or size + weight > self._most_bytes):
                    submits.append(m.Submit(submits.next, specs, batch), size, now)
                    specs, batch, count, size = [], [], 0, 0
                batch.append(part)
                count += len(part.seqs)
                size += weight
        if batch:
            submits.append(m.Submit(submits.next, specs, batch), size, now)

    def _send_from(self, number: int, now: float, out: list[object]) -> None:
        """Sends what is unacknowledged once more, from a number on."""
        self._submits.rewind(number, now)
        self._send_more(out)

    def _send_more(self, out: list[object]) -> None:
        """Sends the Submits that follow as far as the window goes; one at least is under way.

        A hub that is full is shown one alone: to say all again that it would refuse again costs both.
        """
        for submit in self._submits.send(1 if self._refusals else self._window):
            stamped = replace(submit, epoch=self.epoch, delivered=self._deliveries.acknowledged())
            if self._unstarted and submit.runs:
                stamped.unstarted = [s for run in submit.runs for s in run.seqs if s in self._unstarted]
            out.append(Send(stamped))

    # --- time ---------------------------------------------------------------------------------------------

    def _on_time(self, now: float, out: list[object]) -> None:
        if self.refused:
            return
        if not self.open:
            if now >= self._hello_at:
                self._hello_at = now + self.config.hello
                out.append(Send(self._hello()))
            return
        if now - self._heard >= self._patience:
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
            self._beat_at = now + self._beat
            out.append(Send(m.ClientBeat(self.epoch)))

    def _say_again(self, now: float, out: list[object]) -> None:
        """The hub has not taken, or has dropped, what was said: all that it has not answered."""
        self._busy_until = 0.0
        self._send_from(0, now, out)
        self._deliveries.owe(0, now, at_once=True)
        self._questions.again(now, out)

    def _again(self, now: float, out: list[object]) -> None:
        """Hello, which states what Submit comes first (that may have been lost), and the unacknowledged."""
        if not self.open:
            return
        out.append(Send(self._hello()))
        self._send_from(0, now, out)

    @property
    def _patience(self) -> float:
        """Silence of the hub after which the link counts as lost: longer after links that did not last."""
        return self.config.patience * (1 << self._silences) + self._submits.in_flight / SLOWEST

    def _hello(self) -> m.ClientHello:
        config = self.config
        first = self._submits.first
        hello = m.ClientHello(config.client, self.epoch, first, name=config.name, credit=config.credit)
        hello.python, hello.cloudpickle, hello.link = config.python, config.cloudpickle, self._link
        hello.slot = config.slot
        return hello

    def _lost(self, now: float, out: list[object]) -> None:
        self.open = False
        self._hello_at = now
        self._link += 1
        out.append(Reconnect())


def _portions(seqs: list[int], unstarted: list[int]) -> list[tuple[list[int], list[int]]]:
    """Cuts what is given up into messages, one at least."""
    most = max(len(seqs), len(unstarted), 1)
    return [
        (seqs[at : at + MAX_CANCELS], unstarted[at : at + MAX_CANCELS]) for at in range(0, most, MAX_CANCELS)
    ]
