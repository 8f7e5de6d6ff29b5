"""What machines are told. Every `handle(event, now)` gets the time as an argument, in seconds, monotonic."""

from __future__ import annotations

import msgspec

from taskmesh.wire import messages as m
from taskmesh.wire.runs import Kept, Run, Spec
from taskmesh.wire.slot_messages import SlotProgress, SlotResults

# --- all --------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct):
    """The deadline that the machine had asked for has come (or any other time: harmless)."""


# --- hub --------------------------------------------------------------------------------------------------


class FromClient(msgspec.Struct):
    """A client's message, in order per client session. user: whose key its link shows, "" without keys."""

    client: int
    message: m.ClientMessage
    user: str = ""


class ClientGone(msgspec.Struct):
    """The link says that nobody is there any more (an embedded client that closed, an unroutable peer)."""

    client: int


class Revoked(msgspec.Struct):
    """These users are not let in any more."""

    users: frozenset[str]


class FromPool(msgspec.Struct):
    """A pool's message, off the collector. user: whose key its link shows, "" without keys."""

    message: m.PoolMessage
    user: str = ""


class Shortage(msgspec.Struct):
    """The hub's process lacks something of the machine's; `text` says what, and the cure. Empty: no more."""

    text: str


class OverRate(msgspec.Struct):
    """Peers with one key have said more than a key may: so many messages were dropped, unread.

    Attributes:
        cap: which setting, with its value. wait: seconds after which there is room again.
        clients, sessions: those of them that have a session; they are told to wait and to say it again.
    """

    user: str
    dropped: int
    cap: str
    wait: float
    clients: set[int]
    sessions: set[int]


class LaneOpened(msgspec.Struct):
    """The shell has bound the lane of a session; pools reach it at `endpoint`."""

    session: int
    endpoint: str


class LaneLost(msgspec.Struct):
    """The lane's link is closed. Not a death sentence: the pool has a second to say Hello."""

    session: int


class LinksLost(msgspec.Struct):
    """Every link of the session's pool is closed: its process is gone, or its network."""

    session: int


class Restored(msgspec.Struct):
    """Outcomes that an earlier hub has stored: until when each is kept, and what."""

    entries: list[tuple[float, Kept]]


class StoreTold(msgspec.Struct):
    """How the store is, in plain data, and what is worth telling of it: kinds and fields of Records."""

    view: dict[str, object]
    news: list[tuple[str, dict[str, object]]]


RareHubEvent = (
    ClientGone | Revoked | Shortage | OverRate | LaneOpened | LaneLost | LinksLost | Restored | StoreTold
)

# --- pool -------------------------------------------------------------------------------------------------


class FromHub(msgspec.Struct):
    """A message off lane or control of a pool's hub, by its place in the list of those that it serves."""

    message: m.ToPool
    hub: int = 0


class HubLaneLost(msgspec.Struct):
    """The pool's end of a hub's lane is closed."""

    hub: int = 0


class SlotReady(msgspec.Struct):
    """A slot's process is up and waits for tasks."""

    slot: int
    pid: int


class SlotFinished(msgspec.Struct):
    """Results off a slot's socket, or peeked from its outbox."""

    slot: int
    results: SlotResults


class SlotReported(msgspec.Struct):
    """Progress of the task that a slot runs."""

    slot: int
    progress: SlotProgress


class SlotAsked(msgspec.Struct):
    """The task that a slot runs wants to submit tasks of its own: may the slot lend its permit meanwhile?"""

    slot: int
    serial: int


class SlotRecalled(msgspec.Struct):
    """The `count` tasks handed over last have been taken back by their tickets: they will not start."""

    slot: int
    count: int


class SlotExited(msgspec.Struct):
    """A slot's process is gone; everything that it had sent has been handled before.

    Attributes:
        unstarted: tickets left in its pipe: the tasks handed over last that never started.
        status: exit code, or minus the signal's number.
        oom: it was killed for lack of memory, by the kernel or by its pool.
        ready: False when it never came up (fork or start failed).
        log: its last lines of output.
    """

    slot: int
    unstarted: int
    status: int
    oom: bool = False
    ready: bool = True
    log: str = ""


class DrainRequested(msgspec.Struct):
    """SIGTERM or an operator: no new work, unstarted tasks go back, running ones have `grace` seconds."""

    grace: float


RareSlotEvent = SlotReady | SlotReported | SlotAsked | SlotRecalled | SlotExited

# --- client -----------------------------------------------------------------------------------------------


class Queued(msgspec.Struct):
    """New tasks from the application."""

    specs: list[tuple[int, Spec]]
    runs: list[Run]


class Requested(msgspec.Struct):
    """A Query, Command, CancelTasks or ClientBye to pass on."""

    message: m.Query | m.Command | m.CancelTasks | m.ClientBye


class FromHubToClient(msgspec.Struct):
    """A message off the gateway."""

    message: m.ToClient


class LinkCut(msgspec.Struct):
    """The gateway's link was closed and is made again: what was on it may be lost."""


class LinkLost(msgspec.Struct):
    """The gateway's link is closed (or the hub was silent too long)."""


RareClientEvent = Requested | LinkCut | LinkLost | Tick
