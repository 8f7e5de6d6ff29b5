"""The guards that the promises rest on, each with a way to take it out."""

from collections.abc import Callable
from unittest.mock import ANY

import pytest

from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.submission import Ages, SubmitWindow
from taskmesh.core.actions import PushTasks, Resolve
from taskmesh.core.credit import LANE_HORIZON, Credit
from taskmesh.core.ids import SEQ_BITS
from taskmesh.hub.machine import (
    adoption,
    attachments,
    clients,
    collector,
    owners,
    pools,
    promises,
    state,
    submission,
)
from taskmesh.hub.machine.books import backlog, ledger, result_cache
from taskmesh.hub.machine.books.backlog import Backlog, Route, RouteQueue
from taskmesh.hub.machine.books.dependencies import Dependencies
from taskmesh.hub.machine.books.lanes import LANE_TRANSITIONS, Lane, LaneCause, LaneState
from taskmesh.hub.machine.books.ledger import Ledger, Timers
from taskmesh.hub.machine.books.limits import LimitCounter, Limits
from taskmesh.hub.machine.books.result_cache import CachedOutcome, ResultCache
from taskmesh.hub.machine.books.states import Cause, Links, TaskRecord
from taskmesh.hub.machine.state import HubState, KnownPools
from taskmesh.hub.machine.unclaimed import Unclaimed
from taskmesh.hub.machine.ventilator import Ventilator
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import SUCCESS, DoneRun, Failed, Held, Value
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.membership import Membership
from taskmesh.pool.machine.slots import Slot
from tests.simulation import pool_host
from tests.simulation.client_host import Table

Patch = pytest.MonkeyPatch


def result_dedup(patch: Patch) -> None:
    """A success of a task that has its outcome already is given to the client all the same."""
    odd = collector._on_uncommon

    def give_it_again(hub: HubState, run: DoneRun, index: int, session: int) -> None:
        if hub.ledger.by_id(run.client << SEQ_BITS | run.seqs[index]) is not None:
            odd(hub, run, index, session)
        else:
            collector.give(hub, collector._part(run, [index]))

    patch.setattr(collector, "_on_uncommon", give_it_again)


def delivery_dedup(patch: Patch) -> None:
    """A delivery that comes twice is handed to the application twice."""

    def take_it_again(self: ClientMachine, deliver: m.Deliver, now: float, out: list[object]) -> None:
        if self.open and deliver.epoch == self.epoch:
            out.append(Resolve(deliver.done, deliver.failed))
            self._deliveries.take(deliver.number)
            self._deliveries.owe(0, now, at_once=False)

    patch.setattr(ClientMachine, "_on_deliver", take_it_again)


def attempt_fencing(patch: Patch) -> None:
    """Failures and hand-backs count whatever attempt and session they come from."""
    patch.setattr(collector, "is_current", lambda record, task, session, attempt: True)


def sequence_check(patch: Patch) -> None:
    """Neither pool nor hub notices that a lane message was lost."""
    beat = pools.on_beat

    def admit(self: Membership, tasks: m.Tasks, now: float) -> bool:
        self.received = max(self.received, tasks.lane_seq)
        return self.is_mine(tasks.epoch, tasks.session)

    def believe(hub: HubState, message: m.Beat, now: float) -> m.Notice | None:
        lane = pools.current(hub, message.epoch, message.session)
        if lane is not None:
            lane.received_moved = now
        return beat(hub, message, now)

    patch.setattr(Membership, "admits", admit)
    patch.setattr(pools, "on_beat", believe)


def lost_message_check(patch: Patch) -> None:
    """The pool sees a gap, but when the last message is lost nobody compares the counts."""
    beat = pools.on_beat

    def believe(hub: HubState, message: m.Beat, now: float) -> m.Notice | None:
        lane = pools.current(hub, message.epoch, message.session)
        if lane is not None:
            lane.received_moved = now
        return beat(hub, message, now)

    patch.setattr(pools, "on_beat", believe)


def inventory(patch: Patch) -> None:
    """What a pool says that it still holds is not looked at."""
    adopt = adoption.take_inventory

    def adopt_nothing(hub: HubState, lane: Lane, hello: m.Hello, *others: object) -> None:
        hello.inventory = []
        adopt(hub, lane, hello, *others)

    patch.setattr(adoption, "take_inventory", adopt_nothing)


def adoption_check(patch: Patch) -> None:
    """A pool's inventory is believed even when another pool has the task by now."""
    patch.setattr(adoption, "may_adopt", lambda record, task, attempt, former=0: True)


def waiters_id(patch: Patch) -> None:
    """A pool that has a task under a waiter's id is believed to have it under the record's own."""
    adopt = adoption.adopt

    def forget(hub: HubState, record: TaskRecord, task: int, lane: Lane, held: Held) -> None:
        adopt(hub, record, record.id, lane, held)

    patch.setattr(adoption, "adopt", forget)


def crash_blame(patch: Patch) -> None:
    """Everything that a dead slot had started is blamed, not only what it ran."""
    blame = PoolMachine._blame

    def blame_all(self: PoolMachine, slot: object, piece: object, exited: object, *, running: bool) -> None:
        blame(self, slot, piece, exited, running=True)

    patch.setattr(PoolMachine, "_blame", blame_all)


def credit(patch: Patch) -> None:
    """Lanes take what is there, however long it takes."""
    cost = Credit.cost

    def nothing(self: Credit, service: float | None, result_size: float = 0.0) -> float:
        return 1e-7 if self.least == LANE_HORIZON else cost(self, service, result_size)

    patch.setattr(Credit, "cost", nothing)


def ticket_generation(patch: Patch) -> None:
    """Tasks handed over after a recall carry the same tickets as those taken back."""

    def recall(self: Slot, *, silent: bool = True) -> int:
        self.recalling = self.quiet = True
        self.refilled = False
        return self.generation

    patch.setattr(Slot, "recall", recall)


def at_most_once(patch: Patch) -> None:
    """At-most-once tasks of a pool that is gone are sent again like others."""
    patch.setattr(
        collector, "lost", lambda hub, record, failure=None: collector.requeue(hub, record, Cause.REQUEUE)
    )


def retry_timer(patch: Patch) -> None:
    """What waits for a retry is forgotten."""
    patch.setattr(Ledger, "wait", lambda self, record, until: setattr(record, "session", 0))


def lease(patch: Patch) -> None:
    """What a silent pool holds stays with it until its links are told to be lost, or it comes back."""
    patch.setattr(pools, "check_leases", lambda hub, now: None)


def left_behind(patch: Patch) -> None:
    """All tasks of a client that says goodbye are cancelled, also when it wants them to be run."""
    bye = clients.on_bye
    patch.setattr(clients, "on_bye", lambda hub, session, *, cancel: bye(hub, session, cancel=True))


def expiry_time(patch: Patch) -> None:
    """Tasks that may expire do so at once if they cannot start at once."""
    at = Timers.at

    def at_once(self: Timers, when: float, record: TaskRecord, cause: Cause) -> None:
        at(self, when - 0.5 if cause is Cause.EXPIRE else when, record, cause)

    patch.setattr(Timers, "at", at_once)


def bound_inventory(patch: Patch) -> None:
    """After a restart nobody looks whose tasks are bound to clients that do not come back."""
    patch.setattr(clients, "drop_bound", lambda hub, now: None)


def bound_repeated(patch: Patch) -> None:
    """The word to drop them is said once, and may be lost."""
    patch.setattr(Unclaimed, "is_dropped", lambda self, client, seq: False)


def call_limit(patch: Patch) -> None:
    """A client sends what its hub does not take."""
    patch.setattr(SubmitWindow, "fitting", lambda self, runs: (runs, []))


def numbers(patch: Patch) -> None:
    """A hub is not told of calls that are too large for it."""
    patch.setattr(SubmitWindow, "fit", lambda self: [])
    give_up = SubmitWindow.give_up

    def say_nothing(
        self: SubmitWindow, seqs: list[int], unstarted: list[int], now: float, *, whole: bool = False
    ) -> None:
        if unstarted or whole or not self.max_payload:
            give_up(self, seqs, unstarted, now, whole=whole)

    patch.setattr(SubmitWindow, "give_up", say_nothing)


def result_limit(patch: Patch) -> None:
    """A pool does."""
    patch.setattr(pool_host, "limit_results", lambda results, limit: None)


def kept_time(patch: Patch) -> None:
    """Outcomes under a key are kept for longer than their tasks have asked for."""

    def find(self: ResultCache, key: tuple[str, str], now: float) -> CachedOutcome | None:
        cached = self._by_key.get(key)
        return cached if cached is not None and cached.until + 3.0 > now else None

    patch.setattr(ResultCache, "find", find)
    patch.setattr(ResultCache, "sweep", lambda self, now: None)


def draining_lanes(patch: Patch) -> None:
    """A hub gives work to pools that have said that they leave."""
    patch.setitem(pools.STATED, "draining", LaneCause.WORK)
    patch.setitem(LANE_TRANSITIONS, (LaneState.DRAINING, LaneCause.WORK), LaneState.READY)


def insisting(patch: Patch) -> None:
    """A command to leave is said once, and may be lost."""
    patch.setattr(pools, "_insisted", lambda hub, lane, state: state)
    patch.setitem(LANE_TRANSITIONS, (LaneState.DRAINING, LaneCause.WORK), LaneState.READY)
    patch.setitem(LANE_TRANSITIONS, (LaneState.DRAINING, LaneCause.PAUSE), LaneState.PAUSED)


def wishes(patch: Patch) -> None:
    """What an operator wants of a pool is forgotten with its session."""
    patch.setattr(KnownPools, "keep_wish", lambda self, lane: None)


def drain_grace(patch: Patch) -> None:
    """A pool that is told to leave kills what it runs."""
    drain = PoolMachine._drain
    patch.setattr(PoolMachine, "_drain", lambda self, now, grace: drain(self, now, 0.0))


def left_in_order(patch: Patch) -> None:
    """What was on its way to a pool that has left is taken for started."""
    bye = pools.on_bye
    patch.setattr(pools, "on_bye", lambda hub, session, sent: bye(hub, session, sent + 1))


def named_process(patch: Patch) -> None:
    """A pool obeys whatever is said to its name."""
    from_hub = PoolMachine._on_hub_message

    def obey(self: PoolMachine, message: m.ToPool, now: float) -> None:
        if isinstance(message, m.PoolCommand):
            message = m.PoolCommand(message.verb)
        from_hub(self, message, now)

    patch.setattr(PoolMachine, "_on_hub_message", obey)


def handed_back(patch: Patch) -> None:
    """What was handed back unstarted counts as an attempt."""
    not_started = collector.not_started

    def count(hub: HubState, record: TaskRecord) -> None:
        record.returns -= 1
        not_started(hub, record)

    patch.setattr(collector, "not_started", count)


def handed_back_before(patch: Patch) -> None:
    """It does after a restart of the hub."""
    adopt = adoption.adopt

    def count(hub: HubState, record: TaskRecord, task: int, lane: Lane, held: Held) -> None:
        returns = record.returns
        adopt(hub, record, task, lane, held)
        record.returns = returns

    patch.setattr(adoption, "adopt", count)


def time_to_start(patch: Patch) -> None:
    """The time that a task may take to start begins anew with each hub."""
    patch.setattr(Ages, "accepted", lambda self, runs, now: None)


def failures_reported(patch: Patch) -> None:
    """Failures that a pool reports before the client is back are dropped."""
    claim = Unclaimed.claim

    def successes(self: Unclaimed, task: int) -> list[object]:
        return [report for report in claim(self, task) if isinstance(report, DoneRun)]

    patch.setattr(Unclaimed, "claim", successes)


def priority(patch: Patch) -> None:
    """What is urgent stands in line with everything else."""
    route_queue = Backlog._route_queue
    patch.setattr(Backlog, "_route_queue", lambda self, route, priority: route_queue(self, route, 0))


def first_in_first_out(patch: Patch) -> None:
    """What comes last in a Submit goes first."""
    append = Backlog.append

    def turn_round(self: Backlog, route: Route, priority: int, group: tuple[int, int], records: list) -> None:
        append(self, route, priority, group, list(records)[::-1])

    patch.setattr(Backlog, "append", turn_round)


def group_turns(patch: Patch) -> None:
    """A group that has been served stays first until nothing of it is left."""
    patch.setattr(backlog, "QUANTUM", 1e6)


def queue_turns(patch: Patch) -> None:
    """Queues are served in the order in which they came."""
    patch.setattr(Backlog, "served", Backlog.forget_empty)


def kept_lanes(patch: Patch) -> None:
    """A lane that has no room for who is first in turn goes to the next."""
    dispatch = Ventilator._dispatch_route_queue

    def keep_none(
        self: Ventilator,
        route_queue: RouteQueue,
        lanes: list[Lane],
        now: float,
        pushes: list[PushTasks],
        kept: set[int],
        *,
        alone: bool = False,
    ) -> None:
        dispatch(self, route_queue, lanes, now, pushes, set(), alone=alone)

    patch.setattr(Ventilator, "_dispatch_route_queue", keep_none)


def overdue_recall(patch: Patch) -> None:
    """What was sent ahead by a wrong estimate stays where it is."""
    patch.setattr(Ventilator, "overdue", lambda self, now: [])


def pool_losses(patch: Patch) -> None:
    """What was at a pool that died is sent on, as often as that happens."""
    patch.setattr(collector, "died_with", lambda hub, record, pool, reason: collector.lost(hub, record))


def upstream_counted_once(patch: Patch) -> None:
    """The end of a task counts twice for those that depend on it."""
    ended = Dependencies._ended

    def count_twice(self: Dependencies, task: int, dependents: list[TaskRecord], value: Value) -> None:
        for record in dependents:
            if record.links is not None and record.links.waits > 1:
                record.links.waits -= 1
        ended(self, task, dependents, value)

    patch.setattr(Dependencies, "_ended", count_twice)


def value_kept(patch: Patch) -> None:
    """An outcome is forgotten with the last but one of those that need it."""

    def let_go(self: Dependencies, record: TaskRecord, links: Links) -> None:
        for seq in links.needs:
            task = record.client << SEQ_BITS | seq
            if (held := self.values.get(task)) is not None:
                held.holders -= 1
                if held.holders < 2:
                    self._forget(task)

    patch.setattr(Dependencies, "_let_go", let_go)


def calls_kept(patch: Patch) -> None:
    """A client does not bring the calls of those that it was told of without a result."""
    patch.setattr(Table, "calls_of", lambda self, seqs: ([], []))


def failure_passed_on(patch: Patch) -> None:
    """A task starts although one that it depends on has failed."""
    decide = Dependencies._decide

    def ignore(
        self: Dependencies, record: TaskRecord, links: Links, failure: Failed | None, upstream: int
    ) -> None:
        decide(self, record, links, failure if links.when != SUCCESS else None, upstream)

    patch.setattr(Dependencies, "_decide", ignore)


def attachments_early(patch: Patch) -> None:
    """A hub expects no client to bring a task that another one waits for by its id."""
    patch.setattr(attachments, "_may_come", lambda hub, client, text: False)


def attachments_joined(patch: Patch) -> None:
    """An attachment that waits for a task's client does not hear that the task has come."""
    patch.setattr(attachments, "came", lambda hub, client, seqs: None)


def first_fulfilment(patch: Patch) -> None:
    """Everybody who fulfils a promise is told to have been the first."""
    on_fulfil = promises.on_fulfil

    def agree(hub: HubState, client: int, fulfil: m.Fulfil, now: float) -> None:
        on_fulfil(hub, client, fulfil, now)
        hub.send(client, m.Answer(fulfil.number, True))

    patch.setattr(promises, "on_fulfil", agree)


def permits(patch: Patch) -> None:
    """A task that is cancelled keeps its permits."""
    end = Limits.end

    def keep(self: Limits, record: TaskRecord, cause: Cause | None = None) -> None:
        if cause is not Cause.CANCEL:
            end(self, record, cause)

    patch.setattr(Limits, "end", keep)


def windows(patch: Patch) -> None:
    """Starts are not counted."""
    patch.setattr(LimitCounter, "add", lambda self, when, count=1: None)


def owners_of_sessions(patch: Patch) -> None:
    """A client session is anybody's who knows its id."""
    patch.setattr(owners, "is_another_s", lambda hub, client, user: False)


def owners_of_pools(patch: Patch) -> None:
    """A pool is any process that knows its name and instance."""
    patch.setattr(owners, "refusal_of_pool", lambda hub, hello, user, token: "")


def owners_of_names(patch: Patch) -> None:
    """A name is one thing for all users."""
    for module in (ledger, state, result_cache):
        patch.setattr(module, "owned", lambda user, name: name)


def numbers_of_specs(patch: Patch) -> None:
    """A spec is taken under any number."""
    patch.setattr(submission, "spec_number", lambda spec: ANY)


GUARDS: tuple[Callable[[Patch], None], ...] = (
    result_dedup,
    delivery_dedup,
    attempt_fencing,
    sequence_check,
    lost_message_check,
    inventory,
    adoption_check,
    waiters_id,
    crash_blame,
    credit,
    ticket_generation,
    at_most_once,
    retry_timer,
    lease,
    left_behind,
    expiry_time,
    bound_inventory,
    bound_repeated,
    call_limit,
    numbers,
    result_limit,
    kept_time,
    draining_lanes,
    insisting,
    wishes,
    drain_grace,
    left_in_order,
    named_process,
    handed_back,
    handed_back_before,
    time_to_start,
    failures_reported,
    priority,
    first_in_first_out,
    group_turns,
    queue_turns,
    kept_lanes,
    overdue_recall,
    pool_losses,
    upstream_counted_once,
    value_kept,
    calls_kept,
    failure_passed_on,
    first_fulfilment,
    attachments_early,
    attachments_joined,
    permits,
    windows,
    owners_of_sessions,
    owners_of_pools,
    owners_of_names,
    numbers_of_specs,
)
