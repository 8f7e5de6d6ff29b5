"""The views of a hub: pools, tasks and events in plain data, and the answers to operators' commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskmesh.core.actions import LogEvent
from taskmesh.core.ids import client_of, seq_of
from taskmesh.hub.machine import cancellations, clients, schedules
from taskmesh.hub.machine.books.lanes import Lane, LaneState
from taskmesh.hub.machine.books.ledger import states_of
from taskmesh.hub.machine.books.limits import MOST_RULES
from taskmesh.hub.machine.books.schedule import ScheduleRecord
from taskmesh.hub.machine.books.states import ON_ITS_WAY, TRANSITIONS, State
from taskmesh.hub.machine.books.ticks import text_of_tick
from taskmesh.hub.machine.owners import sees_all
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.views import task_views
from taskmesh.hub.machine.views.letter_views import PURGE
from taskmesh.hub.machine.views.queue_views import queues
from taskmesh.hub.machine.views.task_views import QuestionError
from taskmesh.hub.machine.views.verdicts import verdicts
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.limit_rules import LimitError, read_named, text_of
from taskmesh.messages.runs import Held
from taskmesh.messages.status import HubStatus, PoolStatus

ENDS = [state for state in State if state not in ON_ITS_WAY]
MOST_ROWS = 10_000
MOST_TICKS = 1000
MOST_BUSY = 50
"""Functions in a status."""
TO_POOLS = ("pause", "resume", "drain", "scale-in")
VERBS = (
    *TO_POOLS,
    *("cancel", "cancel-client", "cancel-key", "stack", "limit", "unlimit"),
    *("schedule-pause", "schedule-resume", "schedule-remove", "schedule-run", PURGE),
)
"""Verbs of operators' commands; the last one is for dead letters, see `letter_views`."""
SAID = {"schedule.failed": "text", "pool.refuses": "reason"}
"""Events with a field that tells an error of somebody's function."""
AWAY = frozenset({LaneState.DRAINING, LaneState.CUT})
"""States of pools that cannot be asked to leave: they do, or nobody hears."""


# --- questions --------------------------------------------------------------------------------------------


def answer(hub: HubState, query: m.Query, now: float, user: str = "") -> m.Answer:
    """The answer to a query; its error names what can be asked for.

    What tasks have said, in errors and in keys, is told to operators and to the tasks' own users.
    """
    limit = min(max(1, query.limit), MOST_ROWS)
    try:
        match query.what:
            case "status":
                value: object = status(hub, now, told=sees_all(user))
            case "pools":
                value = [pool_view(lane, now) for lane in hub.lanes.values()][:limit]
            case "tasks":
                value = task_views.tasks(hub, query.argument, limit, now)
            case "task":
                value = _seen(task_views.task(hub, query.argument, now), user)
            case "logs":
                value = task_views.logs(hub, query.argument, limit, user)
            case "events":
                value = events(hub, query.argument, limit, now, told=sees_all(user))
            case "errors":
                value = task_views.errors(hub, query.argument, limit, user)
            case "limits":
                value = limits(hub, limit)
            case _:
                value = _of_schedules(hub, query.what, query.argument, limit)
    except QuestionError as error:
        return m.Answer(query.number, None, str(error))
    return m.Answer(query.number, value)


def _schedule(hub: HubState, name: str) -> ScheduleRecord:
    schedule = hub.schedules.records.get(name)
    if schedule is None:
        there = ", ".join(sorted(hub.schedules.records)[:20]) or "none"
        raise QuestionError(f"no schedule {name!r} is here; there are: {there}")
    return schedule


def _of_schedules(hub: HubState, what: str, name: str, limit: int) -> list[Any]:
    if what == "ticks":
        coming = schedules.coming(hub, _schedule(hub, name), min(limit, MOST_TICKS))
        return [text_of_tick(tick) for tick in coming]
    if what == "schedules":
        records = hub.schedules.records
        return [records[each].view() for each in sorted(records)[:limit]]
    raise QuestionError(
        f"no such view: {what!r}; there are status, pools, tasks, task, events, limits, schedules, ticks"
    )


def status(hub: HubState, now: float, *, told: bool = True) -> HubStatus:
    """Return all that the hub knows of itself.

    Args:
        now: the time.
        told: what functions have said when pools could not run them is told.
    """
    ledger = hub.ledger
    states = states_of(ledger)
    waiting, warnings = queues(hub, now), _warnings(hub, told=told)
    return {
        "verdicts": verdicts(hub, waiting, warnings, now),
        "epoch": hub.config.epoch,
        "accepted": ledger.accepted,
        "finished": ledger.accepted - sum(states.values()),
        "ended": _ended(hub),
        "tasks": _on_their_way(states),
        "orphans": clients.orphans(hub),
        "unclaimed": len(hub.unclaimed),
        "bytes": ledger.size,
        "duplicate_results": hub.diagnostics.duplicates,
        "stale_failures": hub.diagnostics.stale,
        "pools": [pool_view(lane, now) for lane in hub.lanes.values()],
        "refused": dict(hub.diagnostics.refused),
        "warnings": warnings,
        "queues": [each.view() for each in waiting],
        "journal": hub.diagnostics.journal,
        "kept": hub.result_cache.view(),
        "dead": hub.letters.view(),
        "sinks": hub.sinks.view(),
        "functions": [each.view() for each in hub.diagnostics.functions.busiest(MOST_BUSY)],
        "clients": [
            {
                "client": f"{session.client:016x}",
                "name": session.name,
                "key": session.user or None,
                "present": session.present,
                "tasks": len(ledger.account(session.client).tasks),
            }
            for session in clients.programs(hub)
        ],
    }


def _on_their_way(states: dict[State, int]) -> dict[str, int]:
    """Counts of tasks on their way by state, as people see it."""
    found = dict.fromkeys((state.word for state in states), 0)
    for state, count in states.items():
        found[state.word] += count
    return found


def _ended(hub: HubState) -> dict[str, int]:
    """Counts of ended tasks by state; tasks that share a key count once."""
    ends = dict.fromkeys((state.word for state in ENDS), 0)
    for (before, cause), count in hub.ledger.counts.items():
        if (after := TRANSITIONS[before, cause]) in ENDS:
            ends[after.word] += count
    return ends


def _warnings(hub: HubState, *, told: bool) -> dict[str, str]:
    """List the warnings: shortages of this hub, differing versions, pools that do not run their tasks."""
    pools = {
        f"pool {lane.pool}": "; ".join(filter(None, (lane.warning, _told(lane.breaker.complaint, told=told))))
        for lane in hub.lanes.values()
    }
    programs = {f"client {session.name}": session.warning for session in hub.clients.values()}
    return {who: text for who, text in {"hub": hub.diagnostics.shortage, **pools, **programs}.items() if text}


def events(hub: HubState, since: str, limit: int, now: float, *, told: bool = True) -> list[dict[str, Any]]:
    """The newest events, oldest first.

    Args:
        since: only those with a higher number.
        limit: at most so many.
        now: the time.
        told: as in `status`.
    """
    if since and not since.isdigit():
        raise QuestionError(f"events are asked for since a number, not {since!r}")
    after = int(since or 0)
    newest = [event for event in hub.diagnostics.events if event[0] > after][-limit:]
    return [
        {"number": number, "ago": round(now - when, 3), "kind": record.kind, **_fields(record, told=told)}
        for number, when, record in newest
    ]


def limits(hub: HubState, limit: int) -> list[dict[str, Any]]:
    """Limits with their rules, and what they have let go and hold back; keys together."""
    limits = hub.ledger.limits
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted({*limits.rules, *limits.fixed})[:limit]:
        rule = limits.rule(name)
        if rule is not None:
            stated = limits.rules.get(name)
            rows[name] = {
                "limit": name,
                "rule": text_of(rule),
                "code": text_of(stated) if stated is not None else "",
                "set_by": "operator" if name in limits.fixed else "code",
                "keys": 0,
                "running": 0,
                "started": 0,
                "waiting": 0,
            }
    for (name, part), counter in limits.counters.items():
        if (row := rows.get(name)) is not None:
            row["keys"] += bool(part)
            row["running"] += len(counter.holders)
            counter.room_at(hub.now)
            row["started"] += counter.started if counter.rule.window else 0
    for number, waiting in _queued_with_limits(hub).items():
        for rule in hub.specs[number].route[2]:
            if rule.name in rows:
                rows[rule.name]["waiting"] += waiting
    return list(rows.values())


def _queued_with_limits(hub: HubState) -> dict[int, int]:
    """Count the queued tasks of each spec with limits: its others wait, or pools have them."""
    queued = {number: entry.live - entry.waiting for number, entry in hub.specs.items() if entry.route[2]}
    for lane in hub.lanes.values() if queued else ():
        for number, count in lane.counts.items():
            if number in queued:
                queued[number] -= count
    return queued


# --- commands ---------------------------------------------------------------------------------------------


def obey(hub: HubState, command: m.Command, now: float) -> m.Answer:
    verb, target, number = command.verb, command.target, command.number
    value: object
    try:
        match verb:
            case "cancel":
                value = _cancel(hub, target)
            case "stack":
                value = _ask_stack(hub, target)
            case "cancel-client" | "cancel-key":
                value = _cancel_all(hub, verb, target)
            case "limit" | "unlimit":
                value = _set_limit(hub, verb, target)
            case "schedule-pause" | "schedule-resume" | "schedule-remove" | "schedule-run":
                value = _obey_for_schedule(hub, verb, target)
            case "pause" | "resume" | "drain":
                value = _order(hub, verb, _addressed(hub, target), now)
            case "scale-in":
                value = _order(hub, "drain", _idlest(hub, target), now)
            case _:
                raise QuestionError(f"no such command: {verb!r}; there are {', '.join(VERBS)}")
    except QuestionError as error:
        return m.Answer(number, None, str(error))
    return m.Answer(number, value)


def _order(hub: HubState, verb: str, lanes: Iterable[Lane], now: float) -> list[dict[str, object]]:
    """Tell pools what they are to do; return a row for each."""
    rows = []
    for lane in lanes:
        lane.wish(verb)
        hub.publish(lane.pool, m.PoolCommand(verb, lane.hello.instance))
        heard = round(now - lane.heard, 3)
        rows.append({"pool": lane.pool, "session": lane.session, "running": at_work(lane), "heard": heard})
    return rows


def _obey_for_schedule(hub: HubState, verb: str, target: str) -> dict[str, object]:
    schedule = _schedule(hub, target)
    told: dict[str, object] = {"schedule": target}
    match verb:
        case "schedule-remove":
            schedules.remove(hub, target, "an operator's command")
        case "schedule-run":
            task = schedules.fire_now(hub, schedule)
            if not task:
                raise QuestionError("the hub is full (hub.max_tasks)")
            told["task_id"] = task
        case _:
            schedules.pause(hub, schedule, paused=verb == "schedule-pause")
    return told


def _idlest(hub: HubState, target: str) -> list[Lane]:
    """Those of a set that lose least when they leave; target: how many, a colon, the set.

    A set is all pools of which the name begins with the set's and a hyphen, as the pods of a Deployment.
    Among equals the one that came last leaves, as Kubernetes has it.
    """
    number, _, name = target.partition(":")
    if not number.isdigit() or int(number) < 1:
        raise QuestionError(f"{number!r} is no number of pools")
    there = [
        lane
        for lane in hub.lanes.values()
        if lane.state not in AWAY and (name in (lane.pool, "all") or lane.pool.startswith(f"{name}-"))
    ]
    if len(there) < int(number):
        raise QuestionError(
            f"{name!r} has {len(there)} pools that could leave, not {number}: {pools_named(there)}"
        )
    there.sort(key=lambda lane: (at_work(lane), lane.outstanding, -lane.session))
    return there[: int(number)]


def _addressed(hub: HubState, target: str) -> list[Lane]:
    if target == "all":
        return list(hub.lanes.values())
    lane = hub.lane_of(target)
    if lane is None:
        there = pools_named(hub.lanes.values())
        raise QuestionError(f"no pool {target!r} is here; there are: {there}")
    return [lane]


def _cancel(hub: HubState, target: str) -> dict[str, object]:
    task = task_views.parse(target)
    if not cancellations.cancel(hub, client_of(task), seq_of(task)):
        raise QuestionError(f"no task {target} is on its way: it is finished, or was never here")
    return {"cancelled": target}


def _ask_stack(hub: HubState, target: str) -> dict[str, object]:
    """Have a task's pool say where it is in its code; return the number of its last line before that."""
    task = task_views.parse(target)
    record = hub.ledger.by_id(task)
    lane = None if record is None else hub.lanes.get(record.session)
    if record is None or lane is None:
        raise QuestionError(f"no pool has task {target}: `taskmesh explain {target}` says why")
    held = Held(client_of(record.known_as), record.attempt, [seq_of(record.known_as)])
    hub.publish(lane.pool, m.AskStack(hub.config.epoch, lane.session, held))
    _, lines = hub.diagnostics.lines.by_task.get(record.id, ("", ()))
    return {"task_id": target, "after": lines[-1][0] if lines else 0}


def _set_limit(hub: HubState, verb: str, target: str) -> dict[str, object]:
    """Set a limit by hand, or leave it to code again; return what counts now."""
    limits = hub.ledger.limits
    if verb == "limit":
        try:
            rule = read_named(target)
        except LimitError as error:
            raise QuestionError(str(error)) from error
        if rule.name not in limits.fixed and len(limits.fixed) >= MOST_RULES:
            raise QuestionError(f"{MOST_RULES:,} limits are set by hand: unset one of them first")
        limits.set_rule(rule)
        name = rule.name
    else:
        name = target
        if not limits.unset_rule(name):
            set_by_hand = ", ".join(sorted(limits.fixed)[:100]) or "none"
            raise QuestionError(f"limit {name!r} is not set by hand; there are: {set_by_hand}")
    counts = limits.rule(name)
    text = text_of(counts) if counts is not None else ""
    hub.log("limit.set", {"limit": name, "rule": text, "by": "operator" if verb == "limit" else "code"})
    return {"limit": name, "rule": text}


def _cancel_all(hub: HubState, verb: str, target: str) -> dict[str, object]:
    """Cancel what all clients have of this name or id, or that show the key of this user."""
    accounts = hub.ledger.accounts
    if verb == "cancel-key":
        found = [client for client, account in accounts.items() if target == account.user]
    else:
        found = [c for c, account in accounts.items() if target in (account.name, f"{c:016x}")]
    if not target or not found:
        what = "client that shows the key" if verb == "cancel-key" else "client of the name or id"
        raise QuestionError(f"no {what} {target!r} is or was here: `taskmesh status --json` names them")
    tasks = clients.cancel_tasks_of(hub, found, "an operator's command")
    return {"cancelled": tasks, "clients": [f"{client:016x}" for client in found]}


def _seen(task: dict[str, Any], user: str) -> dict[str, Any]:
    """Return of a view of a task what its user, or another one, is to see."""
    if sees_all(user) or task.get("user", user) == user:
        return task
    others = {name: value for name, value in task.items() if name not in ("history", "why")}
    return {**others, "why": f"that is told to operators, and to {task['user'] or 'its own program'}"}


def _told(complaint: str, *, told: bool) -> str:
    """Return what a pool does not run, with the reason or without it."""
    return complaint if told else complaint.partition(": ")[0]


def _fields(event: LogEvent, *, told: bool) -> dict[str, object]:
    """Return the fields of an event, with what a function has said or without it."""
    hidden = None if told else SAID.get(event.kind)
    return {name: value for name, value in event.fields.items() if name != hidden}


def at_work(lane: Lane) -> int:
    """The number of a pool's slots that have work, as far as the hub knows."""
    return min(lane.slots, lane.outstanding)


def pools_named(lanes: Iterable[Lane]) -> str:
    return ", ".join(sorted(lane.pool for lane in lanes)) or "none"


def pool_view(lane: Lane, now: float) -> PoolStatus:
    return {
        "pool": lane.pool,
        "session": lane.session,
        "state": lane.state.value,
        "slots": lane.slots,
        "busy": len(lane.running),
        "outstanding": lane.outstanding,
        "queues": sorted(lane.queues),
        "tags": sorted(lane.tags),
        "host": lane.hello.host,
        "pid": lane.hello.pid,
        "python": lane.hello.python,
        "heard": round(now - lane.heard, 3),
    }
