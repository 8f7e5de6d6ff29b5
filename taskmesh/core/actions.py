"""What machines want done. Shells perform actions in order and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from taskmesh.wire import messages as m

# --- hub --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SendClient:
    """To a client over the gateway (or into the embedded client's hands)."""

    client: int
    message: m.ToClient


@dataclass(slots=True)
class OpenLane:
    """Bind a lane for a new session of a pool, then report LaneOpened."""

    session: int
    pool: str


@dataclass(slots=True)
class CloseLane:
    """Close a session's lane; what is in its queue is destroyed (RFC 30)."""

    session: int


@dataclass(slots=True)
class Push:
    """Push work on a lane."""

    session: int
    message: m.Tasks


@dataclass(slots=True)
class Publish:
    """Publish on the control channel, to `pool.<id>.`, or to all pools when `pool` is empty."""

    pool: str
    message: m.ToPool


@dataclass(slots=True)
class Record:
    """Something worth telling: for logs, metrics and `mesh.events()`. Never one per successful task."""

    kind: str
    fields: dict[str, object]


# --- pool -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SendHub:
    """To the collector."""

    message: m.PoolMessage


@dataclass(slots=True)
class SendBeat:
    """To the collector, over the beat's own connection."""

    message: m.Beat


@dataclass(slots=True)
class DialLane:
    """Connect a fresh PULL to the lane's endpoint, in place of any older one."""

    endpoint: str


@dataclass(slots=True)
class HangUp:
    """Close the lane's PULL."""


@dataclass(slots=True)
class StartSlot:
    """Fork a slot; it reports SlotReady or SlotExited(ready=False)."""

    slot: int


@dataclass(slots=True)
class HandOver:
    """Give tasks to a slot, one ticket for each."""

    slot: int
    message: m.SlotTasks


@dataclass(slots=True)
class RecallSlot:
    """Take every unstarted task of a slot back by reading its tickets; report SlotRecalled."""

    slot: int
    generation: int


@dataclass(slots=True)
class PeekSlot:
    """Read a busy slot's outbox; report SlotFinished when something new is in it."""

    slot: int


@dataclass(slots=True)
class KillSlot:
    """SIGKILL a slot's process group; SlotExited follows."""

    slot: int


@dataclass(slots=True)
class StopSlot:
    """Let an idle slot end by itself; SlotExited follows."""

    slot: int


@dataclass(slots=True)
class Leave:
    """The pool has drained (or was refused): its shell may end. `reason` is empty for a clean end."""

    reason: str = ""


# --- client -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Send:
    """To the hub over the gateway."""

    message: m.ClientMessage


@dataclass(slots=True)
class Reconnect:
    """Drop the gateway link and dial again."""


@dataclass(slots=True)
class Resolve:
    """Outcomes of tasks of this client, each reported once."""

    done: list[m.DoneRun]
    failed: list[m.Failed]


@dataclass(slots=True)
class Accept:
    """Tasks with these counters are in the ledger."""

    seqs: list[int]


@dataclass(slots=True)
class Tell:
    """News (Notice, Answer, refusal) for whoever waits for it."""

    message: m.Notice | m.Answer | m.ClientRefused
