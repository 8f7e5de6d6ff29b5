"""The state of a hub: all that it knows, and the actions that it wants performed next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from taskmesh.core.actions import HubAction, LogEvent, Publish, SendClient
from taskmesh.core.ids import house_of, owned
from taskmesh.hub.machine.books.client_session import ClientSession
from taskmesh.hub.machine.books.clients import Cancellations, Due, KnownClients
from taskmesh.hub.machine.books.dead_letters import DeadLetters
from taskmesh.hub.machine.books.dependencies import Dependencies
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.ledger import Ledger
from taskmesh.hub.machine.books.limits import Limits
from taskmesh.hub.machine.books.result_cache import ResultCache
from taskmesh.hub.machine.books.schedule import Schedules
from taskmesh.hub.machine.books.sinks import Sinks, SinkValues
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.figures.diagnostics import Diagnostics
from taskmesh.hub.machine.recovery import QUIET_BEATS, Recovery
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.unclaimed import Awaited, Unclaimed
from taskmesh.messages.journal_entries import HOUSE, JournalHouse
from taskmesh.messages.mesh_messages import Hello, ToClient, ToPool
from taskmesh.messages.runs import Spec

EPOCH_BITS = 20
"""A hub with a journal numbers its own tasks from its epoch, this many bits to the left: those of the hubs
before it, which go on under the same client, have lower numbers."""
NAMES_KEPT = 1000
MOST_DIED = 100
"""Pools thought to be dead of which it is known what they had, should they come back after all."""
MOST_FORMER = 1000
"""Processes of which the last session is remembered: what they were given in it they may go on with."""
MOST_DESIRED = 1000
"""Pools that are waited for: most come back within minutes, or never."""
GIVEN_UP = 200_000
"""Attempts of sessions that are over whose late success still counts."""

T = TypeVar("T")


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


class KnownPools:
    """Knowledge of pools beside the lanes of their sessions.

    Attributes:
        by_name: the newest session of each name.
        sessions: how many there have been.
        hellos: by name the process that said Hello last, and the number of that.
        waiting: processes that wait for a name in use, by the session that has it, and since when.
        died: what processes had that are thought to be dead, should they come back after all.
        former: by name and process its user and token, its last session and that one's first epoch: what it
            was given there it may go on with.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.sessions = 0
        self.hellos: dict[str, tuple[int, int]] = {}
        self.waiting: dict[tuple[int, int], float] = {}
        self.died: dict[tuple[str, int], list[TaskRecord]] = {}
        self.former: dict[tuple[str, int], tuple[str, bytes, int, int]] = {}
        self._wishes: dict[tuple[str, int], str] = {}
        self._given_up: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._given_up_count = 0

    def said_hello(self, hello: Hello) -> None:
        self.hellos[hello.pool] = (hello.instance, hello.number)
        if len(self.hellos) > NAMES_KEPT:
            self.hellos = {pool: at for pool, at in self.hellos.items() if pool in self.by_name}

    def keep_wish(self, lane: Lane) -> None:
        """A session is over. What its process has not obeyed yet is said again should that come back.

        One that takes its name meanwhile does not obey it.
        """
        if lane.wished:
            _keep(self._wishes, lane, lane.wished, MOST_DESIRED)

    def take_wish(self, pool: str, instance: int) -> str:
        """A pool has a session again: what is still wanted of it, or empty."""
        return self._wishes.pop((pool, instance), "")

    def keep_dead(self, lane: Lane, held: list[TaskRecord]) -> None:
        _keep(self.died, lane, held, MOST_DIED)

    def keep_former(self, lane: Lane) -> None:
        _keep(self.former, lane, (lane.user, lane.token, lane.session, lane.first_epoch), MOST_FORMER)

    def gave_up(self, session: int, records: Sequence[TaskRecord]) -> None:
        """A session is over that held these: should it have finished one after all, that counts."""
        if not records:
            return
        self._given_up[session] = {record.known_as: record.attempt for record in records}
        self._given_up_count += len(records)
        while self._given_up_count > GIVEN_UP and len(self._given_up) > 1:
            self._given_up_count -= len(self._given_up.popitem(last=False)[1])

    def had_given(self, session: int, task: int, attempt: int) -> bool:
        """Return True if a session that is over held this attempt at its end."""
        return self._given_up.get(session, {}).get(task) == attempt


def _keep(book: dict[tuple[str, int], T], lane: Lane, what: T, most: int) -> None:
    """Remember something of a process that was a pool, and forget the oldest."""
    book[lane.pool, lane.hello.instance] = what
    if len(book) > most:
        del book[next(iter(book))]


class HubState:
    """The books of a hub. What is done with events are functions over them.

    Attributes:
        config: the settings.
        now: the time of the event that is being handled.
        clock_offset: the time on the wall less the hub's own; None before the shell has told it.
        ledger: every task on its way.
        dependencies: the edges between them.
        specs: those that the hub knows, by number.
        clients: sessions of clients, by client.
        lanes: sessions of pools, by session; serving: by queue those that serve it.
        known_pools: what is known of pools besides; known_clients: what is known of clients.
        due: what clients are to be told.
        unclaimed: tasks of an earlier hub that no client of this one has asked for.
        awaited: what waits for tasks of an earlier hub that may still come.
        recovery: the wait for the pools of the hub before.
        result_cache: outcomes that are kept for whoever asks by a key or an id.
        journal: the tasks that are written down; None without a journal.
        letters: tasks that have ended badly while nobody waited for them.
        sinks: outcomes that go to consumers; sink_values: values that wait for room in them.
        house: the hub's own clients.
        schedules: what they run by the clock on the wall.
        cancellations: what is being cancelled.
        out: what is to be done, in order.
        diagnostics: what is kept for people who ask.
    """

    def __init__(self, config: HubSettings, now: float) -> None:
        self.config = config
        self.now = now
        self.clock_offset: float | None = None
        self.journal = Journal() if config.journaled else None
        lease = 0.0 if config.first and self.journal is None else config.lease
        self.ledger = Ledger(Limits(now, lease, self.journal, self.offset))
        self.dependencies = Dependencies(self.ledger, config.client_max_bytes, config.max_bytes)
        self.specs: dict[int, SpecEntry] = {}
        self.clients: dict[int, ClientSession] = {}
        self.lanes: dict[int, Lane] = {}
        self.serving: dict[str, dict[int, Lane]] = {}
        self.known_pools = KnownPools()
        self.known_clients = KnownClients(config.client_max_bytes)
        self.due = Due()
        self.unclaimed = Unclaimed(config, self.ledger, now)
        self.awaited = Awaited()
        until = now if config.first else now + config.lease
        self.recovery = Recovery(self.ledger, QUIET_BEATS * config.beat, until)
        self.result_cache = ResultCache(config.kept_bytes, self.journal, self.offset)
        self.letters = DeadLetters(config.kept_bytes, self.journal)
        self.sinks = Sinks(config, self.ledger.weigh)
        self.sink_values = SinkValues()
        self.house = House(config.epoch, self.journal)
        self.schedules = Schedules(self.journal)
        self.cancellations = Cancellations()
        self.out: list[HubAction] = []
        self.diagnostics = Diagnostics()

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
        entry = self.specs[number] = SpecEntry(number, spec, self.diagnostics.functions.of(spec.name))
        self.ledger.resting.add(entry)

    def lane_of(self, pool: str) -> Lane | None:
        """Return the lane of a pool's newest session, if that lives."""
        return self.lanes.get(self.known_pools.by_name.get(pool, 0))

    def open_lane(self, lane: Lane) -> None:
        """Enter the lane of a new session, the highest one yet."""
        self.known_pools.by_name[lane.pool] = lane.session
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
        self.diagnostics.keep(event, self.now)
        self.out.append(event)
