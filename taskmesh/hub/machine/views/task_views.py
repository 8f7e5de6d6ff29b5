"""Tasks as operators see them: those on their way, and one with what it waits for.

A hub has millions of tasks, and views are asked for every second: none here looks at all of them. Counts are
kept by the transitions, rows come from the books that have few others, and what one asks about decides how
far it looks (`MOST_LOOKS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from taskmesh.core import ids
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, plain
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.books.states import QUEUED, SENT, SUSPECT, WAITING, State, TaskRecord
from taskmesh.hub.machine.books.ticks import text_of_tick
from taskmesh.hub.machine.figures.diagnostics import RECENT
from taskmesh.hub.machine.owners import sees_all
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.views import queue_views
from taskmesh.hub.machine.views.quantities import duration
from taskmesh.hub.machine.views.queue_views import QueueView
from taskmesh.messages.limit_rules import text_of

ENOUGH = 20
"""Runs of a function from which on it is told how long they take."""
MOST_LOOKS = 50_000
"""Entries that one view looks at, some 10 ms: those before one in its queue, and those that have left a queue
and are still listed there."""


class QuestionError(Exception):
    """Internal: the question has no answer, for the reason given."""


def tasks(hub: HubState, state: str, limit: int, now: float) -> list[dict[str, Any]]:
    name = state.lower()
    if name in ("succeeded", "failed", "cancelled"):
        return _ended(hub, name)[:limit]
    if name not in ("", QUEUED.word, State.RUNNING.word):
        raise QuestionError(
            f"{state!r} is no state of a task that can be asked for; there are queued and running, and for "
            "the latest ends succeeded, failed and cancelled"
        )
    if not name:
        return [_brief(hub, task, record) for task, record in islice(tasks_by_id(hub.ledger), limit)]
    rows = (
        {**_brief(hub, task, record), "seconds": round(seconds, 3)}
        for record, seconds in (_longest_runs if name == State.RUNNING.word else _queued)(hub, now)
        for task in (record.extra.waiting(record.id) if record.extra else (record.id,))
    )
    return list(islice(rows, limit))


def _ended(hub: HubState, state: str) -> list[dict[str, Any]]:
    """Return tasks that have ended lately, the latest first."""
    recent, since = hub.diagnostics.recent, hub.wall - hub.now
    if state != State.SUCCEEDED.word:
        fields = ("name", "state", "queue", "attempt", "worker", "ended")
        kept = recent.by_task if state == State.FAILED.word else recent.cancelled
        ends = [({key: end[key] for key in fields}, task) for task, end in kept.items()]
    else:
        fields = ("name", "queue", "attempt", "worker", "seconds", "count")
        ends = [
            ({"state": state, **dict(zip(fields, about, strict=True)), "ended": since + at}, task)
            for task, *about, at in recent.successes
        ]
    return [
        {"task_id": ids.text_of(task), **end, "pool": str(end["worker"]).partition("/")[0]}
        for end, task in reversed(ends)
    ]


def _longest_runs(hub: HubState, now: float) -> Iterator[tuple[TaskRecord, float]]:
    """Yield the tasks that run, with the seconds for which they do: the longest run first."""
    runs = chain.from_iterable(running(hub, lane, now) for lane in hub.lanes.values())
    shown = ((each.record, each.seconds) for each in islice(runs, MOST_LOOKS))
    yield from sorted(shown, key=itemgetter(1), reverse=True)


def _queued(hub: HubState, now: float) -> Iterator[tuple[TaskRecord, float]]:
    """Yield the tasks that have not started, with the seconds for which they could have.

    First those that pools have, then those in the queues, then those that wait for a time or other tasks.
    """
    ledger = hub.ledger
    stages: tuple[tuple[State, Iterable[TaskRecord]], ...] = (
        (SENT, chain.from_iterable(lane.held() for lane in hub.lanes.values())),
        (QUEUED, islice(chain(ledger.backlog.entries(), ledger.suspects.entries()), MOST_LOOKS)),
        (WAITING, ledger.waiting),
    )
    for state, records in stages:
        yield from ((record, now - record.ready) for record in records if record.state is state)


@dataclass(slots=True)
class RunningView:
    """A task that runs, as its pool's last beat has it.

    Attributes:
        record: the task.
        worker: where.
        seconds: for how long.
    """

    record: TaskRecord
    worker: str
    seconds: float

    @property
    def usual(self) -> str:
        """The time that calls of its function take, in words; empty while too few have ended."""
        run = self.record.spec.figures.run
        return f"99 of 100 calls end within {duration(run.quantile(0.99))}" if run.count >= ENOUGH else ""


def running(hub: HubState, lane: Lane, now: float) -> Iterator[RunningView]:
    """Yield what a pool has said it runs, as far as that has not ended."""
    for told in lane.running:
        record = hub.ledger.by_id(told.client << SEQ_BITS | told.seq)
        if record is not None and record.state is State.RUNNING and record.session == lane.session:
            yield RunningView(record, told.worker, told.elapsed + now - lane.heard)


def task(hub: HubState, text: str, now: float) -> dict[str, Any]:
    task = parse(text)
    record = hub.ledger.by_id(task)
    if record is None:
        return _over(hub, task)
    extra = record.extra
    return {
        **_brief(hub, task, record),
        "user": hub.owner(task >> SEQ_BITS),
        "priority": record.spec.priority,
        "tags": sorted(record.spec.route[1]),
        "bytes": len(record.payload),
        "group": record.group,
        "errors": record.errors,
        "crashes": record.crashes,
        "ooms": extra.ooms if extra else 0,
        "losses": record.losses,
        "history": [*extra.pools, *extra.history] if extra else [],
        "why": _why(hub, record, now),
    }


def _over(hub: HubState, task: int) -> dict[str, Any]:
    """Return how a task has ended that is not on its way."""
    text, recent = ids.text_of(task), hub.diagnostics.recent
    if bad := recent.by_task.get(task) or recent.cancelled.get(task):
        return {"task_id": text, **bad}
    if success := recent.success_of(task):
        _, name, queue, attempt, worker, seconds, count, at = success
        others = f", with {count - 1:,} others of its report" if count > 1 else ""
        return {
            "task_id": text,
            "name": name,
            "user": hub.owner(task >> SEQ_BITS),
            "state": State.SUCCEEDED.word,
            "queue": queue,
            "ended": hub.wall - hub.now + at,
            "attempt": attempt,
            "worker": worker,
            "seconds": seconds,
            "why": f"attempt {attempt} on {worker or '?'} in {duration(seconds)}{others}",
        }
    account = hub.ledger.accounts.get(task >> SEQ_BITS)
    if account is not None and task & SEQ_MASK in account.finished:
        why = f"how is told of the last {RECENT:,} ends; `taskmesh result {text}` has what is kept"
        return {"task_id": text, "state": "ended", "why": why}
    raise QuestionError(
        f"nothing is known of task {text}: it was not submitted to this hub, or has ended and its client left"
    )


def logs(hub: HubState, argument: str, limit: int, user: str) -> dict[str, Any]:
    """Return what a task has logged, oldest first, and whether it is on its way.

    Args:
        hub: the hub.
        argument: the task's id, and behind a space the number after which lines are wanted.
        limit: at most so many, the newest.
        user: who asks.
    """
    text, _, since = argument.partition(" ")
    task = parse(text)
    if since and not since.isdigit():
        raise QuestionError(f"lines are asked for since a number, not {since!r}")
    record = hub.ledger.by_id(task)
    task = task if record is None else record.id  # one of several that wait for its outcome
    owner, lines = hub.diagnostics.lines.by_task.get(task, ("", ()))
    if record is None and not lines:
        raise QuestionError(f"no task {text} is here, or it is over and its lines are not kept any more")
    if lines and not sees_all(user) and owner != user:
        raise QuestionError("what a task has logged is told to operators, and to its own program")
    newest = [line for line in lines if line[0] > int(since or 0)][-limit:]
    rows = [
        {
            "number": number,
            "time": line.time,
            "level": line.level_name,
            "logger": line.logger,
            "text": line.text,
            "attempt": attempt,
            "worker": worker,
        }
        for number, attempt, worker, line in newest
    ]
    return {"task_id": text, "on_its_way": record is not None, "lines": rows}


def errors(hub: HubState, wanted: str, limit: int, user: str) -> dict[str, Any]:
    """Return groups of failed attempts, the one that has grown last first, and the count of those in none.

    Args:
        hub: the hub.
        wanted: a part of the names of functions, types or places; empty for all.
        limit: at most so many groups.
        user: who asks: samples are told to operators, and to their own users.
    """
    groups = [
        group
        for group in reversed(hub.diagnostics.errors.groups.values())
        if wanted in group.name or wanted in group.type_name or wanted in group.place
    ]
    rows = [
        {
            "name": group.name,
            "kind": group.kind,
            "type": group.type_name,
            "place": group.place,
            "count": group.count,
            "first": group.first,
            "last": group.last,
            "samples": [
                {**asdict(sample), "task": ids.text_of(sample.task)}
                for sample in reversed(group.samples)
                if sees_all(user) or sample.user == user
            ],
        }
        for group in groups[:limit]
    ]
    return {"groups": rows, "ungrouped": hub.diagnostics.errors.ungrouped}


def _brief(hub: HubState, task: int, record: TaskRecord) -> dict[str, Any]:
    lane = hub.lanes.get(record.session)
    held = State.SENT <= record.state <= State.RUNNING
    return {
        "task_id": ids.text_of(task),
        "name": record.spec.spec.name,
        "state": record.state.word,
        "queue": record.spec.route[0],
        "attempt": record.attempt - record.returns,
        "pool": lane.pool if lane is not None and held else "",
    }


def _why(hub: HubState, record: TaskRecord, now: float) -> str:
    if record.state is State.WAITING:
        return _why_waiting(hub, record, now)
    if record.state is not State.QUEUED:
        return _why_at_pool(hub, record, now)
    if record.client in hub.ledger.backlog.withheld:
        return "its client has to take results that wait for it first (client.max_bytes), or cancels it"
    return _held_back(hub, record) or _no_slot(hub, record)


def _why_at_pool(hub: HubState, record: TaskRecord, now: float) -> str:
    lane = hub.lanes.get(record.session)
    if lane is None:
        return "pool ? has it"
    found = next((each for each in running(hub, lane, now) if each.record is record), None)
    if found is None:
        return f"pool {lane.pool} has it"
    return "; ".join(filter(None, (f"{found.worker} runs it for {duration(found.seconds)}", found.usual)))


def _no_slot(hub: HubState, record: TaskRecord) -> str:
    """Return the reason why no pool has a queued task, in words."""
    route = hub.ledger.route_of(record)
    queue, tags, _, sink = route
    view = QueueView(queue, tags, lanes=[lane for lane in hub.lanes.values() if lane.serves(route)])
    if view.refusal:
        return f"{view.wanted}: {view.refusal}"
    if sink in hub.sinks.closed:
        return full_sink(sink)
    return f"every pool that serves {view.wanted} is busy; {_turn_comes(hub, record, view.ready)}"


def _turn_comes(hub: HubState, record: TaskRecord, ready: list[Lane]) -> str:
    """Return the place of a queued task in line, and when its turn comes if those before it take as long."""
    place = queue_views.place(hub, record, MOST_LOOKS)
    slots, service = sum(lane.slots for lane in ready), record.spec.service
    if not slots or service is None:
        return _in_line(place)
    return f"{_in_line(place)}: about {duration((place + 1) * service / slots)}, if they take as long as it"


def _why_waiting(hub: HubState, record: TaskRecord, now: float) -> str:
    if record.spec.is_promise:
        return f"it is a promise: `taskmesh fulfil {plain(record.extra.key[1])}` ends it"
    if record.spec.is_sink_value:
        return full_sink(record.spec.spec.sink)
    if record.spec.is_attachment:
        return "it waits for another client's task, which that may bring from before the hub's restart"
    links = record.links
    if links is not None and links.waits and not links.recovers:
        number = "a task" if links.waits == 1 else f"{links.waits} tasks"
        return f"it waits for {number} that it depends on"
    if not record.due:
        return f"it waits {hub.recovery.left(now):.1f} s at most for pools to come back"
    if record.extra is not None and record.extra.at:
        return f"it does not start before {text_of_tick(record.extra.at)}"
    what = "a retry" if record.errors or record.begun else "its time to start"
    return f"it waits {max(0.0, record.due - now):.1f} s for {what}"


def _held_back(hub: HubState, record: TaskRecord) -> str:
    """Return the limit that a queued task waits for, in words; empty if none holds it back."""
    if record.part is None:
        return ""
    backlog = hub.ledger.suspects if record.losses >= SUSPECT else hub.ledger.backlog
    route_queue = backlog.limited.get((hub.ledger.route_of(record), record.spec.priority))
    part = route_queue.parts.get(record.part) if route_queue is not None else None
    counter = None if route_queue is None or part is None else route_queue.waits_for or part.waits_for
    if counter is None or route_queue is None or part is None:
        return ""
    name, key = counter.key
    of_key = f" of {key!r}" if key else ""
    if hub.ledger.limits.recovers and not counter.rule.window:
        left = hub.recovery.left(hub.now)
        return f"limit {name}{of_key} waits {left:.1f} s at most for pools to say what they run"
    place = queue_views.place(hub, record, MOST_LOOKS)
    return f"limit {name}{of_key} {text_of(counter.rule)}, {_in_line(place)}"


def _in_line(place: int) -> str:
    return f"{place:,} before it" if place < MOST_LOOKS else f"{MOST_LOOKS:,} or more before it"


def parse(text: str) -> int:
    """Return the id in a text.

    Raises:
        QuestionError: it is none.
    """
    try:
        return ids.parse(text)
    except ValueError as error:
        raise QuestionError(str(error)) from error


def full_sink(sink: str) -> str:
    return f"sink {plain(sink)!r} is full: nobody takes from it, or not fast enough (Mesh.sink)"
