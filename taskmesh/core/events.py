"""Events that machines handle. Each `take(event, now)` gets the time in monotonic seconds."""

from __future__ import annotations

import msgspec

from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import Entry
from taskmesh.messages.runs import Run, Spec
from taskmesh.messages.slot_messages import SlotNews, SlotResults
from taskmesh.messages.status import JournalStatus

# --- all --------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct):
    """The machine's deadline has come. At any other time it is harmless."""


# --- hub --------------------------------------------------------------------------------------------------


class FromClient(msgspec.Struct):
    """A message of a client has come; those of one session come in order.

    Attributes:
        client: The client's id.
        message: The message.
        user: User whose key its link shows, empty where no keys are in use.
    """

    client: int
    message: m.ClientMessage
    user: str = ""


class ClientGone(msgspec.Struct):
    """A client's link is gone: an embedded client has closed, or a peer cannot be reached."""

    client: int


class Revoked(msgspec.Struct):
    """The keys of these users are not let in any more."""

    users: frozenset[str]


class FromPool(msgspec.Struct):
    """A message of a pool has come over the collector.

    Attributes:
        message: The message.
        user: User whose key its link shows, empty where no keys are in use.
        token: The token of the process that has sent it, empty likewise.
    """

    message: m.PoolMessage
    user: str = ""
    token: bytes = b""


class Shortage(msgspec.Struct):
    """The hub's process lacks something that its machine has not enough of.

    Attributes:
        text: What is lacking, and what to do; empty when it is not lacking any more.
    """

    text: str


class Clock(msgspec.Struct):
    """The clock on the wall is known, or has moved against the hub's own.

    Attributes:
        offset: Seconds since the epoch, less the hub's own time.
    """

    offset: float


class LaneOpened(msgspec.Struct):
    """The lane of a session is bound; its pool reaches it at `endpoint`."""

    session: int
    endpoint: str


class LaneLost(msgspec.Struct):
    """The link of a session's lane is closed. Its pool may live: it has a second to say Hello."""

    session: int


class LinksLost(msgspec.Struct):
    """Every link of the session's pool is closed: its process is gone, or its network."""

    session: int


class JournalRead(msgspec.Struct):
    """The journal was read, before anything else has happened.

    Attributes:
        entries: All that is in it, by key.
        wall: The time on the wall.
    """

    entries: dict[str, Entry]
    wall: float


class JournalWritten(msgspec.Struct):
    """Changes of the journal are written, up to those with this number."""

    number: int


class JournalTold(msgspec.Struct):
    """The state of the journal has changed.

    Attributes:
        view: The state.
        is_full: More waits to be written than may: no more durable tasks.
        is_lost: What was written is gone, so all of it is to be written again.
        news: Kinds and fields of events to log.
    """

    view: JournalStatus | None
    is_full: bool
    is_lost: bool
    news: list[tuple[str, dict[str, object]]]


RareHubEvent = (
    ClientGone
    | Revoked
    | Shortage
    | Clock
    | LaneOpened
    | LaneLost
    | LinksLost
    | JournalRead
    | JournalWritten
    | JournalTold
)

# --- pool -------------------------------------------------------------------------------------------------


class FromHub(msgspec.Struct):
    """A message of the hub has come over the lane or the control channel."""

    message: m.ToPool


class HubLaneLost(msgspec.Struct):
    """The pool's end of its lane is closed."""


class SlotReady(msgspec.Struct):
    """A slot's process is up and waits for tasks."""

    slot: int
    pid: int


class SlotFinished(msgspec.Struct):
    """Results of a slot have come over its socket, or were peeked from its outbox."""

    slot: int
    results: SlotResults


class SlotReported(msgspec.Struct):
    """There is news of the task that a slot runs: its progress, or what it has logged."""

    slot: int
    news: SlotNews


class SlotAsked(msgspec.Struct):
    """The task that a slot runs wants to submit tasks of its own: may the slot lend its permit meanwhile?

    Attributes:
        slot: the slot.
        serial: of the task.
        lends: False if it needs the way to the hub only, as it does not wait for other tasks.
    """

    slot: int
    serial: int
    lends: bool = True


class SlotRecalled(msgspec.Struct):
    """A recall is done: the `count` tasks handed over last will not start, their tickets have been read."""

    slot: int
    count: int


class SlotExited(msgspec.Struct):
    """A slot's process is gone; everything that it had sent has been handled before.

    Attributes:
        slot: The slot.
        unstarted: Number of tickets left in its pipe: the tasks handed over last, which never started.
        status: Exit code, or minus the signal's number.
        oom: True if it was killed for lack of memory, by the kernel or by its pool.
        ready: False if it never came up, since the fork or its start failed.
        log: Its last lines of output.
        suspects: Number of slots of the process that ran a task.
    """

    slot: int
    unstarted: int
    status: int
    oom: bool = False
    ready: bool = True
    log: str = ""
    suspects: int = 1


class ProcessTold(msgspec.Struct):
    """There is news of a process whose slots are threads.

    Attributes:
        slot: One of its slots.
        kind: Kind of an event for the log.
        text: The event's.
        is_worn: True if the process is to be replaced when its tasks have ended.
    """

    slot: int
    kind: str
    text: str
    is_worn: bool


class DrainRequested(msgspec.Struct):
    """A signal or an operator ends the pool: it takes no new work, and running tasks have `grace` seconds."""

    grace: float


class SlotDue(msgspec.Struct):
    """A slot is to be replaced, for a reason in one word."""

    slot: int
    reason: str


RareSlotEvent = SlotReady | SlotReported | SlotAsked | SlotRecalled | SlotExited | SlotDue | ProcessTold

# --- client -----------------------------------------------------------------------------------------------


class Queued(msgspec.Struct):
    """The application has submitted tasks."""

    specs: list[tuple[int, Spec]]
    runs: list[Run]


class Requested(msgspec.Struct):
    """The application asks for something that is passed on to the hub."""

    message: m.Query | m.Command | m.Fulfil | m.PutSchedule | m.DropSchedule | m.CancelTasks | m.ClientBye


class FromHubToClient(msgspec.Struct):
    """A message of the hub has come over the gateway."""

    message: m.ToClient


class SinkOpened(msgspec.Struct):
    """The application takes outcomes from a sink, of so many bytes unacknowledged at most."""

    name: str
    credit: int


class SinkAcked(msgspec.Struct):
    """The application is done with outcomes of a sink, by their tasks' clients and counters."""

    name: str
    tasks: list[tuple[int, int]]


class SinkClosed(msgspec.Struct):
    """The application takes no more from a sink."""

    name: str


class LinkCut(msgspec.Struct):
    """The link to the gateway was closed and is made again: what was on it may be lost."""


class LinkLost(msgspec.Struct):
    """The link to the gateway is closed, or the hub was silent for too long."""


RareClientEvent = Requested | SinkOpened | SinkAcked | SinkClosed | LinkCut | LinkLost | Tick
