"""The messages that clients, hub, pools and slots speak, as msgspec structs.

These shapes are also what the core's machines take in and give out, so nothing is translated on the way from
a socket to a decision. Hot shapes (`Run`, `LaneRun`, `DoneRun`) are lists side by side, not lists of objects:
a batch of a thousand tasks costs a handful of Python objects.

A payload is `bytes`, or a `taskmesh.wire.payload.Blob` when it is large; no machine ever looks inside one.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 1
"""Version of these shapes; both ends must state the same."""

CALL, CHUNK = 0, 1
"""`Spec.kind`: a payload is one call's (args, kwargs), or a list of argument tuples of a map."""


class Spec(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What all calls of one task function with the same options share; travels once per link.

    A spec's number is a digest of its bytes (`wire.frames.spec_number`), the same for every client and hub.

    Attributes:
        function: the callable's bytes as made by `wire.code.dump_function`.
        name: for people: `module.qualname`, or the task's `name=`.
        timeout: soft limit in seconds, 0 for none. hard_timeout: the killing limit.
        expires: seconds after acceptance in which a task must have started, 0 for no limit.
        max_retries: retries after user errors; backoff, factor, max_backoff in seconds.
        retry_filter: pickled (on, never) exception classes, empty for (Exception,), ().
        acks: "late" (at least once) or "early" (at most once).
        on_client_loss: "run" or "cancel".
        kind: CALL or CHUNK.
    """

    function: bytes
    name: str
    queue: str = "default"
    priority: int = 0
    timeout: float = 0.0
    hard_timeout: float = 0.0
    expires: float = 0.0
    max_retries: int = 0
    backoff: float = 1.0
    factor: float = 2.0
    max_backoff: float = 600.0
    jitter: bool = True
    retry_filter: bytes = b""
    acks: str = "late"
    tags: tuple[str, ...] = ()
    on_client_loss: str = "run"
    codec: str = "pickle5"
    kind: int = CALL


class Run(msgspec.Struct, array_like=True, gc=False):
    """Tasks that a client submits: one spec, one group. `again`: submitted before, to another epoch or link."""

    spec: int
    group: int
    seqs: list[int]
    payloads: list[Any]
    key: str = ""
    again: bool = False


class LaneRun(msgspec.Struct, array_like=True, gc=False):
    """Tasks on their way to a slot: one spec, one client, one attempt number.

    `attempt` is the fencing token; `attempt - returns` is what people are shown, since an attempt that was
    handed back unstarted ran nothing.
    """

    spec: int
    client: int
    attempt: int
    returns: int
    seqs: list[int]
    payloads: list[Any]


class DoneRun(msgspec.Struct, array_like=True, gc=False):
    """Tasks that succeeded in one slot: `elapsed` seconds for all of them together.

    People are shown `attempt - returns`, as with `LaneRun`.
    """

    spec: int
    client: int
    attempt: int
    worker: str
    seqs: list[int]
    payloads: list[Any]
    elapsed: float
    returns: int = 0


class Failed(msgspec.Struct, array_like=True):
    """One attempt that did not succeed, or one task's bad end.

    Attributes:
        kind: "exception" | "function" | "argument" | "result" | "timeout" | "hard_timeout" | "crash" | "oom"
            | "cancelled" | "expired" | "lost" (it ran, its result is gone, nobody is to blame).
        type_name, text, traceback: the exception as data; `pickled` as itself, when that round-trips.
        retryable: the retry filter admits it. retry_after: seconds asked for by the task, -1 for none.
        history: one line for each failed attempt, filled in by the hub at the end.
    """

    client: int
    seq: int
    attempt: int
    kind: str
    type_name: str = ""
    text: str = ""
    traceback: str = ""
    pickled: bytes = b""
    retryable: bool = False
    retry_after: float = -1.0
    worker: str = ""
    history: list[str] = []


class Held(msgspec.Struct, array_like=True, gc=False):
    """Tasks of one client and attempt, by counter: an inventory's or a hand-back's line."""

    client: int
    attempt: int
    seqs: list[int]


class Progress(msgspec.Struct, array_like=True):
    """How far a running task is: `done` of `total` (0 when unknown); total = -1 says only that it has started."""

    client: int
    seq: int
    attempt: int
    done: float
    total: float
    worker: str = ""


# --- client -> hub ----------------------------------------------------------------------------------------


class ClientHello(msgspec.Struct, tag=1):
    """A client session opens, or comes back. `epoch` is the hub's that it knew, 0 for none.

    `first` is the number that its next Submit will have; numbers are never used twice. `credit`: bytes of
    deliveries it will hold unacknowledged; 0 for an embedded client, which needs no acknowledgements.
    """

    client: int
    epoch: int
    first: int = 1
    protocol: int = PROTOCOL
    python: str = ""
    name: str = ""
    credit: int = 64 << 20


class Submit(msgspec.Struct, tag=2):
    """Tasks for the ledger; `number` counts a session's Submits and is acknowledged cumulatively."""

    number: int
    specs: list[tuple[int, Spec]]
    runs: list[Run]


class CancelTasks(msgspec.Struct, tag=3):
    """The client has given these tasks up."""

    seqs: list[int]


class ResultAck(msgspec.Struct, tag=4):
    """Every `Deliver` of this epoch up to `number` is in the client's hands: the hub may forget it."""

    epoch: int
    number: int


class ClientBeat(msgspec.Struct, tag=5):
    """The client is alive and waits for something."""


class ClientBye(msgspec.Struct, tag=6):
    """The client session ends; with `cancel` its unfinished tasks end too."""

    cancel: bool = True


class Query(msgspec.Struct, tag=7):
    """Asks for a view: what = "status" | "pools" | "tasks" | "task" | "events"; answered by `Answer`."""

    number: int
    what: str
    argument: str = ""
    limit: int = 100


class Command(msgspec.Struct, tag=8):
    """An operator's wish: verb = "ping" | "pause" | "resume" | "drain" (a pool), "cancel" (a task id)."""

    number: int
    verb: str
    target: str


# --- hub -> client ----------------------------------------------------------------------------------------


class ClientWelcome(msgspec.Struct, tag=20):
    """The session is open. `known`: the hub still has its tasks. max_tasks: the client's cap."""

    epoch: int
    known: bool
    max_tasks: int
    max_bytes: int
    beat: float


class Accepted(msgspec.Struct, tag=21):
    """Every Submit up to `number` is in the ledger."""

    number: int


class Busy(msgspec.Struct, tag=22):
    """Submit `number` (and later ones) were not taken: a cap is reached; again after `retry_after` seconds."""

    number: int
    retry_after: float


class NeedSpec(msgspec.Struct, tag=23):
    """Submit `number` named specs that the hub does not have (any more): submit again with them."""

    number: int
    specs: list[int]


class Deliver(msgspec.Struct, tag=24):
    """Outcomes; `number` counts a client's deliveries in this epoch and is acknowledged cumulatively."""

    epoch: int
    number: int
    done: list[DoneRun]
    failed: list[Failed]


class Notice(msgspec.Struct, tag=25):
    """News of tasks under way; may be lost."""

    progress: list[Progress]


class Answer(msgspec.Struct, tag=26):
    """The answer to a Query or Command. `error` is empty when it worked; `value` is plain data."""

    number: int
    value: Any
    error: str = ""


class ClientRefused(msgspec.Struct, tag=27):
    """The session is not open (any more): say hello (reason empty), or give up for this reason."""

    reason: str = ""


# --- pool -> hub (collector) ------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag=40):
    """A pool asks for a session; repeated until `Welcome`.

    `number` counts the times that it had to ask; repetitions have the same.
    `instance` is new for every start of the pool's process; `inventory` lists all that it holds of the hub
    whose epoch it states: queued, running, finished but not acknowledged.
    """

    pool: str
    instance: int
    number: int
    slots: int
    queues: list[str]
    tags: list[str]
    epoch: int
    session: int
    inventory: list[Held]
    protocol: int = PROTOCOL
    python: str = ""
    host: str = ""
    pid: int = 0


class Results(msgspec.Struct, tag=41):
    """What slots finished and what is handed back; `number` counts the session's, acknowledged cumulatively.

    Attributes:
        returned: handed back unstarted, uncharged.
        echo, held: the `sent` stamp of the newest Tasks and how long ago it came: the hub's round trip.
        lag: seconds that the pool's own slots wait for a refill, measured.
    """

    epoch: int
    session: int
    number: int
    done: list[DoneRun]
    failed: list[Failed]
    returned: list[Held]
    echo: float = 0.0
    held: float = 0.0
    lag: float = 0.0


class Beat(msgspec.Struct, tag=42):
    """A pool lives: lane messages received and results acknowledged so far, and what runs right now."""

    epoch: int
    session: int
    pool: str
    received: int
    acked: int
    sent: int
    running: list[Progress]
    state: str = "ready"
    busy_slots: int = 0


class Bye(msgspec.Struct, tag=43):
    """The pool leaves for good; it holds nothing any more."""

    epoch: int
    session: int


class Misrouted(msgspec.Struct, tag=44):
    """A lane message of a session that is not this pool's came in: session as found in it."""

    pool: str
    epoch: int
    session: int


class PoolNeedSpec(msgspec.Struct, tag=45):
    """Tasks came whose specs the pool does not have: hand them back as returned and send the specs again."""

    epoch: int
    session: int
    specs: list[int]


# --- hub -> pool (lane, control) --------------------------------------------------------------------------


class Tasks(msgspec.Struct, tag=60):
    """Work on a lane. `sent` is the hub's clock, echoed in Results; `acked` acknowledges Results."""

    epoch: int
    session: int
    lane_seq: int
    acked: int
    sent: float
    specs: list[tuple[int, Spec]]
    runs: list[LaneRun]


class Welcome(msgspec.Struct, tag=61):
    """The pool's session is open: its PULL dials the lane at `lane` (port, or inproc/ipc endpoint)."""

    epoch: int
    session: int
    pool: str
    instance: int
    number: int
    lane: str
    beat: float
    lease: float


class BeatReply(msgspec.Struct, tag=62):
    """The hub's answer to a beat; session 0 says: I do not know you, say Hello."""

    epoch: int
    session: int
    acked: int


class Recall(msgspec.Struct, tag=63):
    """Hand back up to `count` tasks that have not started."""

    epoch: int
    session: int
    count: int


class Cancel(msgspec.Struct, tag=64):
    """Drop these attempts: unstarted ones silently, running ones by killing their slot."""

    epoch: int
    session: int
    tasks: list[Held]


class PoolCommand(msgspec.Struct, tag=65):
    """ping | pause | resume | drain, for one pool or all."""

    verb: str
    number: int = 0


class ForgetSpecs(msgspec.Struct, tag=66):
    """The hub has forgotten these specs; they come again before they are used."""

    epoch: int
    session: int
    specs: list[int]


class Refused(msgspec.Struct, tag=67):
    """The hub will not have this pool, for the reason given; it need not ask again."""

    pool: str
    instance: int
    reason: str


# --- supervisor <-> slot (socketpair; never leaves the machine) -------------------------------------------


class SlotTasks(msgspec.Struct, tag=80):
    """Tasks for one slot, with serials from `first` on; `generation` is the ticket byte they were handed over with."""

    first: int
    generation: int
    specs: list[tuple[int, Spec]]
    runs: list[LaneRun]


class SlotSegment(msgspec.Struct, array_like=True, gc=False):
    """Consecutive serials of one spec that succeeded, from `first` on; `elapsed` seconds for all."""

    first: int
    payloads: list[Any]
    elapsed: float


class SlotFailure(msgspec.Struct, array_like=True):
    """One serial that did not succeed; the fields are `Failed`'s."""

    serial: int
    kind: str
    type_name: str = ""
    text: str = ""
    traceback: str = ""
    pickled: bytes = b""
    retryable: bool = False
    retry_after: float = -1.0
    elapsed: float = 0.0


class SlotResults(msgspec.Struct, tag=81):
    """What a slot finished since its last flush. `sent` is CLOCK_MONOTONIC; `idle` how long it had waited for work."""

    done: list[SlotSegment]
    failed: list[SlotFailure]
    sent: float
    idle: float = 0.0


class SlotProgress(msgspec.Struct, tag=82):
    """current_task().progress(done, total) of the running serial."""

    serial: int
    done: float
    total: float


ClientMessage = ClientHello | Submit | CancelTasks | ResultAck | ClientBeat | ClientBye | Query | Command
ToClient = ClientWelcome | Accepted | Busy | NeedSpec | Deliver | Notice | Answer | ClientRefused
PoolMessage = Hello | Results | Beat | Bye | Misrouted | PoolNeedSpec
ToPool = Tasks | Welcome | BeatReply | Recall | Cancel | PoolCommand | ForgetSpecs | Refused
FromSlot = SlotResults | SlotProgress
