"""The audit of a world: it sees how often each task runs and who is told what, which no machine does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from taskmesh.core.credit import LONG, MOST_AHEAD, ONE_AHEAD
from taskmesh.core.ids import SEQ_BITS
from taskmesh.hub.machine.books.backlog import Route
from taskmesh.hub.machine.books.failures import POOLS_DIED
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.books.sinks import Sinks
from taskmesh.hub.machine.books.states import State
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.messages.mesh_messages import Notice, Tasks
from taskmesh.messages.runs import (
    CHUNK,
    DONE,
    FAILURE,
    SUCCESS,
    UNKNOWN,
    DoneRun,
    Failed,
    LaneRun,
    Run,
    Value,
)
from tests.simulation.attempts import Attempts
from tests.simulation.configs import QUEUES
from tests.simulation.consumption import Consumption
from tests.simulation.durability import Durability
from tests.simulation.workload import Act, Plan, Workload


class Violation(AssertionError):
    """A promise was broken."""


class Audit:
    """Everything that is promised, checked as it happens.

    Attributes:
        faults: how often each fault met each role. crash_limit: the hub's.
        cancelled, unwanted: what clients gave up, and what they gave up unless it had started.
        limits: bytes of a call or result that the world's hubs have taken, 0 for any number; the newest last.
        draining: sessions of an epoch whose pools have said so.
        commanded: pools' processes to which a hub had something to say, by name and instance.
        failed: tasks of which any hub has sent a bad end, put one into a sink, or written one down; or had
            one when it wrote down that of a dependent.
        fulfilled: the values that clients have given promises, by key; an empty one is an error.
        clock_moved: somebody has set the clock that the times in a hub's journal are by.
        orphaned: bound to clients that were gone for long when pools last held it.
        again: tasks that run again, since others need the result that their clients ignore.
    """

    def __init__(self, workload: Workload) -> None:
        self.faults: Counter[tuple[str, str]] = Counter()
        self.crash_limit = 3
        self.limits: list[int] = []
        self.draining: set[tuple[int, int]] = set()
        self.outcomes: dict[tuple[int, int], str] = {}
        self.cancelled: set[tuple[int, int]] = set()
        self.failed: set[tuple[int, int]] = set()
        self.cancel_known: set[tuple[int, int]] = set()
        self.unwanted: set[tuple[int, int]] = set()
        self.orphaned: set[tuple[int, int]] = set()
        self.again: set[tuple[int, int]] = set()
        self.commanded: set[tuple[str, int]] = set()
        self.attempts = Attempts()
        self.durability = Durability()
        self.consumption = Consumption()
        self.clock_moved = False
        self.fulfilled: dict[str, set[bytes]] = {}
        self._first: dict[tuple[int, str], int] = {}
        self._blocked: list[Plan] = []
        self._ticks: dict[tuple[int, str], tuple[int, int]] = {}
        self._newest: dict[tuple[int, int, int, str], int] = {}
        self._starts: dict[str, dict[tuple[int, int], float]] = {}
        self._kept_until: dict[tuple[str, str], float] = {}
        self._workload = workload
        self._pushes: Counter[tuple[int, int, int]] = Counter()
        self._runs: Counter[tuple[int, int, int]] = Counter()
        self._died: Counter[tuple[int, int, int]] = Counter()
        self._attempts: dict[tuple[int, int, int], int] = {}
        self._deliveries: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        self._reopened: Counter[tuple[int, int, int]] = Counter()

    def fired(self, life: int, name: str, task: tuple[int, int]) -> None:
        """No tick has its name twice, whoever restarts; a clock that was set back restarts names too."""
        first = self._ticks.setdefault((life, name), task)
        self.require(first == task, "a tick twice", name, first, task)

    # --- hub ----------------------------------------------------------------------------------------------

    def pushed(self, hub: HubMachine, lane: Lane, messages: Sequence[Tasks]) -> None:
        """Check the tasks that one event pushes on a lane: each is to run, in a new attempt, and they fit."""
        epoch = hub.config.epoch
        tasks, total = (
            dict(tasks_by_id(hub.state.ledger)),
            sum(len(run.seqs) for message in messages for run in message.runs),
        )
        before = lane.outstanding - total
        leaves = (epoch, lane.session) in self.draining
        self.require(not leaves, "work for a pool that leaves", lane.pool)
        for message in messages:
            for run in message.runs:
                self.durability.pushed(run)
                self.attempts.pushed(run, epoch, f"{lane.pool}:{lane.hello.instance}")
                self._check_credit(hub, lane, run.spec, before, len(run.seqs))
                before += len(run.seqs)
                for seq in run.seqs:
                    record = tasks.get(run.client << SEQ_BITS | seq)
                    live = record is not None and record.state is State.SENT and record.attempt == run.attempt
                    self.require(live, "pushed a task that is not to be run", (run.client, seq))
                    known = (run.client, seq) in self.cancel_known
                    self.require(not known, "pushed after its cancellation", (run.client, seq))
                    key = (epoch, run.client, seq)
                    rises = run.attempt > self._attempts.get(key, 0)
                    self.require(rises, "attempts must rise", key, run.attempt)
                    self._attempts[key] = run.attempt
                    self._pushes[run.client, seq, run.attempt] += 1
        if total:
            self._check_load(hub, lane, messages[-1].runs[-1].spec)

    def _check_credit(self, hub: HubMachine, lane: Lane, spec: int, before: int, count: int) -> None:
        """A task of a second and more, or whose time is unknown, goes to a free slot only."""
        if before + count <= lane.slots:
            return
        service = hub.state.specs[spec].service
        short = service is not None and service < LONG
        self.require(short, "prefetched a long task", lane.pool, before, count, service)

    def _check_load(self, hub: HubMachine, lane: Lane, last: int) -> None:
        """Short tasks are prefetched within the window."""
        self.require(
            lane.outstanding <= lane.slots * MOST_AHEAD, "more outstanding than the window", lane.pool
        )
        if lane.outstanding <= lane.slots:
            return
        horizon = lane.credit.horizon

        def cost(spec: int) -> float:
            service = hub.state.specs[spec].service
            if service is None or service >= LONG:
                return horizon
            return min(ONE_AHEAD * horizon, max(service, 1e-7))

        load = sum(count * cost(spec) for spec, count in lane.counts.items()) - cost(last)
        self.require(load < lane.slots * horizon + 1e-6, "more outstanding than the horizon", lane.pool, load)

    def let_go(self, hub: HubMachine, runs: Sequence[LaneRun], now: float) -> None:
        """Of what one event had pushed, no limit lets more run at a time, or start in a window.

        A hub that is new counts as having used up all windows, so that it and those before it are one.
        """
        used = {rule for run in runs for rule in hub.state.specs[run.spec].spec.limits}
        if not used:
            return
        held: Counter[tuple[str, str]] = Counter()
        for record in dict.fromkeys(record for _, record in tasks_by_id(hub.state.ledger)):
            if State.SENT <= record.state <= State.RUNNING:
                held.update((rule.name, rule.keyed * record.part) for rule in record.spec.spec.limits)
        for run in runs:
            for rule in hub.state.specs[run.spec].spec.limits:
                key = rule.name, rule.keyed * run.part
                if not rule.window:
                    self.require(
                        held[key] <= rule.count, "a limit lets too many run at a time", key, held[key]
                    )
                    continue
                starts = self._starts.setdefault(rule.name, {})
                for seq in run.seqs:
                    starts[run.client << SEQ_BITS | seq, run.attempt] = now
                recent = [when for when in starts.values() if when > now - rule.window + 1e-6]
                self.require(
                    len(recent) <= rule.count, "a limit lets too many start in a window", key, recent
                )

    def handed_back(self, task: int, attempt: int) -> None:
        """A hub has taken back what had not started: it was no start."""
        for starts in self._starts.values():
            starts.pop((task, attempt), None)

    def ordered(self, hub: HubMachine, runs: Sequence[LaneRun]) -> None:
        """Nothing that an event had pushed goes before what is more urgent, nor before its elders."""
        urgent: dict[Route, int] = {}
        for record in hub.state.ledger.backlog.entries():
            if record.state is State.QUEUED and record.client not in hub.state.ledger.backlog.withheld:
                urgent[record.spec.route] = max(record.spec.spec.priority, urgent.get(record.spec.route, 0))
        for run in runs:
            entry = hub.state.specs[run.spec]
            waits = urgent.get(entry.route, 0)
            self.require(waits <= entry.spec.priority, "a task goes before what is more urgent", entry.spec)
            for seq in run.seqs if run.attempt == 1 else ():
                plan = self._workload.plans[run.client, seq]
                line = (run.client, plan.group, run.spec, run.part)
                if plan.key or plan.start_at or plan.upstream:
                    continue  # in a run of its own
                in_order = seq > self._newest.get(line, 0)
                self.require(in_order, "not first in, first out", line, seq)
                self._newest[line] = seq

    def received(self, runs: Sequence[Run] | Sequence[DoneRun]) -> None:
        """Nothing comes that is larger than this hub takes: it would cut the link for all others."""
        limit = self.limits[-1]
        for run in runs if limit else ():
            largest = max(map(len, run.payloads), default=0)
            self.require(largest <= limit, "larger than the hub takes", largest, limit)

    def taken_in(self, hub: HubMachine, client: int, runs: Sequence[Run], now: float) -> None:
        """Notes when tasks are in a hub for the first time: until then a full link or hub holds them back."""
        for run in runs if client else ():
            for seq in run.seqs:
                plan = self._workload.plans[client, seq]
                if hub.state.ledger.by_id(client << SEQ_BITS | seq) is not None:
                    plan.arrived = plan.arrived or now
                    self.faults["waits for room", "value"] += plan.is_value

    def kept(self, key: tuple[str, str], until: float) -> None:
        """A hub answers those who submit under a key, until a moment of the world's time."""
        self._kept_until[key] = max(until, self._kept_until.get(key, 0.0))

    def delivered(self, epoch: int, number: int, done: Sequence[DoneRun], failed: Sequence[Failed]) -> None:
        """The hub states one outcome of a task, under one number."""
        for run in done:
            for seq in run.seqs:
                self._stated(epoch, run.client, seq, number)
        for failure in failed:
            self._stated(epoch, failure.client, failure.seq, number)

    def welcomed(self, epoch: int, client: int) -> None:
        """A hub knows nothing of a client (any more): what had ended there may run again."""
        self.attempts.forgotten(epoch, client)
        self.consumption.forgotten(epoch, client)
        for known in (self._deliveries, self._attempts, self._reopened):
            for key in [key for key in known if key[:2] == (epoch, client)]:
                del known[key]

    def reopened(self, epoch: int, client: int, runs: Sequence[Run], submit: int) -> None:
        """A hub takes in tasks that have ended, since others need their results: each has one more outcome.

        Args:
            epoch: the hub's.
            client: whose tasks they are.
            runs: the tasks.
            submit: the number of the Submit that brings them.
        """
        for run in runs:
            for seq in run.seqs:
                key = epoch, client, seq
                self.again.add((client, seq))
                self._attempts.pop(key, None)
                self._reopened[key] += 1
                self.attempts.reopened(epoch, (client, seq), run.rerun)
        tasks = {(client, seq) for run in runs for seq in run.seqs}
        self.durability.reopened(tasks, submit)
        self.faults["runs again for its result", "task"] += len(tasks)

    def _stated(self, epoch: int, client: int, seq: int, number: int) -> None:
        key = epoch, client, seq
        known = self._deliveries[key]
        known.add(number)
        once = len(known) <= 1 + self._reopened[key]
        self.require(once, "two outcomes of one task", (client, seq), known, number)

    # --- pools and slots ----------------------------------------------------------------------------------

    def started(self, plan: Plan, attempt: int, returns: int, pool: str, now: float) -> None:
        """Only what was pushed runs, each attempt once, at-most-once tasks once; in time."""
        plan.runs += 1
        self.attempts.began(plan, attempt, returns, pool)
        key = (plan.client, plan.seq, attempt)
        self._runs[key] += 1
        self.require(self._runs[key] <= self._pushes[key], "an attempt ran more often than it was sent", key)
        gone = (plan.client, plan.seq) in self.orphaned
        self.require(not gone, "ran, though bound to a client that is gone", key)
        in_time = now >= plan.start_at or self.clock_moved
        self.require(in_time, "started before its time", key, plan.start_at)
        once = plan.kind.spec.acks == "early"
        self.require(plan.runs == 1 or not once, "an at-most-once task ran again", key)

    def handed(self, plan: Plan, handed: dict[int, Value]) -> None:
        """A task that depends on others starts when these have ended as it asks, with their outcomes."""
        for seq in plan.upstream:
            akin = self._akin(self._workload.plans[plan.client, seq])
            value = handed.get(seq)
            if seq in plan.needs and value is None:
                early = plan.when == FAILURE
                self.require(early, "a dependent was handed no outcome", plan, seq)
            elif value is not None and value.failed is None:
                promise = self._workload.plans[plan.client, seq]
                results = (
                    self.fulfilled[promise.key] if promise.is_promise else {other.result for other in akin}
                )
                self.require(
                    value.payload in results, "a dependent was handed another task's outcome", plan, seq
                )
            if plan.when == SUCCESS:
                good = value is None or value.failed is None
                self.require(good, "a dependent started after a failure", plan, seq, value)
                begun = any(one.successes or one.key in self.fulfilled for one in akin)
                self.require(begun, "a dependent started before what it depends on had ended", plan, seq)
        if plan.when == FAILURE:
            upstream = [self._workload.plans[plan.client, seq] for seq in plan.upstream]
            self.require(any(map(self._may_fail, upstream)), "started after a failure, and none failed", plan)

    def first(self, key: str, epoch: int, client: int) -> None:
        """A hub tells one client, at most, that it was the first to fulfil a promise."""
        known = self._first.setdefault((epoch, key), client)
        self.require(known == client, "two were the first to fulfil a promise", key, epoch)

    def _may_fail(self, plan: Plan) -> bool:
        key, spec = (plan.client, plan.seq), plan.kind.spec
        limited = spec.expires or spec.acks == "early" or spec.on_client_loss == "cancel" or plan.key
        large = any(plan.too_large(limit) for limit in self.limits)
        given_up = key in self.cancelled or key in self.unwanted
        hard = plan.act is not Act.OK or spec.hard_timeout or plan.upstream
        return bool(limited or large or given_up or hard or not self.attempts.calm)

    def _akin(self, plan: Plan) -> list[Plan]:
        """Returns the tasks of which one's outcome may be another's."""
        if plan.is_attachment:
            return [self._workload.attached_to(plan)]
        return self._same_key(plan) if plan.key else [plan]

    def died(self, plan: Plan, attempt: int, *, spared: bool) -> None:
        """A slot died while it ran this; `spared`: others of its process ran something, too."""
        plan.deaths += 1
        plan.spared += spared
        self._died[plan.client, plan.seq, attempt] += 1

    def obeyed(self, pool: str, instance: int, state: str) -> None:
        """Check that a pool drains or pauses because it was told to, not another process of its name."""
        self.require((pool, instance) in self.commanded, "obeys what another was told", pool, state)

    def blamed(self, failures: Sequence[Failed]) -> None:
        """Only what ran when its slot died is blamed for it."""
        for failure in failures:
            if failure.kind in ("crash", "oom", "hard_timeout"):
                key = (failure.client, failure.seq, failure.attempt)
                self.require(self._died[key] > 0, f"blamed for a {failure.kind} that it had no part in", key)

    # --- clients ------------------------------------------------------------------------------------------

    def resolved(self, client: int, done: Sequence[DoneRun], failed: Sequence[Failed], now: float) -> None:
        """One outcome for each task, and one that it can have."""
        for run in done:
            for seq, payload in zip(run.seqs, run.payloads, strict=True):
                if plan := self._outcome(client, seq, "done"):
                    self._check_result(plan, payload)
                    if not (plan.is_promise or plan.is_attachment or plan.is_value):
                        self.attempts.succeeded(run, plan)
        for failure in failed:
            if plan := self._outcome(client, failure.seq, failure.kind):
                self._check_failure(plan, failure, now)
                if not (plan.is_promise or plan.is_attachment or plan.is_value):
                    self.attempts.failed(failure, plan)

    def _outcome(self, client: int, seq: int, kind: str) -> Plan | None:
        key = (client, seq)
        plan = self._workload.plans.get(key)
        if plan is None:
            raise Violation(f"an outcome of a task that was never submitted: {key}")
        if key in self.cancelled:
            return None  # its client has given it up, and drops what it hears of it
        self.require(key not in self.outcomes, "a second outcome", key, self.outcomes.get(key), kind)
        self.outcomes[key] = kind
        if plan.kind.spec.sink:
            self.consumption.ended(plan, kind)
        return plan

    def _check_result(self, plan: Plan, payload: bytes) -> None:
        if plan.is_promise:
            given = self.fulfilled.get(plan.key, set())
            self.require(payload in given, "nobody has given this promise its value", plan, payload)
            return
        if plan.is_attachment:
            other = self._workload.attached_to(plan)
            self.require(payload == other.result, "an attachment has another task's result", plan, payload)
            return
        if plan.key:
            accepted = {other.result for other in self._same_key(plan)}
            self.require(payload in accepted, "not the result of any task of this key", plan.key)
            at = (plan.kind.spec.name, plan.key)
            old = plan.kind.spec.keep and plan.submitted >= self._kept_until.get(at, 0.0)
            self.require(not old, "an outcome that should be forgotten", plan)
            return
        fits = any(not plan.too_large(limit) for limit in self.limits)
        self.require(fits, "succeeded, and no hub takes as much", (plan.client, plan.seq))
        result = plan.result if plan.keeps_result else b""
        self.require(payload == result, "another task's result", (plan.client, plan.seq), payload)
        hopeless = plan.act in (Act.POISON, Act.HOG, Act.BAD, Act.FAILS, Act.HANGS, Act.PLAGUE)
        self.require(not hopeless, "succeeded though it cannot", (plan.client, plan.seq), plan.act)

    def _same_key(self, plan: Plan) -> list[Plan]:
        return [
            other
            for other in self._workload.plans.values()
            if other.key == plan.key and other.kind is plan.kind
        ]

    def _check_failure(self, plan: Plan, failure: Failed, now: float) -> None:
        spec, kind = plan.kind.spec, failure.kind
        if plan.is_promise:
            given = self.fulfilled.get(plan.key, set())
            self.require(
                kind == "exception" and b"" in given, "nobody has refused this promise", plan, failure
            )
            return
        if plan.is_attachment:
            other = self._workload.attached_to(plan)
            ended = other.successes or not {(other.client, other.seq)}.isdisjoint(self.outcomes)
            self.require(
                kind == UNKNOWN and bool(ended), "an attachment ended, and its task goes on", plan, failure
            )
            return
        akin = self._same_key(plan) if plan.key else [plan]
        deaths = sum(other.deaths for other in akin)  # after a restart another of them may be run
        large = any(other.too_large(limit) for other in akin for limit in self.limits)
        raises = any(other.act in (Act.FAILS, Act.FLAKY) for other in akin)
        if large and kind == "result":
            self.faults["too large", "result" if failure.attempt else "call"] += 1
        may = {
            "exception": raises,
            "timeout": raises,
            "argument": plan.act is Act.BAD,
            "function": plan.act is Act.BAD,
            "result": plan.act is Act.BAD or large,
            "hard_timeout": spec.hard_timeout > 0,
            "expired": 0 < spec.expires <= now - plan.submitted or (spec.expires > 0 and self.clock_moved),
            "lost": spec.acks == "early",
            "cancelled": spec.on_client_loss == "cancel"
            or (plan.client, plan.seq) in self.unwanted
            or self._may_be_skipped(akin),
            "dependency": self._may_be_blocked(akin) or "client.max_bytes" in failure.text,
            "crash": deaths >= (1 if spec.kind == CHUNK else self.crash_limit) or self._pools_died(failure),
            "oom": deaths >= (1 if spec.kind == CHUNK else self.crash_limit),
        }
        self.require(may.get(kind, False), f"a task cannot end so: {kind}", plan, deaths, failure.history)
        if kind == "dependency" and not (plan.key or "client.max_bytes" in failure.text):
            self._blocked.append(plan)  # of a key's, another client knows

    def _may_be_skipped(self, akin: Sequence[Plan]) -> bool:
        """A task that was to run after a failure, or that depends on such a task."""
        left, seen = [one for one in akin if one.upstream], set(akin)
        while left:
            plan = left.pop()
            if plan.when == FAILURE:
                return True
            upstream = [self._workload.plans[plan.client, seq] for seq in plan.upstream]
            more = {other for one in upstream for other in self._akin(one)} - seen
            seen |= more
            left += [other for other in more if other.when != DONE]
        return False

    def _may_be_blocked(self, akin: Sequence[Plan]) -> bool:
        """A task that depends on others: one of them ended badly, which its client may hear later."""
        return any(one.upstream and one.when == SUCCESS for one in akin)

    def check_blocked(self) -> None:
        """Of every task that never started, one that it depends on ended badly.

        What was in a sink of a hub that died runs again, and may end in another way; so does a task whose end
        its client had not heard, while that of a dependent was kept for others and is written.
        """
        for plan in self._blocked:
            keys = [(plan.client, seq) for seq in plan.upstream]
            ends = ["cancelled" if key in self.cancelled else self.outcomes.get(key) for key in keys]
            failed = any(end != "done" for end in ends)
            several = bool(self.durability.accepted) or any(
                self._workload.plans[key].kind.spec.sink for key in keys
            )
            several = several or not self.again.isdisjoint(keys)  # the further run may end in another way
            elsewhere = several and not self.failed.isdisjoint(keys)
            elsewhere = elsewhere or not self.attempts.over.isdisjoint(keys) or self._is_too_large_again(keys)
            self.require(failed or elsewhere, "blocked, and none failed", plan, ends)

    def _is_too_large_again(self, keys: Sequence[tuple[int, int]]) -> bool:
        """Return True if one of these has to run again, and a later hub takes no call of its size."""
        plans = [self._workload.plans[key] for key in keys]
        calls = [len(plan.payload) for plan in plans if plan.kind.spec.ignore_result]
        return any(0 < limit < size for limit in self.limits for size in calls)

    def told(self, client: int, news: object) -> None:
        """A client is told what runs, or has run; under a key it may be another's task."""
        plans = self._workload.plans
        for progress in news.progress if isinstance(news, Notice) else ():
            key = client, progress.seq
            if not plans[key].key:
                self.attempts.running(progress)

    def _pools_died(self, failure: Failed) -> bool:
        """Whether a task was given up because of its pools, and so many were lost."""
        count, _, why = failure.text.partition(" ")
        lost = sum(times for (_, role), times in self.faults.items() if role == "pool")
        return why == POOLS_DIED and int(count) <= lost

    def settled(self, plans: Sequence[Plan], sinks: Sinks) -> None:
        """In a calm world each task that is given up unless it has started soon starts or ends.

        Its outcome may wait in a sink: its client hears of that when a consumer has acknowledged it.
        """
        for plan in plans:
            key = (plan.client, plan.seq)
            told = key in self.cancelled or key in self.outcomes or plan.key
            ended = told or sinks.unacknowledged(plan.client, {plan.seq})
            self.require(plan.runs > 0 or bool(ended), "given up, and neither started nor cancelled", plan)

    # --- at the end ---------------------------------------------------------------------------------------

    def check_once(self, plans: Sequence[Plan]) -> None:
        """In a calm world every task runs exactly as often as planned, and none is lost."""
        more = self.attempts.over | self.again
        for plan in [plan for plan in plans if (plan.client, plan.seq) not in more]:
            key = (plan.client, plan.seq)
            if key in self.unwanted and self.outcomes.get(key) == "cancelled" and not plan.key:
                unstarted = plan.runs == 0 or plan.is_refused
                self.require(unstarted, "cancelled unless started, and had started", plan)
            lost = self.outcomes.get(key) == "lost" and not plan.deaths
            self.require(not lost, "lost, though nothing went wrong", plan)
            if (
                key not in self.cancelled
                and self.outcomes.get(key) not in ("expired", "cancelled", "dependency")
                and not plan.key
            ):
                expected = plan.expected_runs(self.limits[-1])
                refused = plan.is_refused and expected <= plan.runs <= len(
                    QUEUES
                )  # by one pool after another
                self.require(
                    expected <= plan.runs <= expected + plan.spared or refused,
                    "ran too often or too seldom",
                    plan,
                    expected,
                )
                self.attempts.check_sure(plan)

    def require(self, holds: bool, promise: str, *facts: object) -> None:
        """Raises Violation with the facts unless it holds."""
        if not holds:
            raise Violation(f"{promise}: {', '.join(map(repr, facts))}")
