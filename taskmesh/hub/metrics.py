"""Metrics and probes of a hub, for the side port; nothing here looks at every task, so polling is cheap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from taskmesh.http.metrics import QUEUE_HELP, Family, Times
from taskmesh.hub.machine import clients
from taskmesh.hub.machine.books.lanes import LaneState
from taskmesh.hub.machine.books.ledger import states_of
from taskmesh.hub.machine.figures.functions import OTHER, FunctionFigures, Functions, Histogram
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.messages.status import JournalStatus

MOST_NAMES = 50
"""Functions with metrics of their own."""
EACH = 4
"""Steps of the bounds of a histogram that Prometheus gets: each is four times the one before."""


def queues(machine: HubMachine) -> dict[str, dict[str, int]]:
    """Return depth, running, pools, slots (see QUEUE_HELP) of queues that have pools or had tasks lately."""
    found: dict[str, dict[str, int]] = {}

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


def hub_families(machine: HubMachine, peer_errors: Mapping[str, int]) -> list[Family]:
    """Return the metrics of a hub; `peer_errors` are counts of them, by kind."""
    hub, told = machine.state, machine.state.diagnostics
    ledger, lanes, cache = hub.ledger, hub.lanes.values(), hub.result_cache
    found = [
        Family(
            f"taskmesh_queue_{key}",
            text,
            [({"queue": queue}, row[key]) for queue, row in sorted(queues(machine).items())],
        )
        for key, text in QUEUE_HELP.items()
    ]
    states = [({"state": each.value}, sum(lane.state is each for lane in lanes)) for each in LaneState]
    happened: Counter[tuple[str, str]] = Counter()
    for (state, cause), count in sorted(ledger.counts.items()):
        happened[state.word, cause.name.lower()] += count
    transitions = [({"state": word, "cause": cause}, count) for (word, cause), count in happened.items()]
    present = sum(session.present for session in clients.programs(hub))
    finished = ledger.accepted - sum(states_of(ledger).values())
    found += [
        Family("taskmesh_pools", "Pool sessions by state.", states),
        Family(
            "taskmesh_pool_outstanding",
            "Tasks that a pool has.",
            [({"pool": lane.pool}, lane.outstanding) for lane in lanes],
        ),
        Family("taskmesh_tasks_accepted_total", "Tasks taken in.", ledger.accepted),
        Family("taskmesh_tasks_finished_total", "Tasks with an outcome.", finished),
        Family("taskmesh_tasks_max", "Unfinished tasks that the hub takes at most.", hub.config.max_tasks),
        Family("taskmesh_task_transitions_total", "What happened to tasks, in which state.", transitions),
        Family("taskmesh_tasks_bytes", "Bytes of arguments in the ledger.", ledger.size),
        Family("taskmesh_tasks_orphaned", "Tasks whose client has left.", clients.orphans(hub)),
        Family("taskmesh_clients", "Clients with an open session.", present),
        Family("taskmesh_results_duplicate_total", "Results of tasks that had one.", told.duplicates),
        Family("taskmesh_results_stray_total", "Results from pools that did not have the task.", told.strays),
        Family("taskmesh_failures_stale_total", "Failures of attempts that did not count.", told.stale),
        Family("taskmesh_pools_refused", "Pools that were refused, by name.", len(told.refused)),
        Family("taskmesh_kept_outcomes", "Outcomes that are kept for whoever asks.", len(cache)),
        Family("taskmesh_kept_evicted_total", "Kept outcomes that had no room any more.", cache.evicted),
        Family("taskmesh_dead_letters", "Dead letters.", len(hub.letters.letters)),
        *_function_families(told.functions),
        *_sink_families(machine),
        *_journal_families(told.journal),
        Family(
            "taskmesh_peer_errors_total",
            "What peers did wrong: refused, denied, cut off.",
            [({"kind": kind}, count) for kind, count in sorted(peer_errors.items())],
        ),
    ]
    return found


def _function_families(functions: Functions) -> list[Family]:
    """Return the figures of the functions that have used most time, and those of the others together."""
    named = [each for each in functions.busiest(len(functions.by_name)) if each.name != OTHER]
    own, rest = named[:MOST_NAMES], [*named[MOST_NAMES:], *filter(None, [functions.by_name.get(OTHER)])]
    if rest:
        own.append(FunctionFigures(OTHER))
        for each in rest:
            own[-1].add(each)
    run = [({"task": each.name}, _times(each.run)) for each in own]
    wait = [({"task": each.name}, _times(each.wait)) for each in own]
    ends = [
        ({"task": each.name, "outcome": kind}, count)
        for each in own
        for kind, count in [("succeeded", each.succeeded), *sorted(each.ended.items())]
    ]
    return [
        Family("taskmesh_task_run_seconds", "Time that successful tasks took in their slots.", run),
        Family("taskmesh_task_wait_seconds", "Time from acceptance to the first start.", wait),
        Family("taskmesh_task_outcomes_total", "Tasks by how they have ended.", ends),
    ]


def _times(histogram: Histogram) -> Times:
    return Times(histogram.cumulative(EACH), histogram.count, histogram.total)


def _sink_families(machine: HubMachine) -> list[Family]:
    sinks = [
        ({"sink": sink["sink"], **({"key": sink["key"]} if sink["key"] else {})}, sink)
        for sink in machine.state.sinks.view()
    ]
    return [
        Family(
            "taskmesh_sink_outcomes",
            "Outcomes in a sink that are not acknowledged.",
            [(labels, sink["waiting"] + sink["unacknowledged"]) for labels, sink in sinks],
        ),
        Family(
            "taskmesh_sink_bytes",
            "Bytes of these outcomes.",
            [(labels, sink["bytes"]) for labels, sink in sinks],
        ),
        Family(
            "taskmesh_sink_consumers",
            "Clients that take from a sink.",
            [(labels, sink["consumers"]) for labels, sink in sinks],
        ),
    ]


def _journal_families(journal: JournalStatus | None) -> list[Family]:
    """Return the journal's metrics; none without a journal."""
    if not journal:
        return []
    connected, waiting = journal["state"] == "connected", journal["waiting_bytes"]
    return [
        Family("taskmesh_journal_connected", "Whether the journal can be written.", connected),
        Family("taskmesh_journal_waiting_bytes", "Bytes that wait to be written.", waiting),
        Family(
            "taskmesh_journal_lag_seconds", "How long the last changes took to be written.", journal["lag"]
        ),
    ]


def hub_answers(
    machine: HubMachine, peer_errors: Mapping[str, int], pool: Callable[[], list[Family]]
) -> dict[str, Callable[[], object]]:
    """Return the answers to a hub's requests, each called in the loop's thread.

    Args:
        machine: the hub's machine.
        peer_errors: counts of them, by kind.
        pool: returns the metrics of a pool in the same process.
    """
    return {
        "GET /readyz": lambda: (True, "ready"),
        "GET /startupz": lambda: (True, "started"),
        "GET /metrics": lambda: [*hub_families(machine, peer_errors), *pool()],
        "GET /v1/queues": lambda: {"queues": queues(machine)},
    }
