"""Actions: the orders that machines give. Shells perform them in order and decide nothing."""

from __future__ import annotations

import msgspec

from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import Entry
from taskmesh.messages.runs import DoneRun, Failed
from taskmesh.messages.slot_messages import SlotTasks

# --- hub --------------------------------------------------------------------------------------------------


class SendClient(msgspec.Struct):
    """Send a message to a client over the gateway, or hand it to the embedded client."""

    client: int
    message: m.ToClient


class OpenLane(msgspec.Struct):
    """Bind a lane for a new session of a pool, then report LaneOpened.

    Attributes:
        session: The new session.
        pool: Its pool.
        key: Public key whose holder alone may dial the lane; empty where no keys are in use.
    """

    session: int
    pool: str
    key: bytes = b""


class CloseLane(msgspec.Struct):
    """Close a session's lane; what is in its queue is destroyed (RFC 30)."""

    session: int


class PushTasks(msgspec.Struct):
    """Push work on a lane."""

    session: int
    message: m.Tasks


class Publish(msgspec.Struct):
    """Publish on the control channel, to `pool.<id>.`, or to all pools when `pool` is empty."""

    pool: str
    message: m.ToPool


class LogEvent(msgspec.Struct):
    """Record an event for logs, metrics and `mesh.events()`. There is none for a successful task."""

    kind: str
    fields: dict[str, object]


class WriteJournal(msgspec.Struct):
    """Write changes of the journal, all or none of them, and report JournalWritten.

    Attributes:
        number: Number of these changes, one more than that of those before.
        changes: Entries by key, None for those that are to go.
        is_whole: They are all that the journal is to have.
    """

    number: int
    changes: dict[str, Entry | None]
    is_whole: bool = False


HubAction = SendClient | OpenLane | CloseLane | PushTasks | Publish | LogEvent | WriteJournal

# --- pool -------------------------------------------------------------------------------------------------


class SendHub(msgspec.Struct):
    """Send a message to the hub's collector."""

    message: m.PoolMessage


class SendBeat(msgspec.Struct):
    """Send a beat to the hub's collector, over the connection that beats have for themselves."""

    message: m.Beat


class DialLane(msgspec.Struct):
    """Connect a fresh PULL to the lane's endpoint, in place of any older one.

    Attributes:
        endpoint: The lane's endpoint.
        max_payload: Bytes of one result that the hub takes, 0 for any number.
    """

    endpoint: str
    max_payload: int = 0


class HangUp(msgspec.Struct):
    """Close the lane's PULL."""


class StartSlot(msgspec.Struct):
    """Start a slot; it reports SlotReady or SlotExited(ready=False).

    Attributes:
        slot: The slot.
        process: Number of the process that it shares with others; None for one of its own.
    """

    slot: int
    process: int | None = None


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


class AskSlotStack(msgspec.Struct):
    """Find out where a slot's task is in its code; SlotReported with a line of its log follows.

    Attributes:
        slot: The slot.
        serial: Serial of the task.
    """

    slot: int
    serial: int


class AnswerSlot(msgspec.Struct):
    """Tell a slot whether the task that it runs may submit tasks of its own.

    Attributes:
        slot: The slot.
        granted: Another slot works in its place meanwhile.
        place: Number of the slot's process, or of the slot where others share that.
        client: The client whose task it is.
    """

    slot: int
    granted: bool
    place: int
    client: int = 0


class CancelSlot(msgspec.Struct):
    """Tell a slot's running task that it has been cancelled.

    A slot whose task does not look for that is SIGKILLed at once: SlotExited follows.

    Attributes:
        slot: The slot.
        serial: Serial of the task.
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
    """End the shell: the pool has drained, or was refused.

    Attributes:
        reason: Why it was refused; empty for a clean end.
    """

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
    | AskSlotStack
    | AnswerSlot
    | CancelSlot
    | KillSlot
    | StopSlot
    | Leave
    | LogEvent
)

# --- client -----------------------------------------------------------------------------------------------


class Send(msgspec.Struct):
    """Send a message to the hub over the gateway."""

    message: m.ClientMessage


class Reconnect(msgspec.Struct):
    """Drop the gateway link and dial again."""


class Resolve(msgspec.Struct):
    """Resolve tasks of this client by their outcomes. Each task is resolved once."""

    done: list[DoneRun]
    failed: list[Failed]


class Accept(msgspec.Struct):
    """Mark tasks with these counters as accepted: the hub's ledger has them."""

    seqs: list[int]


class Tell(msgspec.Struct):
    """Pass a notice, an answer, a refusal or outcomes of a sink on to the application."""

    message: m.Notice | m.Answer | m.ClientRefused | m.SinkDeliver | m.SinkReportAck


class Renew(msgspec.Struct):
    """Outcomes of a sink that are here may be given out for a while longer, those of earlier generations not.

    Attributes:
        sink: the sink's name.
        generation: the present generation.
        until: the time up to which the hub surely gives them to nobody else.
    """

    sink: str
    generation: int
    until: float


ClientAction = Send | Reconnect | Resolve | Accept | Tell | Renew
