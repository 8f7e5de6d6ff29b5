"""The state of a hub: all that it knows, and the actions that it wants performed next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from taskmesh.core.actions import HubAction, LogEvent, Publish, SendClient
from taskmesh.core.ids import house_of, owned
from taskmesh.hub.machine.books.client_session import ClientSession
from taskmesh.hub.machine.books.dead_letters import DeadLetters
from taskmesh.hub.machine.books.dependencies import Dependencies
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.ledger import Ledger
from taskmesh.hub.machine.books.limits import Limits
from taskmesh.hub.machine.books.result_cache import ResultCache
from taskmesh.hub.machine.books.sinks import Sinks
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.recovery import QUIET_BEATS, Recovery
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.unclaimed import Unclaimed
from taskmesh.messages.journal_entries import HOUSE, JournalChunk, JournalHouse
from taskmesh.messages.mesh_messages import ToClient, ToPool
from taskmesh.messages.runs import Spec

EVENTS_KEPT = 1000
EPOCH_BITS = 20
"""A hub with a journal numbers its own tasks from its epoch, this many bits to the left: those of the hubs
before it, which go on under the same client, have lower numbers."""


class House:
    """The clients that a hub is to itself, one for each user: their tasks are the firings of schedules.

    Args:
        epoch: the hub's epoch.
        journal: the hub's journal, if it has one: the next hub is the same clients then.

    Attributes:
        clients: their ids, by user; those that have had tasks.
    """

    def __init__(self, epoch: int, journal: JournalChanges | None) -> None:
        self.clients: JournaledDict[str, int] = JournaledDict(
            journal,
            HOUSE,
            encode=lambda user, client: JournalHouse(client, user),
            decode=lambda _, entry: (entry.user, entry.client),
        )
        self._epoch = epoch
        self._first = house_of(epoch)  # it has had no task yet, perhaps, and is nobody else's
        self._seq = 0 if journal is None else epoch << EPOCH_BITS

    def is_own(self, client: int) -> bool:
        """Return True if this is no client that somebody else could be."""
        return client == self._first or client in self.clients.values()

    def draw(self, user: str, is_taken: Callable[[int], bool]) -> tuple[int, int]:
        """Return the client and the counter of the next task for a user's schedule.

        Args:
            user: the user.
            is_taken: tells of an id that somebody has who has guessed it.
        """
        if user not in self.clients:
            numbers = (house_of(self._epoch, user, number) for number in count())
            self.clients[user] = next(client for client in numbers if not is_taken(client))
        self._seq += 1
        return self.clients[user], self._seq


class HubState:
    """The books of a hub; its parts share them, and each part has its own besides.

    Attributes:
        config: the settings.
        now: the time of the event that is being handled.
        ledger: every task on its way.
        dependencies: the edges between them.
        specs: those that the hub knows, by number.
        clients: sessions of clients, by client.
        lanes: sessions of pools, by session; serving: by queue those that serve it.
        unclaimed: tasks of an earlier hub that no client of this one has asked for.
        recovery: the wait for the pools of the hub before.
        result_cache: outcomes that are kept for whoever asks by a key or an id.
        journal: the tasks that are written down; None without a journal.
        letters: tasks that have ended badly while nobody waited for them.
        sinks: outcomes that go to consumers.
        house: the hub's own clients.
        late: what the journal has of tasks whose upstream is unknown, by client: it may come with that.
        unwritten: clients of whose Submits the journal has not all.
        clock_offset: the time on the wall less the hub's own; None before the shell has told it.
        acks_due: clients that are to hear how many of their Submits are in the ledger, and by when.
        news: clients that may be sent outcomes.
        out: what is to be done, in order.
        events: what was logged last: its number, the time, and what.
    """

    def __init__(self, config: HubSettings, now: float) -> None:
        self.config = config
        self.now = now
        self.journal = Journal() if config.journaled else None
        lease = 0.0 if config.first and self.journal is None else config.lease
        self.ledger = Ledger(Limits(now, lease, self.journal, self.offset))
        self.dependencies = Dependencies(self.ledger, config.client_max_bytes, config.max_bytes)
        self.specs: dict[int, SpecEntry] = {}
        self.clients: dict[int, ClientSession] = {}
        self.lanes: dict[int, Lane] = {}
        self.serving: dict[str, dict[int, Lane]] = {}
        self.unclaimed = Unclaimed(config, self.ledger, now)
        until = now if config.first else now + config.lease
        self.recovery = Recovery(self.ledger, QUIET_BEATS * config.beat, until)
        self.result_cache = ResultCache(config.kept_bytes, self.journal, self.offset)
        self.letters = DeadLetters(config.kept_bytes, self.journal)
        self.sinks = Sinks(config, self.ledger.weigh)
        self.house = House(config.epoch, self.journal)
        self.late: dict[int, list[JournalChunk]] = {}
        self.unwritten: dict[int, ClientSession] = {}
        self.clock_offset: float | None = None
        self.acks_due: dict[int, float] = {}
        self.news: set[int] = set()
        self.out: list[HubAction] = []
        self.events: deque[tuple[int, float, LogEvent]] = deque(maxlen=EVENTS_KEPT)
        self._event_count = 0

    @property
    def wall(self) -> float:
        """The time on the wall, in seconds since the epoch."""
        return self.now + self.offset()

    def offset(self) -> float:
        """Return the time on the wall less the hub's own, 0 before it is known."""
        return self.clock_offset or 0.0

    def owner(self, client: int) -> str:
        """Return the user whose a client's tasks are; empty without keys."""
        account = self.ledger.accounts.get(client)
        return account.owner if account is not None else ""

    def owned(self, client: int, name: str) -> str:
        """Return the name under which the hub keeps what a client calls so."""
        return owned(self.owner(client), name)

    def add_spec(self, number: int, spec: Spec) -> None:
        """Take in a spec that no task has yet."""
        self.specs[number] = SpecEntry(number, spec)
        self.ledger.resting.add(self.specs[number])

    def open_lane(self, lane: Lane) -> None:
        """Enter the lane of a new session, the highest one yet."""
        self.lanes[lane.session] = lane
        for queue in lane.queues:
            self.serving.setdefault(queue, {})[lane.session] = lane

    def end_lane(self, lane: Lane) -> None:
        del self.lanes[lane.session]
        for queue in lane.queues:
            others = self.serving[queue]
            del others[lane.session]
            if not others:
                del self.serving[queue]

    def send(self, client: int, message: ToClient) -> None:
        self.out.append(SendClient(client, message))

    def publish(self, pool: str, message: ToPool) -> None:
        """Publish a message to a pool, or to all of them if `pool` is empty."""
        self.out.append(Publish(pool, message))

    def log(self, kind: str, fields: dict[str, object]) -> None:
        """Log an event, and keep it for those who ask later."""
        event = LogEvent(kind, fields)
        self._event_count += 1
        self.events.append((self._event_count, self.now, event))
        self.out.append(event)
