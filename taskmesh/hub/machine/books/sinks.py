"""Sinks: outcomes of tasks that go to whoever takes them, and are kept until a consumer acknowledges them.

A sink is a queue that any number of clients take from: its consumers. Each is sent as many bytes as it gives
credit for, in turn, so that none is starved. What a consumer has not acknowledged when it goes, or falls
silent, goes to others: at least once. Acknowledged is an outcome once; its task's client hears of the end
then, and submits the task again to a hub that has died before.

Both directions of the link to a consumer are numbered and repeated (`link.link`): deliveries, and reports
with acknowledgements, which name tasks: of those that a consumer does not hold they say nothing. A consumer
that comes over a new link begins anew with a higher generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import groupby, islice
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from taskmesh.core.actions import SendClient
from taskmesh.core.ids import plain, user_of
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.link.link import ReceiveWindow, SendWindow, size_of, size_of_failure
from taskmesh.messages.mesh_messages import MOST_SINKS, SinkDeliver, SinkReport, SinkReportAck
from taskmesh.messages.runs import DoneRun, Failed
from taskmesh.messages.status import SinkStatus

MOST_BYTES = 1 << 20
"""Bytes after which a delivery is closed and the next consumer has its turn."""
MOST_OUTCOMES = 1000
"""Outcomes of one delivery at most."""
MOST_LISTED = 1000
"""Sinks that a view lists."""
RESEND_AFTER = 2.0
"""Seconds without progress after which deliveries that have not arrived are sent again."""
Ended: TypeAlias = "DoneRun | Failed"


Task: TypeAlias = tuple[int, int]
"""A task by client and counter."""


class Unacknowledged(NamedTuple):
    """An outcome that a consumer has and has not acknowledged: the run, or failure, and its place there."""

    name: str
    outcome: Ended
    place: int


class Consumer:
    """One client that takes from a sink.

    Attributes:
        client: the client.
        generation: rises whenever it begins anew.
        credit: bytes that it holds unacknowledged, at most one outcome more.
        size: bytes that it holds.
        heard: the time of its last report.
        held: what it has not acknowledged, by task, oldest first.
        deliveries: those that have not arrived.
        reports: numbers of its reports.
        unwritten: its reports of which the journal does not have all yet, with the numbers of its changes.
    """

    __slots__ = (
        "client",
        "credit",
        "deliveries",
        "generation",
        "heard",
        "held",
        "reports",
        "size",
        "unwritten",
    )

    def __init__(self, client: int, generation: int, now: float) -> None:
        self.client = client
        self.generation = generation
        self.credit = 0
        self.size = 0
        self.heard = now
        self.held: dict[Task, Unacknowledged] = {}
        self.deliveries: SendWindow[SinkDeliver] = SendWindow()
        self.reports = ReceiveWindow(0)
        self.unwritten: deque[tuple[int, int]] = deque()

    @property
    def taken(self) -> int:
        """Number of its last report that it may believe to be taken in."""
        return self.unwritten[0][0] - 1 if self.unwritten else self.reports.to

    def hold(self, name: str, outcome: Ended) -> int:
        """Note that outcomes are on their way to it; return their bytes."""
        for place, task in enumerate(keys_of(outcome)):
            self.held[task] = Unacknowledged(name, outcome, place)
        size = size_of_ended(outcome)
        self.size += size
        return size


class SinkQueue:
    """One sink.

    Attributes:
        name: its name, as `owned` has it.
        waiting: outcomes that no consumer has, with their tasks' names, oldest first.
        count: the number of these.
        size: bytes of all that is not acknowledged.
        consumers: by client; the next one whose turn it is comes first.
        acknowledged: how many outcomes have been, for people.
        given_up: tasks whose outcomes consumers have and nobody else is to get.
    """

    __slots__ = ("acknowledged", "consumers", "count", "given_up", "name", "size", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[tuple[str, Ended]] = deque()
        self.count = 0
        self.size = 0
        self.consumers: dict[int, Consumer] = {}
        self.acknowledged = 0
        self.given_up: set[Task] = set()

    def put(self, name: str, outcome: Ended) -> None:
        self.waiting.append((name, outcome))
        self.count += _count(outcome)
        self.size += size_of_ended(outcome)

    def acknowledge(self, consumer: Consumer, tasks: Iterable[Task]) -> list[Ended]:
        """Take those that a consumer holds off its hands, and return their outcomes."""
        known = [task for task in dict.fromkeys(tasks) if task in consumer.held]
        self.given_up.difference_update(known)
        taken = [consumer.held.pop(task) for task in known]
        size = sum(map(size_at, taken))
        consumer.size -= size
        self.size -= size
        return [outcome for _, outcome in _joined(taken)]

    def take_back(self, consumer: Consumer) -> list[Ended]:
        """A consumer is gone: what it has not acknowledged comes first; return what was given up of that."""
        self.consumers.pop(consumer.client, None)
        dropped = self.acknowledge(consumer, [task for task in consumer.held if task in self.given_up])
        self.waiting.extendleft(reversed(_joined(consumer.held.values())))
        self.count += len(consumer.held)
        return dropped

    def withdraw(self, keys: Set[Task]) -> list[Ended]:
        """Take out outcomes that no consumer has; of the others note that they are given up."""
        left: list[Unacknowledged] = []
        gone: list[Unacknowledged] = []
        for name, outcome in self.waiting:
            for place, task in enumerate(keys_of(outcome)):
                (gone if task in keys else left).append(Unacknowledged(name, outcome, place))
        self.waiting = deque(_joined(left))
        self.count = len(left)
        self.size -= sum(map(size_at, gone))
        for consumer in self.consumers.values():
            self.given_up.update(consumer.held.keys() & keys)
        return [outcome for _, outcome in _joined(gone)]

    def next_consumer(self) -> Consumer | None:
        """Return the consumer whose turn it is among those that have credit."""
        for client, consumer in self.consumers.items():
            if consumer.size < consumer.credit:
                del self.consumers[client]
                self.consumers[client] = consumer
                return consumer
        return None

    def delivery(self, consumer: Consumer, now: float) -> SinkDeliver:
        """Return the next delivery to a consumer; something waits."""
        window = consumer.deliveries
        message = SinkDeliver(plain(self.name), consumer.generation, window.next, reports=consumer.taken)
        size = count = 0
        while self.waiting and size < MOST_BYTES and count < MOST_OUTCOMES:
            room = consumer.credit - consumer.size
            if room <= 0:
                break
            name, outcome = self._take(room, MOST_OUTCOMES - count)
            size += consumer.hold(name, outcome)
            count += _count(outcome)
            if isinstance(outcome, DoneRun):
                message.done.append(outcome)
                message.names.append(name)
            else:
                message.failed.append(outcome)
                message.failed_names.append(name)
        self.count -= count
        window.append(message, size, now, sent=True)
        return message

    def _take(self, room: int, most: int) -> tuple[str, Ended]:
        """Take the outcomes that wait first: of a run those that there is room for, at least one."""
        name, outcome = self.waiting.popleft()
        if isinstance(outcome, Failed) or (size_of_ended(outcome) <= room and len(outcome.seqs) <= most):
            return name, outcome
        fits, size = 0, 0
        for payload in outcome.payloads[:most]:
            size += len(payload) + 32
            if fits and size > room:
                break
            fits += 1
        if fits < len(outcome.seqs):
            self.waiting.appendleft((name, outcome.part(range(fits, len(outcome.seqs)))))
        return name, outcome.part(range(fits))


class Sinks:
    """All sinks of a hub.

    Args:
        config: the hub's settings.
        weigh: counts bytes of a client's outcomes here.

    Attributes:
        sinks: by name.
        filled: names of those that hold something.
        closed: names of those that are full: no more tasks start whose outcomes go there.
        news: names of those of which something may be sent.
        ends: how tasks have ended whose clients have not heard of it, by client and counter, without results.
        large: by user, the one of his that holds more than its share, since it was empty when that came.
    """

    def __init__(self, config: HubSettings, weigh: Callable[[int, int], None]) -> None:
        self._config = config
        self._weigh = weigh
        self.sinks: dict[str, SinkQueue] = {}
        self.filled: set[str] = set()
        self.closed: set[str] = set()
        self.news: set[str] = set()
        self.ends: dict[int, dict[int, Ended]] = {}
        self._unwritten: dict[tuple[str, int], Consumer] = {}
        self._over: dict[int, int] = {}  # by client: the last generation that has ended
        self.large: dict[str, str] = {}
        self._taken: dict[int, set[str]] = {}

    # --- outcomes -----------------------------------------------------------------------------------------

    def put(self, sink: str, name: str, outcome: Ended) -> None:
        size = size_of_ended(outcome)
        if self.room(sink) < size and self.takes_any(sink):
            self.large[user_of(sink)] = sink
        self._sink(sink).put(name, outcome)
        self._weigh(outcome.client, size)
        self.ends.setdefault(outcome.client, {}).update(dict.fromkeys(_seqs(outcome), _bare(outcome)))
        self._changed(sink)

    def report(self, client: int, report: SinkReport, now: float) -> tuple[Consumer | None, list[Ended]]:
        """A consumer opens a sink, acknowledges outcomes, gives credit, or closes it.

        The report names the sink as `owned` has it.

        Returns:
            The consumer, None if it is not known, and what it has acknowledged, as outcomes of runs without
            results.
        """
        sink = self._sink(report.sink)
        consumer = sink.consumers.get(client)
        if consumer is not None and consumer.generation < report.generation:
            self._take_back(sink, consumer)
            consumer = None
        is_new = report.generation > self._over.get(client, 0)
        if consumer is None and report.number == 1 and is_new and self._may_open(client):
            consumer = sink.consumers[client] = Consumer(client, report.generation, now)
            self._taken.setdefault(client, set()).add(sink.name)
        if consumer is None:  # it has closed, and waits to hear that all is taken in
            consumer = self._unwritten.get((sink.name, client))
        if consumer is None or consumer.generation != report.generation:
            self._changed(sink.name)
            return None, []
        consumer.heard = now
        consumer.credit = report.credit
        consumer.deliveries.acknowledge(report.received, now)
        acked: list[Ended] = []
        if report.number and consumer.reports.take(report.number):
            acked = sink.acknowledge(consumer, report.acked)
            sink.acknowledged += sum(map(_count, acked))
            if report.closed:  # the last one: all that it has acknowledged before is here
                self._take_back(sink, consumer)
        self._changed(sink.name)
        self._settle(acked)
        return consumer, [_bare(each) for each in acked]

    def told(self, report: SinkReport, consumer: Consumer | None, after: int) -> SinkReportAck:
        """Return the answer to a report.

        Args:
            report: the report.
            consumer: whose it is, None if it is not known.
            after: the number of the journal's changes that have what it acknowledges; 0 if they are written.
        """
        if consumer is None:
            return SinkReportAck(plain(report.sink), report.generation, report.number, known=False)
        if after:
            consumer.unwritten.append((report.number, after))
            self._unwritten[report.sink, consumer.client] = consumer
        return SinkReportAck(plain(report.sink), report.generation, consumer.taken, echo=report.sent)

    def written(self, number: int) -> list[SendClient]:
        """The journal has the changes up to a number: tell consumers which of their reports are taken in."""
        sends: list[SendClient] = []
        for (name, client), consumer in list(self._unwritten.items()):
            before, unwritten = consumer.taken, consumer.unwritten
            while unwritten and unwritten[0][1] <= number:
                unwritten.popleft()
            if not unwritten:
                del self._unwritten[name, client]
            if consumer.taken > before:
                told = SinkReportAck(plain(name), consumer.generation, consumer.taken)
                sends.append(SendClient(client, told))
        return sends

    def _may_open(self, client: int) -> bool:
        return len(self._taken.get(client, ())) < MOST_SINKS

    def _settle(self, ended: list[Ended]) -> None:
        """These have left their sinks: the clients of their tasks hear now how those have ended."""
        for outcome in ended:
            self._weigh(outcome.client, -size_of_ended(outcome))
            book = self.ends.get(outcome.client, {})
            for seq in _seqs(outcome):
                book.pop(seq, None)
            if not book:
                self.ends.pop(outcome.client, None)

    def unacknowledged(self, client: int, seqs: Iterable[int]) -> list[tuple[Ended, int]]:
        """Return how those of a client's tasks have ended whose outcomes are in sinks."""
        book = self.ends.get(client)
        return [(book[seq], seq) for seq in seqs if seq in book] if book else []

    def room(self, name: str) -> int:
        """Return how many bytes more a sink may hold: all that hold something share what the hub may keep."""
        sink = self.sinks.get(name)
        others = len(self.filled) - (name in self.filled)
        return self._config.result_bytes // (others + 1) - (sink.size if sink is not None else 0)

    def takes_any(self, name: str) -> bool:
        """Return True if a sink takes an outcome of any size: it is empty, and its user has no such one."""
        sink = self.sinks.get(name)
        return (sink is None or not sink.size) and self.large.get(user_of(name), name) == name

    def leave(self, client: int) -> None:
        """A client is gone: others get what it has not acknowledged."""
        for name in sorted(self._taken.get(client, ())):
            sink = self.sinks[name]
            self._take_back(sink, sink.consumers[client])
            self._changed(name)
        self._over.pop(client, None)

    def _take_back(self, sink: SinkQueue, consumer: Consumer) -> None:
        """End a consumer: an opening that comes again does not open its generation with other outcomes."""
        self._over[consumer.client] = max(consumer.generation, self._over.get(consumer.client, 0))
        names = self._taken.get(consumer.client, set())
        names.discard(sink.name)
        if not names:
            self._taken.pop(consumer.client, None)
        self._settle(sink.take_back(consumer))

    def _consumers(self) -> Iterator[tuple[SinkQueue, Consumer]]:
        """Yield all consumers, each with its sink: those without one are not looked at."""
        for client, names in self._taken.items():
            for name in names:
                yield self.sinks[name], self.sinks[name].consumers[client]

    def withdraw(self, name: str, keys: Set[Task]) -> None:
        """Tasks are given up: no consumer gets their outcomes any more."""
        sink = self.sinks.get(name)
        if sink is not None:
            self._settle(sink.withdraw(keys))
            self._changed(name)

    def deliveries(self, now: float) -> list[SendClient]:
        sends = []
        for name in sorted(self.news):  # a seed plays the same each time
            sink = self.sinks.get(name)
            while sink is not None and sink.waiting and (consumer := sink.next_consumer()) is not None:
                sends.append(SendClient(consumer.client, sink.delivery(consumer, now)))
        self.news.clear()
        return sends

    def sweep(self, now: float) -> list[SendClient]:
        """Take back from consumers that have been silent for a lease; return what is to be sent once more."""
        sends = []
        for sink, consumer in sorted(self._consumers(), key=lambda each: (each[0].name, each[1].client)):
            if now - consumer.heard >= self._config.lease:
                self._take_back(sink, consumer)
                self._changed(sink.name)
            elif now >= consumer.deliveries.deadline(RESEND_AFTER):
                consumer.deliveries.repeat(now)
                sends += [SendClient(consumer.client, each) for each in consumer.deliveries.send()]
        return sends

    def extend(self, gap: float) -> None:
        """The hub itself stood still: no consumer could be heard."""
        for _, consumer in self._consumers():
            consumer.heard += gap

    def view(self, most: int = MOST_LISTED) -> list[SinkStatus]:
        """List sinks, at most so many: those that are there for longest."""
        return [
            {
                "sink": plain(sink.name),
                "key": user_of(sink.name) or None,
                "waiting": sink.count,
                "unacknowledged": sum(len(consumer.held) for consumer in sink.consumers.values()),
                "bytes": sink.size,
                "consumers": len(sink.consumers),
                "acknowledged": sink.acknowledged,
                "full": sink.name in self.closed,
            }
            for sink in islice(self.sinks.values(), most)
        ]

    def _sink(self, name: str) -> SinkQueue:
        found = self.sinks.get(name)
        if found is None:
            found = self.sinks[name] = SinkQueue(name)
        return found

    def _changed(self, name: str) -> None:
        """Look at a sink that has changed: forget it if nothing is there, and nobody."""
        sink = self.sinks[name]
        (self.filled.add if sink.size else self.filled.discard)(name)
        if not (sink.size or sink.consumers):
            del self.sinks[name]
            self.closed.discard(name)
        elif sink.waiting:
            self.news.add(name)
        if self.large and self.large.get(user_of(name)) == name and self.room(name) >= 0:
            del self.large[user_of(name)]


class SinkValues:
    """Values that wait for room in their sinks.

    Attributes:
        waiting: by sink, in the order in which they have come.
        tidy_at: by full sink, with how many records those that have been given up are looked for.
        large: sinks that wait for more than their share, by user.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, deque[TaskRecord]] = {}
        self.tidy_at: dict[str, int] = {}
        self.large: dict[str, dict[str, None]] = {}


def _seqs(outcome: Ended) -> list[int]:
    return outcome.seqs if isinstance(outcome, DoneRun) else [outcome.seq]


def _count(outcome: Ended) -> int:
    return len(outcome.seqs) if isinstance(outcome, DoneRun) else 1


def keys_of(outcome: Ended) -> list[Task]:
    """Return the tasks of an outcome."""
    return [(outcome.client, seq) for seq in _seqs(outcome)]


def size_of_ended(outcome: Ended) -> int:
    """Return the bytes that an outcome is counted for."""
    return size_of(outcome) if isinstance(outcome, DoneRun) else size_of_failure(outcome)


def size_at(held: Unacknowledged) -> int:
    """Return the bytes of one task's outcome."""
    outcome = held.outcome
    return (
        len(outcome.payloads[held.place]) + 32 if isinstance(outcome, DoneRun) else size_of_failure(outcome)
    )


def _joined(held: Iterable[Unacknowledged]) -> list[tuple[str, Ended]]:
    """Join outcomes of one run that follow each other, with their tasks' names."""
    joined: list[tuple[str, Ended]] = []
    for _, group in groupby(held, lambda each: id(each.outcome)):
        (name, outcome, place), *others = group
        if isinstance(outcome, DoneRun) and len(others) + 1 < len(outcome.seqs):
            outcome = outcome.part([place, *[each.place for each in others]])
        joined.append((name, outcome))
    return joined


def _bare(outcome: Ended) -> Ended:
    """Return a success without its results, which the consumer has."""
    return replace(outcome, payloads=[b""] * len(outcome.seqs)) if isinstance(outcome, DoneRun) else outcome
