"""Metrics and probes of a hub, for the side port; nothing here looks at every task, so polling is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskmesh.core.hub.lanes import LaneState
from taskmesh.core.hub.ledger import states_of
from taskmesh.core.hub.machine import HubMachine
from taskmesh.http.metrics import Family

Queues = dict[str, dict[str, int]]

QUEUE_HELP = {
    "depth": "Tasks that wait in the hub for a pool.",
    "running": "Tasks that pools have, running or next in line.",
    "pools": "Pools that serve the queue and take work.",
    "slots": "Slots of these pools.",
}


def queues(machine: HubMachine) -> Queues:
    """Return depth, running, pools, slots (see QUEUE_HELP) of queues that have pools or had tasks lately."""
    found: Queues = {}

    def of(queue: str) -> dict[str, int]:
        return found.setdefault(queue, dict.fromkeys(QUEUE_HELP, 0))

    for entry in machine.state.specs.values():
        of(entry.route[0])["depth"] += entry.live
    for lane in machine.state.lanes.values():
        for number, count in lane.counts.items():
            entry = machine.state.specs[number]
            row = of(entry.route[0])
            row["running"] += count
            row["depth"] -= count
        works = lane.state is LaneState.READY
        for queue in lane.queues:
            row = of(queue)
            row["pools"] += works
            row["slots"] += lane.slots * works
    return found


def hub_families(machine: HubMachine) -> list[Family]:
    ledger, collector = machine.state.ledger, machine.collector
    return [
        *_queue_families(queues(machine)),
        *_pool_families(machine),
        Family("taskmesh_tasks_accepted_total", "counter", "Tasks taken in.").add(ledger.accepted),
        Family("taskmesh_tasks_finished_total", "counter", "Tasks with an outcome.").add(
            ledger.accepted - sum(states_of(ledger).values())
        ),
        _transitions(machine),
        Family("taskmesh_tasks_bytes", "gauge", "Bytes of arguments in the ledger.").add(ledger.size),
        Family("taskmesh_tasks_orphaned", "gauge", "Tasks whose client has left.").add(
            machine.clients.orphans
        ),
        Family("taskmesh_clients", "gauge", "Clients with an open session.").add(
            sum(session.present for session in machine.clients.programs())
        ),
        Family("taskmesh_results_duplicate_total", "counter", "Results of tasks that had one.").add(
            collector.duplicates
        ),
        Family(
            "taskmesh_results_stray_total", "counter", "Results from pools that did not have the task."
        ).add(collector.strays),
        Family("taskmesh_failures_stale_total", "counter", "Failures of attempts that did not count.").add(
            collector.stale
        ),
        Family("taskmesh_pools_refused", "gauge", "Pools that were refused, by name.").add(
            len(machine.pools.refused)
        ),
        Family("taskmesh_kept_outcomes", "gauge", "Outcomes that are kept for whoever asks.").add(
            len(machine.state.result_cache)
        ),
        Family("taskmesh_kept_evicted_total", "counter", "Kept outcomes that had no room any more.").add(
            machine.state.result_cache.evicted
        ),
        Family("taskmesh_dead_letters", "gauge", "Dead letters.").add(len(machine.state.letters.letters)),
        *_sink_families(machine),
        *_journal_families(machine.views.journal),
    ]


def _queue_families(found: Queues) -> list[Family]:
    families = []
    for key, text in QUEUE_HELP.items():
        family = Family(f"taskmesh_queue_{key}", "gauge", text)
        for queue, row in sorted(found.items()):
            family.add(row[key], queue=queue)
        families.append(family)
    return families


def _pool_families(machine: HubMachine) -> list[Family]:
    states = Family("taskmesh_pools", "gauge", "Pool sessions by state.")
    counts = dict.fromkeys(LaneState, 0)
    outstanding = Family("taskmesh_pool_outstanding", "gauge", "Tasks that a pool has.")
    for lane in machine.state.lanes.values():
        counts[lane.state] += 1
        outstanding.add(lane.outstanding, pool=lane.pool)
    for state, count in counts.items():
        states.add(count, state=state.value)
    return [states, outstanding]


def _sink_families(machine: HubMachine) -> list[Family]:
    waiting = Family("taskmesh_sink_outcomes", "gauge", "Outcomes in a sink that are not acknowledged.")
    size = Family("taskmesh_sink_bytes", "gauge", "Bytes of these outcomes.")
    consumers = Family("taskmesh_sink_consumers", "gauge", "Clients that take from a sink.")
    for sink in machine.state.sinks.view():
        labels = {"sink": sink["sink"], **({"key": sink["key"]} if sink["key"] else {})}
        waiting.add(sink["waiting"] + sink["unacknowledged"], **labels)
        size.add(sink["bytes"], **labels)
        consumers.add(sink["consumers"], **labels)
    return [waiting, size, consumers]


def _journal_families(journal: Mapping[str, Any]) -> list[Family]:
    """Return the journal's metrics; none without a journal."""
    if not journal:
        return []
    return [
        Family("taskmesh_journal_connected", "gauge", "Whether the journal can be written.").add(
            journal["state"] == "connected"
        ),
        Family("taskmesh_journal_waiting_bytes", "gauge", "Bytes that wait to be written.").add(
            journal["waiting_bytes"]
        ),
        Family("taskmesh_journal_lag_seconds", "gauge", "How long the last changes took to be written.").add(
            journal["lag"]
        ),
    ]


def _transitions(machine: HubMachine) -> Family:
    family = Family("taskmesh_task_transitions_total", "counter", "What happened to tasks, in which state.")
    for (state, cause), count in sorted(machine.state.ledger.counts.items()):
        family.add(count, state=state.name.lower(), cause=cause.name.lower())
    return family


def _peer_errors(counts: Mapping[str, int]) -> Family:
    family = Family(
        "taskmesh_peer_errors_total", "counter", "What peers did wrong: refused, denied, cut off."
    )
    for kind, count in sorted(counts.items()):
        family.add(count, kind=kind)
    return family


def hub_answers(
    machine: HubMachine, peer_errors: Mapping[str, int], pool: Callable[[], list[Family]] | None = None
) -> dict[str, Callable[[], Any]]:
    """Return the answers to a hub's requests, each called in the loop's thread.

    Args:
        machine: the hub's machine.
        peer_errors: counts of them, by kind.
        pool: returns the metrics of a pool in the same process.
    """
    return {
        "ready": lambda: (True, "ready"),
        "startup": lambda: (True, "started"),
        "metrics": lambda: [
            *hub_families(machine),
            _peer_errors(peer_errors),
            *(pool() if pool is not None else ()),
        ],
        "queues": lambda: queues(machine),
    }
