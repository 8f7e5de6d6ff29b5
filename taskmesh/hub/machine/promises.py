"""Promises: tasks without a function, which somebody ends.

A promise is a WAITING record with a key. Everything else is what any task with a key has: several clients may
wait for it, tasks may depend on it, it may expire, and its outcome is kept for those who ask later.
"""

from __future__ import annotations

from msgspec.structs import replace

from taskmesh.hub.machine import collector
from taskmesh.hub.machine.books.states import Cause
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import PROMISE_NAME, DoneRun, Failed


def on_fulfil(hub: HubState, client: int, fulfil: m.Fulfil, now: float) -> m.Answer:
    """End the promise of a key, or keep its outcome for whoever asks; answer whether this came first."""
    ledger = hub.ledger
    key = (PROMISE_NAME, hub.owned(client, fulfil.key))
    first = hub.result_cache.find(key, now) is None
    if first:
        outcome = _outcome(hub, client, fulfil)
        user = hub.owner(client)
        hub.result_cache.keep_for(key, fulfil.keep, outcome, now, user=user)
        record = ledger.by_key(*key)
        if record is not None and record.spec.is_promise:
            if isinstance(outcome, DoneRun):
                collector.finish(hub, record, Cause.FULFIL, outcome)
            else:
                collector.end(hub, record, Cause.FAIL, outcome)
    return m.Answer(fulfil.number, first)


def _outcome(hub: HubState, client: int, fulfil: m.Fulfil) -> DoneRun | Failed:
    """Return the outcome as a task's: of an attempt in the client that fulfils the promise."""
    name = hub.ledger.account(client).name
    if fulfil.failed is not None:
        return replace(fulfil.failed, kind="exception", retryable=False, worker=name, history=[])
    return DoneRun(0, client, 1, name, [0], [fulfil.payload], 0.0)
