"""Verdicts: what is wrong with a mesh and what to do about it, in sentences, the worst first.

Each is made by a rule from what the hub knows, and is gone when it does not hold any more. `taskmesh status`,
`taskmesh top` and the dashboard say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from taskmesh.core.ids import text_of
from taskmesh.hub.machine.books.lanes import Lane, LaneState
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.views.quantities import duration
from taskmesh.hub.machine.views.queue_views import QueueView
from taskmesh.hub.machine.views.task_views import RunningView, full_sink, running

MOST: Final = 10
"""Verdicts that are told."""
PATIENCE_S: Final = 10.0
"""Seconds for which tasks wait, or run, before anybody is told of that."""
UNUSUAL: Final = 10
"""Times as long as 99 of 100 calls of its function that a task runs before anybody is told of it."""
STORM: Final = 10
"""Failed attempts of one kind in a minute of which somebody is told; of the kinds in DEADLY one is enough."""
DEADLY: Final = frozenset({"crash", "oom", "hard_timeout", "function", "signature"})
MOST_LANES: Final = 2_000
"""Pools whose running tasks are looked at."""


def verdicts(hub: HubState, queues: list[QueueView], warnings: dict[str, str], now: float) -> list[str]:
    """Return what is wrong, the worst first.

    Args:
        hub: the hub.
        queues: what waits, see `queue_views`.
        warnings: by whom they are about.
        now: the time.
    """
    rules = (
        _of_the_journal(hub),
        (f"{who}: {text}" for who, text in warnings.items()),
        _of_queues(hub, queues),
        _of_pools(hub, now),
        _of_clients(hub),
        _of_errors(hub),
        _of_tasks(hub, now),
        _of_idle_pools(hub, queues),
    )
    return list(islice((text for rule in rules for text in rule), MOST))


def _of_the_journal(hub: HubState) -> Iterator[str]:
    journal = hub.diagnostics.journal
    if journal and (journal["full"] or journal["state"] != "connected"):
        why = journal["why"] or ("it is full" if journal["full"] else journal["state"])
        yield f"journal: {why}: durable tasks are not accepted until it is mended"


def _of_queues(hub: HubState, queues: list[QueueView]) -> Iterator[str]:
    for view in queues:
        if not view.waiting:
            continue
        tasks = "1 task waits" if view.waiting == 1 else f"{view.waiting:,} tasks wait"
        said = f"{view.wanted}: {tasks}"
        if view.refusal:
            yield f"{said}, and {view.refusal}"
        elif full := view.sinks & hub.sinks.closed:
            yield f"{said}: {full_sink(min(full))}"


def _of_pools(hub: HubState, now: float) -> Iterator[str]:
    for pool, reason in hub.diagnostics.refused.items():
        yield f"pool {pool} is not let in: {reason}"
    for lane in hub.lanes.values():
        if lane.state in (LaneState.SILENT, LaneState.CUT):
            silent = f"not been heard of for {duration(now - lane.heard)}"
            yield f"pool {lane.pool} has {silent}: its {lane.outstanding} tasks go to others if it is gone"
        if lane.slots < lane.hello.slots and lane.state is LaneState.READY:
            broken = lane.hello.slots - lane.slots
            yield f"pool {lane.pool}: {broken} of {lane.hello.slots} slots cannot start; its log says why"


def _of_clients(hub: HubState) -> Iterator[str]:
    for client in hub.ledger.backlog.withheld:
        session = hub.clients.get(client)
        if session is not None and session.present:
            name = session.name or f"{client:016x}"
            yield f"client {name} does not take its results: its tasks do not start until it does"


def _of_errors(hub: HubState) -> Iterator[str]:
    groups = hub.diagnostics.errors.groups.values()
    lately = [(group.lately(hub.wall), group) for group in groups]
    worst = sorted(lately, key=lambda one: (one[1].kind in DEADLY, one[0]), reverse=True)
    for count, group in worst:
        if count >= STORM or (count and group.kind in DEADLY):
            what = group.type_name or group.kind
            at = f" at {group.place}" if group.place else ""
            times = "once" if count == 1 else f"{count:,} times"
            yield f"{group.name}: {what}{at}, {times} in the last minute: taskmesh errors {group.name}"


def _of_tasks(hub: HubState, now: float) -> Iterator[str]:
    late = [
        each
        for lane in islice(hub.lanes.values(), MOST_LANES)
        for each in running(hub, lane, now)
        if each.seconds > PATIENCE_S and _is_unusual(each)
    ]
    for each in sorted(late, key=lambda each: -each.seconds):
        spec = each.record.spec
        task = text_of(each.record.id)
        said = f"{spec.spec.name} runs on {each.worker} for {duration(each.seconds)}"
        yield f"{said}, and {each.usual}: taskmesh stack {task}"


def _is_unusual(each: RunningView) -> bool:
    return bool(each.usual) and each.seconds > UNUSUAL * (each.record.spec.figures.run.quantile(0.99) or 0.0)


def _of_idle_pools(hub: HubState, queues: list[QueueView]) -> Iterator[str]:
    waiting = next((view for view in queues if view.ready and view.oldest > PATIENCE_S), None)
    if waiting is not None:
        serving = {lane.session for lane in waiting.lanes}
        idle = [lane for lane in hub.lanes.values() if lane.session not in serving and _is_idle(lane)]
        for lane in idle[:3]:
            others = f"{waiting.waiting:,} tasks wait in {waiting.wanted}"
            yield f"pool {lane.pool}: its {lane.slots} slots are idle while {others}, which it does not serve"


def _is_idle(lane: Lane) -> bool:
    return lane.state is LaneState.READY and not lane.outstanding
