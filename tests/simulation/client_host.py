"""The simulated client: a pending table in place of futures, and the link to the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.client.sink import Sink
from taskmesh.core import actions as act
from taskmesh.core.events import FromHubToClient, Queued, Requested
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import CALL, DONE, FAILURE, SINK_VALUE, SUCCESS, DoneRun, Failed, Run, Spec, Value
from tests.simulation.host import Host
from tests.simulation.hub_host import HubHost
from tests.simulation.network import Link, unpacked
from tests.simulation.setting import Setting
from tests.simulation.timetable import Timetable
from tests.simulation.workload import Plan

_TO_CLIENT = msgspec.msgpack.Decoder(m.ToClient).decode


HELLOS = 2
"""Unanswered Hellos after which the hub is dialled anew."""

Burst = Callable[[int, int, int], list[Plan]]


class Table:
    """Unresolved tasks, by counter: what futures are in a real client."""

    def __init__(self, client: int, timetable: Timetable) -> None:
        self.plans: dict[int, Plan] = {}
        self.over: dict[int, Plan] = {}
        self.reruns: set[int] = set()
        self.values: dict[int, Value] = {}
        self._lost: set[int] = set()
        self._client = client
        self._timetable = timetable

    def __bool__(self) -> bool:
        """True if any task is unresolved."""
        return bool(self.plans)

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Every unresolved task, to submit again, but those that were just given up for lost."""
        plans = [plan for plan in self.plans.values() if plan.seq not in self._lost]
        self._lost = set()
        return runs_of(plans, self._timetable.now, again=True)

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]:
        """Specs by number."""
        specs = {plan.kind.number: plan.kind.spec for plan in self.plans.values()}
        return [(number, specs[number]) for number in numbers if number in specs]

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Outcomes that are known, of which a real table keeps those that pending tasks depend on."""
        return [self.values[seq] for seq in seqs if seq in self.values]

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Calls of tasks that ignore their results, and of such that they need, to run again."""
        known = self.over | self.plans
        left = [seq for seq in seqs if known[seq].kind.spec.ignore_result]
        found: dict[int, Plan] = {}
        while left:
            seq = left.pop()
            found[seq] = known[seq]
            left += [
                other
                for other in known[seq].needs
                if other not in found and other in self.values and self.values[other].is_bare
            ]
        specs, runs = runs_of([found[seq] for seq in sorted(found)], self._timetable.now, again=True)
        for run in runs:
            run.rerun = max(1, *(self.values[seq].attempt for seq in run.seqs if seq in self.values), 1)
        self.reruns |= found.keys()
        return specs, runs

    def ended(self, plan: Plan, payload: bytes, failure: Failed | None, attempt: int = 0) -> None:
        """Takes a task with its outcome out of the table."""
        if self.plans.pop(plan.seq, None) is not None:
            self.over[plan.seq] = plan
            self.values[plan.seq] = Value(plan.seq, payload, plan.kind.spec.name, attempt, failed=failure)

    def lose_early(self, unsent: Set[int]) -> list[Failed]:
        """Gives at-most-once tasks up: each is lost."""
        early = {seq for seq, plan in self.plans.items() if plan.kind.spec.acks == "early"}
        self._lost = early - unsent
        return [Failed(self._client, seq, 0, "lost", text="the hub was lost") for seq in sorted(self._lost)]


def runs_of(plans: list[Plan], now: float, *, again: bool) -> tuple[list[tuple[int, Spec]], list[Run]]:
    """Tasks as runs: one for each spec and group, one for each task with a key or a time to start at.

    Tasks that depend on others share one only if they come one after the other.
    """
    specs: dict[int, Spec] = {}
    runs: list[Run] = []
    open_runs: dict[tuple[object, ...], Run] = {}
    last: tuple[object, ...] = ()
    for plan in plans:
        number = plan.kind.number
        specs[number] = plan.kind.spec
        alike = (number, plan.group, plan.part, plan.when, bool(plan.needs), bool(plan.after))
        run = open_runs.get(alike)
        alone = bool(plan.key or plan.start_at)
        if run is None or alone or (plan.upstream and alike != last):
            run = Run(number, plan.group, [], [], plan.key, again)
            run.delay = max(0.0, plan.start_at - now)
            run.when, run.part = plan.when, plan.part
            runs.append(run)
            if not alone:
                open_runs[alike] = run
        last = () if alone else alike
        run.seqs.append(plan.seq)
        run.payloads.append(plan.payload)
        run.needs += [list(plan.needs)] if plan.needs else []
        run.after += [list(plan.after)] if plan.after else []
    return list(specs.items()), runs


class Program(Protocol):
    """A program beside a client, in its process."""

    def woken(self) -> None:
        """The process goes on after it stood still."""
        ...


class ClientHost(Host[ClientMachine]):
    """One client session.

    Attributes:
        up_link, down_link: to the hub, and from it.
        accepted: tasks that hubs have acknowledged, and in which epoch.
    """

    def __init__(self, setting: Setting, hub: HubHost, config: ClientSettings) -> None:
        super().__init__(f"client-{config.client}", setting)
        self.client = config.client
        self._hub = hub
        self._unanswered = 0
        self.up_link = Link("gateway", partial(hub.from_client, config.client))
        self.down_link = Link("gateway", self._from_hub)
        self.table = Table(config.client, setting.timetable)
        self.accepted: dict[int, int] = {}
        self.answers: dict[int, m.Answer] = {}
        self.asked = 0
        self.promises: dict[int, str] = {}
        self.intakes: dict[str, Sink] = {}
        self.programs: list[Program] = []
        self._config = config
        self._next = 1
        self._known: set[int] = set()
        self._may_repeat = hub.disk is not None
        self._cancels: dict[int, list[int]] = {}
        self._submits_to = 0

    def _redial(self) -> None:
        """The hub is dialled anew, as `client.port.sockets` does."""
        self.up_link.reset()
        self.down_link.reset()
        self._unanswered = 0
        self._cancels.clear()  # the hub may have had them, or not

    def resume(self) -> None:
        """SIGCONT, with its programs first."""
        for program in self.programs if self.paused else ():
            program.woken()
        super().resume()

    def start(self) -> None:
        """Starts the session."""
        self.offset = 1000.0 * self.setting.chance.randrange(1, 50)
        self.boot(ClientMachine(self._config, self.table, self.clock()))

    def _from_hub(self, data: object) -> None:
        if not self.up:
            return
        message = unpacked(data, _TO_CLIENT)
        self._unanswered = 0
        if isinstance(message, m.Accepted):
            self._accepted(message.number)
        self.tell(FromHubToClient(message))

    def _take(self, event: object) -> None:
        news = event.message if isinstance(event, FromHubToClient) else None
        machine = self.machine
        if (
            isinstance(news, m.Deliver)
            and machine.open
            and news.epoch == machine.epoch
            and news.number <= machine._deliveries.to + 1  # beyond a missing one it is not taken in
        ):
            self.setting.audit.told(self.client, news)
        super()._take(event)

    def _accepted(self, number: int) -> None:
        """Cancellations that the ledger knows of now; of a key's tasks another may be run in their place.

        What a hub of a journal says that is gone by now, the next one may not have read.
        """
        plans, hub = self.setting.workload.plans, self._hub
        is_known = hub.disk is None or hub.epoch == self.machine.epoch
        for sent in [sent for sent in self._cancels if sent <= number]:
            for seq in self._cancels.pop(sent):
                if is_known and not plans[self.client, seq].key:
                    self.setting.audit.cancel_known.add((self.client, seq))

    # --- what the application does ------------------------------------------------------------------------

    def submit(self, count: int) -> list[Plan]:
        """Submits `count` new tasks."""
        return self.submit_all(self.setting.workload.burst, count, may_wait=True)

    def submit_all(
        self, make: Burst, count: int, *, may_wait: bool = False, after: Sequence[int] = ()
    ) -> list[Plan]:
        """Submits `count` new tasks of a sort; some of them are to start later if they may.

        Args:
            make: makes them. count: so many. may_wait: some have a time to start, or depend on others.
            after: tasks whose outcomes they need, each of one.
        """
        plans = make(self.client, self._next, count)
        self._next += count
        for plan in plans:
            plan.submitted = self.setting.timetable.now
            if may_wait and plan.seq % 11 == 3 and not (plan.key or plan.is_value):
                plan.start_at = plan.submitted + 0.7 * (plan.seq % 5)
            if may_wait and plan.seq % 5 == 2 and plan.kind.spec.kind == CALL:
                self._depend(plan)
        for plan, seq in zip(plans, after, strict=False):
            plan.needs = (seq,)
        self.table.plans.update((plan.seq, plan) for plan in plans)
        specs, runs = runs_of(plans, self.setting.timetable.now, again=False)
        fresh = [(number, spec) for number, spec in specs if number not in self._known]
        self._known.update(number for number, _ in fresh)
        self.tell(Queued(fresh, runs))
        return plans

    def _depend(self, plan: Plan) -> None:
        """Has a task depend on up to three that were submitted before it, ended or not."""
        chance = self.setting.chance
        recent = range(max(1, plan.seq - 20), plan.seq)
        known = [self.setting.workload.plans[self.client, seq] for seq in recent]
        calls = [other.seq for other in known if other.kind.spec.kind in (CALL, SINK_VALUE)]
        chosen = chance.sample(calls, min(len(calls), chance.randint(1, 3)))
        split = chance.randint(0, len(chosen))
        fit = [seq for seq in chosen[:split] if self.setting.workload.plans[self.client, seq].may_be_needed]
        plan.needs, plan.after = tuple(fit), tuple(seq for seq in chosen if seq not in fit)
        plan.when = chance.choice((SUCCESS, SUCCESS, DONE, FAILURE)) if chosen else SUCCESS

    def cancel(self, count: int) -> None:
        """Gives up `count` unresolved tasks."""
        seqs = self.setting.chance.sample(list(self.table.plans), min(count, len(self.table.plans)))
        if seqs:
            for seq in seqs:
                self.table.ended(self.table.plans[seq], b"", Failed(0, seq, 0, "cancelled"))
                self.setting.audit.cancelled.add((self.client, seq))
                self.setting.audit.durability.ended.add((self.client, seq))
            self.tell(Requested(m.CancelTasks(seqs)))

    def cancel_unstarted(self, count: int) -> list[Plan]:
        """Gives up `count` unresolved tasks unless they have started; returns those that the hub has."""
        seqs = self.setting.chance.sample(list(self.table.plans), min(count, len(self.table.plans)))
        plans = [self.table.plans[seq] for seq in seqs if seq in self.accepted]
        if seqs:
            self.setting.audit.unwanted.update((self.client, seq) for seq in seqs)
            self.tell(Requested(m.CancelTasks([], seqs)))
        return plans

    def leave(self, *, cancel: bool) -> None:
        """Says goodbye to the hub, which may never hear it."""
        if cancel:
            self.setting.audit.cancelled.update((self.client, seq) for seq in self.table.plans)
            self.table.plans.clear()
        self.setting.audit.durability.gone(self.client)
        self.tell(Requested(m.ClientBye(cancel=cancel)))

    def ask(self, what: str) -> int:
        """Asks for a view; returns the question's number."""
        self.asked += 1
        self.tell(Requested(m.Query(self.asked, what)))
        return self.asked

    def fulfil(self, key: str, payload: bytes, keep: float) -> None:
        """Gives a promise its value, or an error if that is empty; another one may have come first."""
        self.asked += 1
        self.promises[self.asked] = key
        self.setting.audit.fulfilled.setdefault(key, set()).add(payload)
        failed = None if payload else Failed(0, 0, 1, "exception", text="it is refused")
        self.tell(Requested(m.Fulfil(self.asked, key, payload, keep, failed)))

    def command(self, verb: str, target: str) -> None:
        """Gives an operator's command."""
        self.asked += 1
        self.tell(Requested(m.Command(self.asked, verb, target)))

    # --- actions ------------------------------------------------------------------------------------------

    def perform(self, actions: list[object]) -> None:
        """Does what the machine wants done, in order."""
        for action in actions:
            match action:
                case act.Send(message=message):
                    self._send(message)
                case act.Resolve(done=done, failed=failed):
                    self._resolve(done, failed)
                case act.Accept(seqs=seqs):
                    self.accepted.update(dict.fromkeys(seqs, self.machine.epoch))
                    plans = self.setting.workload.plans
                    self.setting.audit.durability.heard(plans[self.client, seq] for seq in seqs)
                case act.Reconnect():
                    self._redial()
                case act.Tell(message=message):
                    self._told(message)
                case act.Renew(sink=sink, generation=generation, until=until):
                    if (intake := self.intakes.get(sink)) is not None:
                        intake.renew(generation, until)
                case _:
                    raise TypeError(f"not an action of a client: {action!r}")

    def _told(self, message: object) -> None:
        """The application hears something that is no outcome of its own tasks."""
        match message:
            case m.Answer():
                self.answers[message.number] = message
                if message.value is True and message.number in self.promises:
                    key = self.promises.pop(message.number)
                    self.setting.audit.first(key, self.machine.epoch, self.client)
            case m.SinkDeliver():
                if (intake := self.intakes.get(message.sink)) is not None:
                    intake.put(message)
            case m.SinkReportAck():
                self.intakes.pop(message.sink, None)
            case _:
                self.setting.audit.told(self.client, message)

    def _news_of(self, run: DoneRun) -> DoneRun:
        """Of a run of successes, those that are waited for."""
        pairs = zip(run.seqs, run.payloads, strict=True)
        new = [(seq, payload) for seq, payload in pairs if self._is_news(seq)]
        return replace(run, seqs=[seq for seq, _ in new], payloads=[payload for _, payload in new])

    def _is_news(self, seq: int) -> bool:
        """Return True if a pending table takes the outcome of a task: it skips what it knows."""
        return seq in self.table.plans or not (self._may_repeat or seq in self.table.reruns)

    def _send(self, message: m.ClientMessage) -> None:
        if isinstance(message, m.ClientHello):
            if self._unanswered >= HELLOS:
                self._redial()
            self._unanswered += 1
        if isinstance(message, m.Submit):
            if message.epoch != self._submits_to:  # it is told once more what no hub has acknowledged
                self._submits_to = message.epoch
                self._cancels.clear()
            if message.cancels:
                self._cancels[message.number] = message.cancels
        self.setting.network.send(self.up_link, message)

    def _resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        audit, plans, now = self.setting.audit, self.setting.workload.plans, self.setting.timetable.now
        for run in map(self._news_of, done):  # one by one: a task that has run again may be among them twice
            audit.resolved(self.client, [run], [], now)
            for seq, payload in zip(run.seqs, run.payloads, strict=True):
                self.table.ended(plans[self.client, seq], payload, None, run.attempt - run.returns)
            audit.durability.ended.update((self.client, seq) for seq in run.seqs)
        for failure in [failure for failure in failed if self._is_news(failure.seq)]:
            audit.resolved(self.client, [], [failure], now)
            audit.durability.ended.add((self.client, failure.seq))
            self.table.ended(plans[self.client, failure.seq], b"", failure)
