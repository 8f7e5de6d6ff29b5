"""Promises: tasks without a function, which somebody ends.

A promise is a WAITING record with a key. Everything else is what any task with a key has: several clients may
wait for it, tasks may depend on it, it may expire, and its outcome is kept for those who ask later.
"""

from __future__ import annotations

from msgspec.structs import replace

from taskmesh.hub.machine.books.states import Cause
from taskmesh.hub.machine.collector import Collector
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import PROMISE_NAME, DoneRun, Failed


class Promises:
    """Ends promises by their keys: the first outcome wins."""

    def __init__(self, hub: HubState, collector: Collector) -> None:
        self._hub = hub
        self._collector = collector

    def on_fulfil(self, client: int, fulfil: m.Fulfil, now: float) -> m.Answer:
        """End the promise of a key, or keep its outcome for whoever asks; answer whether this came first."""
        ledger = self._hub.ledger
        key = (PROMISE_NAME, self._hub.owned(client, fulfil.key))
        first = self._hub.result_cache.find(key, now) is None
        if first:
            outcome = self._outcome(client, fulfil)
            user = self._hub.owner(client)
            self._hub.result_cache.keep_for(key, fulfil.keep, outcome, now, user=user)
            record = ledger.by_key(*key)
            if record is not None and record.spec.is_promise:
                if isinstance(outcome, DoneRun):
                    self._collector.finish(record, Cause.FULFIL, outcome)
                else:
                    self._collector.end(record, Cause.FAIL, outcome)
        return m.Answer(fulfil.number, first)

    def _outcome(self, client: int, fulfil: m.Fulfil) -> DoneRun | Failed:
        """Return the outcome as a task's: of an attempt in the client that fulfils the promise."""
        name = self._hub.ledger.account(client).name
        if fulfil.failed is not None:
            return replace(fulfil.failed, kind="exception", retryable=False, worker=name, history=[])
        return DoneRun(0, client, 1, name, [0], [fulfil.payload], 0.0)
