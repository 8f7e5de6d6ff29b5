"""Invariants of a hub machine between two events: its books agree with each other.

Slow (it looks at everything) and meant for tests; a failure names the book that is wrong.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from taskmesh.core.ids import SEQ_BITS
from taskmesh.core.state_machine import require
from taskmesh.hub.machine.books.backlog import (
    LINE,
    AnyRouteQueue,
    Backlog,
    KeyQueue,
    LimitedRouteQueue,
    RouteQueue,
)
from taskmesh.hub.machine.books.ledger import Ledger, states_of, weight_of
from taskmesh.hub.machine.books.limits import key_of
from taskmesh.hub.machine.books.sinks import Sinks, keys_of, size_at, size_of_ended
from taskmesh.hub.machine.books.states import ON_ITS_WAY, TRANSITIONS, State, TaskRecord
from taskmesh.hub.machine.state import HubState


def check_hub(hub: HubState) -> None:
    """Caps hold, no task is lost, and ledger, accounts, lanes, specs and backlog agree."""
    ledger = hub.ledger
    accounts = [account.tasks.values() for account in ledger.accounts.values()]
    records = list(dict.fromkeys(chain(*accounts, ledger.aliases.values())))
    _check_states(ledger, records)
    _check_accounts(ledger, records)
    for record in records:
        _check_record(hub, record)
    queued = sum(record.state is State.QUEUED for record in records)
    waiting = ledger.backlog.count() + ledger.suspects.count()
    require(waiting == queued, "queued tasks and the backlog differ", waiting, queued)
    entries = [*ledger.backlog.entries(), *ledger.suspects.entries()]
    require(len(set(map(id, entries))) == len(entries), "a task is twice in the backlog")
    require(all(record.lined_up for record in entries), "an entry that does not know of itself")
    backlogs = (ledger.backlog, ledger.suspects)
    route_queues: list[AnyRouteQueue] = [
        route_queue
        for backlog in backlogs
        for route_queue in backlog.route_queues()
        if isinstance(route_queue, RouteQueue)
    ]
    route_queues += [route_queue for backlog in backlogs for route_queue in backlog.limited.values()]
    sizes = sum(route_queue.size for route_queue in route_queues)
    require(sizes == len(entries), "the backlog's sizes are wrong", sizes, len(entries))
    held = sum(len(held.value.payload) for held in hub.dependencies.values.values())
    require(ledger.held == held, "bytes of kept outcomes are wrong", ledger.held, held)
    lines = sum(map(_lines, route_queues))
    size = (
        sum(map(weight_of, records))
        + held
        + LINE * lines
        + sum(sink.size for sink in hub.sinks.sinks.values())
    )
    size += sum(entry.size for entry in {record.spec for record in records})
    require(ledger.size == size, "the ledger's size is wrong", ledger.size, size)
    payers = {*ledger.accounts.values(), *(record.spec.payer for record in records)}
    paid = sum(account.size for account in payers)
    require(paid == size, "the accounts together are not what the ledger counts", paid, size)
    _check_edges(hub, records)
    _check_values(hub, records)
    _check_permits(hub, records)
    for backlog in backlogs:
        _check_limited(hub, backlog)
    most = hub.config.max_tasks
    held_over = hub.journal is not None  # what an earlier hub has accepted comes in whatever the cap is
    require(ledger.count - ledger.reruns <= most or held_over, "more tasks than the cap")
    _check_lanes(hub, records)
    _check_sinks(hub.sinks)
    live: dict[int, int] = {}
    for record in records:
        live[record.spec.number] = live.get(record.spec.number, 0) + 1
    for number, entry in hub.specs.items():
        require(entry.live == live.get(number, 0), "a spec's live count is wrong", number, entry.live)
    require(live.keys() <= hub.specs.keys(), "a live task's spec was forgotten")
    _check_ends(hub)
    resting = {number for number, entry in hub.specs.items() if not entry.live}
    require(ledger.resting.specs.keys() == resting, "specs that rest are not known", resting)
    rests = sum(entry.size for entry in ledger.resting.specs.values())
    require(ledger.resting.size == rests, "bytes of specs that rest are wrong", ledger.resting.size, rests)


def _lines(route_queue: AnyRouteQueue) -> int:
    if isinstance(route_queue, RouteQueue):
        return len(route_queue.groups)
    return sum(len(part.groups) for part in route_queue.parts.values())


def _check_states(ledger: Ledger, records: list[TaskRecord]) -> None:
    states = Counter(record.state for record in records)
    found = states_of(ledger)
    require(found == {state: states[state] for state in found}, "counts by state are wrong", found)
    waiting = {record: None for record in records if record.state is State.WAITING}
    require(ledger.waiting == waiting, "tasks that wait are not known as such", ledger.waiting.keys())
    of_spec = Counter(record.spec.number for record in waiting)
    specs = {record.spec.number: record.spec for record in records}
    for number, entry in specs.items():
        require(entry.waiting == of_spec[number], "a spec's waiting count is wrong", number, entry.waiting)


def _check_ends(hub: HubState) -> None:
    """Functions' ends are those of the tasks: successes, and others."""
    figures = hub.diagnostics.functions.by_name.values()
    told = [sum(each.succeeded for each in figures), sum(sum(each.ended.values()) for each in figures)]
    left = [0, 0]
    for (before, cause), count in hub.ledger.counts.items():
        if (after := TRANSITIONS[before, cause]) not in ON_ITS_WAY:
            left[after is not State.SUCCEEDED] += count
    require(told == left, "functions' ends are not those of the tasks", told, left)


def _check_accounts(ledger: Ledger, records: list[TaskRecord]) -> None:
    """Check that every id that waits is in its client's account, those alone, and what pools alone know."""
    shared = {record: record.extra for record in records if record.extra is not None}
    for client, account in ledger.accounts.items():
        for seq, record in account.tasks.items():
            extra = record.extra
            is_known = record.seq == seq and record.client == client and not (extra and extra.abandoned)
            is_known = is_known or (extra is not None and client << SEQ_BITS | seq in extra.waiters)
            require(is_known, "a task is in an account of which its record does not know", client, seq)
        over = [seq for seq in account.tasks if seq < account.finished.end and seq in account.finished]
        require(not over, "tasks on their way are taken for finished ones", client, over)
        require(account.size >= 0, "an account's size is negative", client, account.size)
    waiting = len(records) + sum(len(extra.waiters) - extra.abandoned for extra in shared.values())
    entered = sum(len(account.tasks) for account in ledger.accounts.values())
    require(ledger.count == waiting == entered, "the count of tasks is wrong", ledger.count, waiting, entered)
    aliases = {
        task: record
        for record, extra in shared.items()
        for task in (extra.abandoned and record.id, extra.alias)
        if task and task not in extra.waiters
    }
    require(ledger.aliases == aliases, "ids that pools alone know are wrong", ledger.aliases, aliases)


def _check_record(hub: HubState, record: TaskRecord) -> None:
    task = record.id
    require(record.state <= State.RUNNING, "a terminal task has a record", task, record.state)
    require(0 <= record.returns <= record.attempt, "more returns than attempts", task)
    limits = hub.config
    require(record.crashes < limits.crash_limit, "crashed too often and still on its way", task)
    require(
        record.extra is None or record.extra.ooms < limits.oom_limit,
        "ran out of memory too often and still on its way",
        task,
    )
    lost = record.losses < limits.pool_loss_limit
    require(lost, "its pools died too often and it is still on its way", task)
    held = State.SENT <= record.state <= State.RUNNING
    if held:
        require(record.session in hub.lanes, "a session that has ended holds a task", task, record.session)
    else:
        require(record.session == 0, "a task that waits is some session's", task, record.session)


def _check_edges(hub: HubState, records: list[TaskRecord]) -> None:
    """Check that waits are the dependencies on their way, nothing queued waits, and no edge is twice."""
    waits: Counter[int] = Counter()
    for record in records:
        for dependents in record.links.dependents.values() if record.links is not None else ():
            waits.update(other.id for other in dependents if other.state <= State.RUNNING)
    for ending in hub.dependencies.ended:
        yet = ending.dependents[ending.heard :]
        waits.update(other.id for other in yet if other.state <= State.RUNNING)
    for record in records:
        if (links := record.links) is not None:
            require(links.waits == waits[record.id], "waits of a task are wrong", record.id, links.waits)
            queued = record.state is State.QUEUED
            require(not (queued and links.holds_back), "a task is queued that waits", record.id)


def _check_values(hub: HubState, records: list[TaskRecord]) -> None:
    """Holders of an outcome are the tasks on their way that need it; it is held as long as there are any.

    A forgotten task may run again while its outcome is held; who waits for that run is no holder yet.
    """
    values = hub.dependencies.values
    holders: Counter[int] = Counter()
    to_come = {
        (other.id, task)
        for record in records
        if record.links is not None
        for task, dependents in record.links.dependents.items()
        for other in dependents
    }
    for record in records:
        if (links := record.links) is not None:
            base = record.client << SEQ_BITS
            holders.update(base | seq for seq in links.needs if (record.id, base | seq) not in to_come)
    holders.update(client << SEQ_BITS | seq for client, seqs in hub.dependencies.kept.items() for seq in seqs)
    for task, held in values.items():
        require(
            held.holders == holders[task] > 0,
            "holders of an outcome are wrong",
            task,
            held.holders,
            holders[task],
        )


def _check_permits(hub: HubState, records: list[TaskRecord]) -> None:
    """Permits of a limit are its tasks that are SENT or RUNNING, or listed and not asked for."""
    limits = hub.ledger.limits
    permits: dict[tuple[str, str], set[int]] = {}
    for record in records:
        rules = record.spec.spec.limits
        require((record.part is None) == (not rules), "a task's limits are not its spec's", record.id)
        if State.SENT <= record.state <= State.RUNNING:
            for rule in rules:
                permits.setdefault(key_of(rule, record.part), set()).add(record.id)
    for task, keys in limits.listed.items():
        for key in keys:
            permits.setdefault(key, set()).add(task)
    for key, holders in permits.items():
        require(key in limits.counters, "a limit that tasks hold is not counted", key, holders)
    of_name = {key: counter for counters in limits._of_name.values() for key, counter in counters.items()}
    require(of_name == limits.counters, "counters are not known by their limits' names")
    unused = limits.rules.keys() - limits._of_name.keys()
    require(limits._unused.keys() == unused, "it is not known which rules nothing asks for", unused)
    for key, counter in limits.counters.items():
        newest = limits.rule(key[0], counter.rule)
        require(limits.is_changing or counter.rule == newest, "a limit counts by an older rule", key)
        held = permits.get(key, set())
        require(set(counter.holders) == held, "permits of a limit are wrong", key, set(counter.holders), held)


def _check_limited(hub: HubState, backlog: Backlog) -> None:
    """No task waits for a limit that has room, and no other route is held up by one that has none."""
    limits, now = hub.ledger.limits, hub.ledger.limits.now
    for route_queue in backlog.limited.values():
        shown = backlog.routes.get(route_queue.route, {}).get(route_queue.priority) is route_queue
        require(
            shown == route_queue.is_shown, "a route queue does not know where it stands", route_queue.route
        )
        standing = [part for part in route_queue.parts.values() if part.waits_for is None]
        require(
            set(standing) == set(route_queue.turns),
            "keys and turns of a route queue differ",
            route_queue.route,
        )
        require(len(standing) == len(route_queue.turns), "a key of a limit has two turns", route_queue.route)
        aside = route_queue.waits_for is not None
        require(
            shown or aside or not standing, "nobody looks at a route queue that could go", route_queue.route
        )
        everything: list[LimitedRouteQueue | KeyQueue] = [route_queue, *route_queue.parts.values()]
        for each in everything:
            counter = each.waits_for
            if counter is None:
                continue
            require(each in counter.waiting, "a limit does not know who waits for it", counter.key)
            require(
                limits.counters.get(counter.key) is counter,
                "a limit that tasks wait for is not counted",
                counter.key,
            )
            closed = counter.room_at(now) > now or limits.recovers
            require(closed, "a task waits for a limit that has room", counter.key)
            timed = not counter.rule.window or 0 < counter.wakes_at <= counter.room_at(now)
            require(timed, "no timer opens the window of a limit", counter.key, counter.wakes_at)


def _check_sinks(sinks: Sinks) -> None:
    """A sink's sizes and counts are those of what waits, and of what its consumers hold."""
    ends: Counter[tuple[int, int]] = Counter()
    for sink in sinks.sinks.values():
        held = 0
        for consumer in sink.consumers.values():
            size = sum(size_at(each) for each in consumer.held.values())
            require(consumer.size == size, "a consumer's size is wrong", sink.name, consumer.size, size)
            held += size
            ends.update(consumer.held.keys())
        waiting = [outcome for _, outcome in sink.waiting]
        size = held + sum(map(size_of_ended, waiting))
        require(sink.size == size, "a sink's size is wrong", sink.name, sink.size, size)
        keys = [key for outcome in waiting for key in keys_of(outcome)]
        require(sink.count == len(keys), "a sink's count is wrong", sink.name, sink.count, len(keys))
        ends.update(keys)
        require(bool(size or sink.consumers), "a sink that is empty and nobody's", sink.name)
    taken = {(client, sink.name) for sink in sinks.sinks.values() for client in sink.consumers}
    known_taken = {(client, name) for client, names in sinks._taken.items() for name in names}
    require(taken == known_taken, "consumers are not known by their clients", taken ^ known_taken)
    filled = {sink.name for sink in sinks.sinks.values() if sink.size}
    require(sinks.filled == filled, "it is not known which sinks hold something", sinks.filled, filled)
    known = {(client, seq) for client, book in sinks.ends.items() for seq in book}
    require(known == ends.keys(), "ends of tasks in sinks are not known", known ^ ends.keys())


def _check_lanes(hub: HubState, records: list[TaskRecord]) -> None:
    serving = {(queue, session) for queue, lanes in hub.serving.items() for session in lanes}
    served = {(queue, lane.session) for lane in hub.lanes.values() for queue in lane.queues}
    require(serving == served, "lanes are not known by their queues", serving ^ served)
    for lane in hub.lanes.values():
        held = lane.held()
        require(
            lane.outstanding == len(held), "a lane's count is wrong", lane.pool, lane.outstanding, len(held)
        )
        counts: dict[int, int] = {}
        for record in held:
            counts[record.spec.number] = counts.get(record.spec.number, 0) + 1
        require(lane.counts == counts, "a lane's counts by spec are wrong", lane.pool, lane.counts, counts)
    held_sessions = {record.session for record in records} - {0}
    require(held_sessions <= hub.lanes.keys(), "tasks of sessions that are gone", held_sessions)
