"""The messages that clients, hub and pools speak, as msgspec structs.

The core's machines take in and give out these very shapes (docs/adr/0003). Nobody changes one given away.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskmesh.messages.runs import (
    Counter,
    DoneRun,
    Failed,
    Held,
    LaneRun,
    Name,
    Names,
    Number,
    Payload,
    Progress,
    Run,
    Spec,
    Value,
)
from taskmesh.messages.schedules import Declaration

PROTOCOL = 10
"""Version of these shapes; both ends must state the same."""
PICKLE_PROTOCOL = 5


# --- client -> hub ----------------------------------------------------------------------------------------


class ClientHello(msgspec.Struct, tag=1):
    """A client session opens, or comes back. `epoch` is the hub's that it knew, 0 for none.

    `first` is the number that its next Submit will have; numbers are never used twice. `credit`: bytes of
    deliveries it will hold unacknowledged; 0 for an embedded client. `link` counts its links to the hub.
    `slot`: of a task that submits tasks, POOL/PID@CLIENT: its pool's name and its process id, as SlotGone
    says them, and in hexadecimal digits the client whose task it is.
    `operator`: it is a command that asks and steers.
    """

    client: int
    epoch: int
    first: int = 1
    protocol: int = PROTOCOL
    python: Name = ""
    name: Name = ""
    credit: int = 64 << 20
    pickle: int = PICKLE_PROTOCOL
    cloudpickle: Name = ""
    link: int = 0
    slot: Name = ""
    operator: bool = False


class Submit(msgspec.Struct, tag=2):
    """Tasks for the ledger; `number` counts a session's Submits and is acknowledged cumulatively.

    `cancels`: given up, or such as never come; `unstarted`: given up unless they have started, and the hub
    says which had not. `epoch`: of the hub it is for, or 0. `delivered`: what a ResultAck would say. `whole`:
    all that it waits for of an earlier hub's time has been submitted now. `values`: outcomes of tasks that
    tasks of this Submit depend on, as far as the client has them.
    """

    number: int
    specs: list[tuple[int, Spec]]
    runs: list[Run]
    cancels: list[Counter] = []
    epoch: int = 0
    delivered: int = 0
    unstarted: list[Counter] = []
    whole: bool = False
    values: list[Value] = []


class CancelTasks(msgspec.Struct, tag=3):
    """The client has given these tasks up; those `unstarted` only if they have not started."""

    seqs: list[Counter]
    unstarted: list[Counter] = []


class ResultAck(msgspec.Struct, tag=4):
    """Every `Deliver` of this epoch up to `number` is in the client's hands: the hub may forget it."""

    epoch: int
    number: int


class ClientBeat(msgspec.Struct, tag=5):
    """The client is alive and waits for something of the hub of this epoch (0: of whoever hears it)."""

    epoch: int = 0


class ClientBye(msgspec.Struct, tag=6):
    """The client session ends; with `cancel` its unfinished tasks end too."""

    cancel: bool = True


class Query(msgspec.Struct, tag=7):
    """Asks for a view; answered by `Answer`.

    what = "status", "pools", "tasks", "task", "events", "limits", "schedules", "ticks" (the
    next `limit` of the schedule that the argument names), "dead", "dead-letter", "dead-call".
    """

    number: int
    what: Name
    argument: Name = ""
    limit: int = 100


class Command(msgspec.Struct, tag=8):
    """An operator's wish.

    verb = "pause", "resume", "drain" (a pool), "scale-in" (COUNT:POOLS), "cancel" (a task id),
    "cancel-client" (a client's name or id), "cancel-key" (a key's user),
    "limit" (NAME:RATE or NAME:COUNT), "unlimit" (a limit's name),
    "schedule-pause", "schedule-resume", "schedule-remove", "schedule-run" (a schedule).
    """

    number: int
    verb: Name
    target: Name


class Fulfil(msgspec.Struct, tag=9):
    """Ends the promise of a key, now or when somebody asks for it; answered by `Answer` with True or False.

    Attributes:
        number: of the request.
        key: of the promise.
        payload: its value; empty if it fails.
        keep: seconds for which the outcome answers those who ask later.
        failed: its bad end, instead of a value.
    """

    number: int
    key: Name
    payload: Payload = b""
    keep: Number = 0.0
    failed: Failed | None = None


class PutSchedule(msgspec.Struct, tag=10):
    """A schedule is to be kept, in place of one of the same name; answered unless the number is 0."""

    number: int
    declaration: Declaration


class DropSchedule(msgspec.Struct, tag=11):
    """A schedule is to be removed; the `Answer` says whether there was one."""

    number: int
    name: Name


MOST_SINKS = 1000
"""Sinks that one client takes from at a time."""


class SinkReport(msgspec.Struct, tag=12):
    """A client takes outcomes from a sink.

    Attributes:
        sink: the sink's name.
        generation: rises whenever the client begins anew, over a new link for example.
        number: counts its reports of a generation; 0 of one that says only that it lives.
        received: every delivery up to this number has arrived.
        credit: bytes of outcomes that it holds unacknowledged at most.
        acked: outcomes that are done with, by their tasks' clients and counters.
        closed: it takes no more.
        sent: the client's time, which the answer has as `echo`.
    """

    sink: Name
    generation: Counter
    number: Counter
    received: Counter
    credit: Counter
    acked: list[tuple[int, Counter]] = []
    closed: bool = False
    sent: Number = 0


# --- hub -> client ----------------------------------------------------------------------------------------


class ClientWelcome(msgspec.Struct, tag=20):
    """The session is open. max_tasks: the client's cap.

    `max_payload`: bytes of one call that the hub takes, 0 for any. `link`: of the Hello that it answers.
    `window`: bytes of Submits that may be under way, unacknowledged; 0 for any number. `session`: the number
    of the session with this hub, which counts its deliveries from 1 on; 0 if the hub has opened none.
    """

    epoch: int
    max_tasks: int
    max_bytes: int
    beat: Number
    max_payload: int = 0
    link: int = 0
    window: Counter = 0
    session: Counter = 0


class Accepted(msgspec.Struct, tag=21):
    """Every Submit up to `number` is in the ledger.

    `slots`, in answer to a beat, else empty: for each queue and tags of its tasks, how many slots serve them,
    0 if no pool does.
    """

    number: int
    slots: list[tuple[Name, Names, Counter]] = []


class Busy(msgspec.Struct, tag=22):
    """There is no room for Submit `number` (0: for a message of which the end has not come): again later."""

    number: int
    retry_after: Number


class NeedSpec(msgspec.Struct, tag=23):
    """Submit `number` named specs that the hub does not have (any more): submit again with them."""

    number: int
    specs: list[int]


class NeedValues(msgspec.Struct, tag=28):
    """Submit `number` depends on these tasks, of which the hub knows nothing: again, with their outcomes."""

    number: int
    seqs: list[Counter]


class Deliver(msgspec.Struct, tag=24):
    """Outcomes; `number` counts a client's deliveries in an epoch. `accepted`: as an Accepted says it."""

    epoch: int
    number: int
    done: list[DoneRun]
    failed: list[Failed]
    accepted: int = 0


class Notice(msgspec.Struct, tag=25):
    """News of tasks under way; may be lost."""

    progress: list[Progress]


class Answer(msgspec.Struct, tag=26):
    """The answer to a Query or Command.

    Attributes:
        number: Number of the request.
        value: Plain data.
        error: The reason why it is refused; empty when it worked.
        specs, runs: of a dead letter whose call was asked for; its id is the value then.
    """

    number: int
    value: Any
    error: str = ""
    specs: list[Spec] = []
    runs: list[Run] = []


class ClientRefused(msgspec.Struct, tag=27):
    """The session is not open (any more): say hello (reason empty), or give up for this reason."""

    reason: str = ""


class SinkDeliver(msgspec.Struct, tag=29):
    """Outcomes for a consumer of a sink.

    Attributes:
        sink: the sink's name.
        generation: of the consumer.
        number: counts its deliveries.
        done: successes.
        names: of their task functions, one for each run.
        failed: bad ends.
        failed_names: of their task functions.
        reports: every report up to this number has arrived.
    """

    sink: Name
    generation: Counter
    number: Counter
    done: list[DoneRun] = []
    names: list[Name] = []
    failed: list[Failed] = []
    failed_names: list[Name] = []
    reports: Counter = 0


class SinkReportAck(msgspec.Struct, tag=30):
    """The answer to a SinkReport: every report up to `reports` has arrived.

    If the consumer is not `known` any more it begins anew. `echo`: the `sent` of that report.
    """

    sink: Name
    generation: Counter
    reports: Counter
    known: bool = True
    echo: Number = 0


# --- pool -> hub (collector) ------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag=40):
    """A pool asks for a session; repeated until `Welcome`.

    `number` counts the times that it had to ask; repetitions have the same. `key`: where keys are in use, the
    public key for this session's lane. `instance` is new for every start of the pool's process; `inventory`:
    all that it holds of the hub whose epoch it states: queued, running, finished but not acknowledged.
    """

    pool: Name
    instance: int
    number: int
    slots: int
    queues: Names
    tags: Names
    epoch: int
    session: int
    inventory: list[Held]
    protocol: int = PROTOCOL
    python: Name = ""
    host: Name = ""
    pid: int = 0
    pickle: int = PICKLE_PROTOCOL
    cloudpickle: Name = ""
    key: bytes = b""


class Results(msgspec.Struct, tag=41):
    """Results of slots and tasks handed back; `number` counts the session's, acknowledged cumulatively.

    `returned`: handed back unstarted, uncharged. `told`: the last progress of tasks that end here. `echo`,
    `held`: the `sent` stamp of the newest Tasks and how long ago it came: the hub's round trip. `lag`: the
    seconds that its own slots wait for a refill, measured.
    """

    epoch: int
    session: int
    number: int
    done: list[DoneRun]
    failed: list[Failed]
    returned: list[Held]
    echo: Number = 0.0
    held: Number = 0.0
    lag: Number = 0.0
    told: list[Progress] = []


class Beat(msgspec.Struct, tag=42):
    """A pool lives: lane messages received and results acknowledged so far, and what runs right now.

    `slots`: as in Hello (or -1); more while tasks wait for their own, fewer while some cannot start.
    """

    epoch: int
    session: int
    pool: Name
    received: int
    acked: int
    sent: int
    running: list[Progress]
    state: Name = "ready"
    slots: int = -1


class Bye(msgspec.Struct, tag=43):
    """The pool leaves for good; what its Results, `sent` so many, do not name it has not started."""

    epoch: int
    session: int
    sent: int = 0


class Misrouted(msgspec.Struct, tag=44):
    """A lane message of a session that is not this pool's came in: session as found in it."""

    pool: Name
    epoch: int
    session: int


class SlotGone(msgspec.Struct, tag=46):
    """A slot's process has ended whose tasks may have submitted tasks: these end with it."""

    epoch: int
    session: int
    pid: int


class PoolNeedSpec(msgspec.Struct, tag=45):
    """Tasks came whose specs the pool does not have: hand them back as returned and send the specs again."""

    epoch: int
    session: int
    specs: list[int]


# --- hub -> pool (lane, control) --------------------------------------------------------------------------


class Tasks(msgspec.Struct, tag=60):
    """Work on a lane. `sent` is the hub's clock, echoed in Results; `acked` acknowledges Results.

    `unused`: outcomes that came in earlier `LaneRun.values` and no task needs any more, by client.
    """

    epoch: int
    session: int
    lane_seq: int
    acked: int
    sent: Number
    specs: list[tuple[int, Spec]]
    runs: list[LaneRun]
    unused: list[tuple[int, list[Counter]]] = []


class Welcome(msgspec.Struct, tag=61):
    """The pool's session is open: its PULL dials the lane at `lane` (port, or inproc/ipc endpoint).

    `stale`: of its inventory, to be dropped, running or not. `max_payload`: bytes of one result, 0 for any.
    """

    epoch: int
    session: int
    pool: Name
    instance: int
    number: int
    lane: Name
    beat: Number
    lease: Number
    stale: list[Held] = []
    max_payload: int = 0


class BeatReply(msgspec.Struct, tag=62):
    """The hub's answer to a beat; session 0 says: I do not know session `about` (0: any), say Hello."""

    epoch: int
    session: int
    acked: int
    about: int = 0


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


class AskStack(msgspec.Struct, tag=66):
    """Say where an attempt is in its code: as a line of its log, whose logger is STACK."""

    epoch: int
    session: int
    task: Held


class PoolCommand(msgspec.Struct, tag=65):
    """pause | resume | drain, for the process of this `instance`: others may wait for its name."""

    verb: Name
    instance: int = 0


class Refused(msgspec.Struct, tag=67):
    """The hub will not have this pool, for the reason given; it need not ask again."""

    pool: Name
    instance: int
    reason: str


ClientMessage = (
    ClientHello
    | Submit
    | CancelTasks
    | ResultAck
    | ClientBeat
    | ClientBye
    | Query
    | Command
    | Fulfil
    | PutSchedule
    | DropSchedule
    | SinkReport
)
ToClient = (
    ClientWelcome
    | Accepted
    | Busy
    | NeedSpec
    | NeedValues
    | Deliver
    | Notice
    | Answer
    | ClientRefused
    | SinkDeliver
    | SinkReportAck
)
PoolMessage = Hello | Results | Beat | Bye | Misrouted | PoolNeedSpec | SlotGone
ToPool = Tasks | Welcome | BeatReply | Recall | Cancel | AskStack | PoolCommand | Refused
