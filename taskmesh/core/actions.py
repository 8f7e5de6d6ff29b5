"""What machines want done. Shells perform actions in order and decide nothing."""

from __future__ import annotations

import msgspec

from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Failed, Kept
from taskmesh.wire.slot_messages import SlotTasks

# --- hub --------------------------------------------------------------------------------------------------


class SendClient(msgspec.Struct):
    """To a client over the gateway (or into the embedded client's hands)."""

    client: int
    message: m.ToClient


class OpenLane(msgspec.Struct):
    """Bind a lane for a new session of a pool, then report LaneOpened. `key`: who alone may dial it."""

    session: int
    pool: str
    key: bytes = b""


class CloseLane(msgspec.Struct):
    """Close a session's lane; what is in its queue is destroyed (RFC 30)."""

    session: int


class PushTasks(msgspec.Struct):
    """PushTasks work on a lane."""

    session: int
    message: m.Tasks


class Publish(msgspec.Struct):
    """Publish on the control channel, to `pool.<id>.`, or to all pools when `pool` is empty."""

    pool: str
    message: m.ToPool


class LogEvent(msgspec.Struct):
    """Something worth telling: for logs, metrics and `mesh.events()`. Never one for a successful task."""

    kind: str
    fields: dict[str, object]


class StoreOutcomes(msgspec.Struct):
    """Outcomes that are kept from now on, for the hub that comes after this one: until when, and what."""

    entries: list[tuple[float, Kept]]


HubAction = SendClient | OpenLane | CloseLane | PushTasks | Publish | LogEvent | StoreOutcomes

# --- pool (`hub`: the place of the one meant in the list of those that it serves) -------------------------


class SendHub(msgspec.Struct):
    """To a hub's collector."""

    message: m.PoolMessage
    hub: int = 0


class SendBeat(msgspec.Struct):
    """To a hub's collector, over the beat's own connection."""

    message: m.Beat
    hub: int = 0


class DialLane(msgspec.Struct):
    """Connect a fresh PULL to the lane's endpoint, in place of any older one.

    `max_payload`: bytes of one result that this hub takes, 0 for any.
    """

    endpoint: str
    max_payload: int = 0
    hub: int = 0


class HangUp(msgspec.Struct):
    """Close the lane's PULL."""

    hub: int = 0


class StartSlot(msgspec.Struct):
    """Fork a slot; it reports SlotReady or SlotExited(ready=False)."""

    slot: int


class HandOver(msgspec.Struct):
    """Give tasks to a slot, one ticket for each."""

    slot: int
    message: SlotTasks


class RecallSlot(msgspec.Struct):
    """Take every unstarted task of a slot back by reading its tickets; report SlotRecalled."""

    slot: int
    generation: int


class PeekSlot(msgspec.Struct):
    """Read a busy slot's outbox; report SlotFinished when something new is in it."""

    slot: int


class AnswerSlot(msgspec.Struct):
    """Tell a slot whether the task that it runs, one of this hub's, may submit tasks of its own."""

    slot: int
    granted: bool
    hub: int = 0


class CancelSlot(msgspec.Struct):
    """Tell the running task, the one with this serial, that it has been cancelled.

    A slot whose task has not asked for that is SIGKILLed at once: SlotExited follows.
    """

    slot: int
    serial: int


class KillSlot(msgspec.Struct):
    """SIGKILL a slot's process group; SlotExited follows."""

    slot: int


class StopSlot(msgspec.Struct):
    """Let an idle slot end by itself; SlotExited follows."""

    slot: int


class Leave(msgspec.Struct):
    """The pool has drained (or was refused): its shell may end. `reason` is empty for a clean end."""

    reason: str = ""


PoolAction = (
    SendHub
    | SendBeat
    | DialLane
    | HangUp
    | StartSlot
    | HandOver
    | RecallSlot
    | PeekSlot
    | AnswerSlot
    | CancelSlot
    | KillSlot
    | StopSlot
    | Leave
    | LogEvent
)

# --- client -----------------------------------------------------------------------------------------------


class Send(msgspec.Struct):
    """To the hub over the gateway."""

    message: m.ClientMessage


class Reconnect(msgspec.Struct):
    """Drop the gateway link and dial again."""


class Resolve(msgspec.Struct):
    """Outcomes of tasks of this client, each reported once."""

    done: list[DoneRun]
    failed: list[Failed]


class Accept(msgspec.Struct):
    """Tasks with these counters are in the ledger."""

    seqs: list[int]


class Tell(msgspec.Struct):
    """News (Notice, Answer, refusal) for whoever waits for it."""

    message: m.Notice | m.Answer | m.ClientRefused


ClientAction = Send | Reconnect | Resolve | Accept | Tell
