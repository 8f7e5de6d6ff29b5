"""Values in sinks, of Spark's streams: tasks without a function, whose payloads are their outcomes.

Such a task is a WAITING record until its sink has room, as a rule within the step in which it comes. No pool
is needed for it, and it stands in no queue. While it waits it counts among the tasks and bytes of its client,
so a client that puts faster than consumers take is held back as with any other tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, user_of
from taskmesh.hub.machine.books.sinks import MOST_BYTES, MOST_OUTCOMES
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.collector import Collector, bare, of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.runs import DoneRun, Failed

TIDY = 1000
"""Records of a full sink after which those that have been given up are looked for."""


class SinkValues:
    """The values that wait for room in their sinks, in the order in which they have come."""

    def __init__(self, hub: HubState, collector: Collector) -> None:
        self._hub = hub
        self._collector = collector
        self._waiting: dict[str, deque[TaskRecord]] = {}
        self._tidy_at: dict[str, int] = {}
        self._large: dict[str, dict[str, None]] = {}  # sinks that wait for more than their share, by user

    def enter(self, sink: str, records: Iterable[TaskRecord]) -> None:
        """Take in values, which WAIT, and put into their sink what it has room for."""
        waiting = self._waiting.setdefault(sink, deque())
        waiting.extend(records)
        self.go_on(sink)
        if len(waiting) > self._tidy_at.get(sink, TIDY):
            left = self._waiting[sink] = deque(one for one in waiting if one.state is State.WAITING)
            self._tidy_at[sink] = 2 * len(left) + TIDY

    def go_on(self, sink: str) -> None:
        """Put into a sink what it has room for.

        One that is empty takes a value of any size, if no other has more than its share for that reason.
        """
        waiting, sinks = self._waiting.get(sink), self._hub.sinks
        self._large.get(user_of(sink), {}).pop(sink, None)
        if waiting is None:
            return
        room, takes_any = sinks.room(sink), sinks.takes_any(sink)
        run: list[TaskRecord] = []
        bytes_of_run = 0
        while waiting:
            record = waiting[0]
            if record.state is not State.WAITING:  # it was given up
                waiting.popleft()
                continue
            size = len(record.payload) + 32
            if size > room and not takes_any:
                sinks.closed.add(sink)
                if not run and sink not in sinks.filled:
                    self._large.setdefault(user_of(sink), {})[sink] = None
                break
            is_full = bytes_of_run > MOST_BYTES or len(run) >= MOST_OUTCOMES
            if run and (is_full or not _is_of(run[-1], record)):
                self._put(run)
                run, bytes_of_run = [], 0
            run.append(waiting.popleft())
            bytes_of_run += size
            room -= size
            takes_any = False
        if run:
            self._put(run)
        if not waiting:
            del self._waiting[sink]
            self._tidy_at.pop(sink, None)
            sinks.closed.discard(sink)

    def wake(self) -> None:
        """Let the first sink of a user that waits for more than its share look whether it may have that."""
        for user in [user for user in self._large if user not in self._hub.sinks.large]:
            if self._large[user]:
                self.go_on(next(iter(self._large[user])))
            if not self._large[user]:
                del self._large[user]

    def withdraw(self, client: int, seqs: Collection[int] | None = None) -> None:
        """Take values of a client out of their sinks again, unless a consumer has them.

        Args:
            client: the client.
            seqs: its tasks; None for all that are bound to it.
        """
        book = self._hub.sinks.ends.get(client, {})
        given_up: dict[str, set[tuple[int, int]]] = {}
        for seq in list(book) if seqs is None else [seq for seq in seqs if seq in book]:
            outcome = book[seq]
            entry = self._hub.specs.get(outcome.spec) if isinstance(outcome, DoneRun) else None
            if entry is None or not entry.is_sink_value:
                continue
            if seqs is not None or entry.spec.on_client_loss == "cancel":
                sink = self._hub.owned(client, entry.spec.sink)
                given_up.setdefault(sink, set()).add((client, seq))
        for sink, keys in given_up.items():
            self._hub.sinks.withdraw(sink, keys)
            if seqs is None and client in self._hub.clients:  # it is told should it come back
                for _, seq in sorted(keys):
                    self._collector.give(Failed(client, seq, 1, "cancelled"))
            self.go_on(sink)

    def _put(self, records: list[TaskRecord]) -> None:
        """Put values of one client and spec into their sink: their tasks end."""
        ledger, entry, client = self._hub.ledger, records[0].spec, records[0].id >> SEQ_BITS
        spec, name = entry.spec, ledger.account(client).name
        seqs, payloads = [record.id & SEQ_MASK for record in records], [record.payload for record in records]
        run = DoneRun(entry.number, client, 1, name, seqs, payloads, 0.0)
        if spec.sink:
            self._hub.sinks.put(self._hub.owned(client, spec.sink), spec.name, run)
        else:
            self._collector.acknowledged(bare(run))
        for record in records:
            ledger.move(record, Cause.FULFIL)
            if record.extra is None:
                ledger.drop(record)
            else:
                self._end(record, run)

    def _end(self, record: TaskRecord, run: DoneRun) -> None:
        """End a task that others wait for."""
        payload = record.payload
        self._hub.dependencies.succeeded(record, payload, 1)
        for waiter in self._hub.ledger.drop(record):
            if waiter != record.id:
                alone = DoneRun(run.spec, 0, 1, run.worker, [], [payload], 0.0)
                self._collector.give(of_task(alone, waiter))


def _is_of(last: TaskRecord, record: TaskRecord) -> bool:
    return last.spec is record.spec and last.id >> SEQ_BITS == record.id >> SEQ_BITS
