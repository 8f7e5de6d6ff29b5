"""The shapes inside messages: specs, runs of tasks, their outcomes; and the bounds of their fields.

Hot shapes (`Run`, `LaneRun`, `DoneRun`) are lists side by side, not lists of objects: a batch of a thousand
tasks costs a handful of Python objects. A payload is `bytes`, or a `taskmesh.shm.blob.Blob` when it is
large; no machine ever looks inside one. Decoders refuse what exceeds the bounds that the types state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

# --- bounds of fields -----------------------------------------------------------------------------------

TOKEN = 16
"""Bytes of a pool's token, the first frame of all that it says."""
LONGEST_NAME = 1024
"""Characters of a name: of a task, queue, tag, key, pool, client or host."""
MOST_NAMES = 1000
"""Queues or tags of one pool or task."""
MOST_LIMITS = 16
"""Limits of one task."""
LARGEST = (2.0 - 2.0**-52) * 2.0**1023
"""The largest number that is finite."""

Counter = Annotated[int, Meta(ge=0)]
"""A task's number with its client: half of a task id, and a negative one would reach into the other half."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A finite one: a NaN would spoil the order of every queue of times that it gets into."""
Amount = int | Number
"""Whole numbers stay whole."""
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
"""A name that the hub keeps for as long as its owner is there."""
MOST_EDGES = 500_000
"""Tasks that one task may depend on: a hub takes them in within one step."""
Edges = Annotated[list[Counter], Meta(min_length=1, max_length=MOST_EDGES)]
"""Tasks that a task depends on. A list of empty lists would take 60 times the bytes that say it."""
Names = Annotated[list[Name], Meta(max_length=MOST_NAMES)]
"""Queues or tags."""

MAGIC, KEYED = b"\x01TMS", b"\x01TMK"
"""The first bytes of a signed payload, and of one before which the key of its task stands, after its length.

No pickle begins like these."""

# --- specs, runs of tasks, their outcomes ---------------------------------------------------------------

if TYPE_CHECKING:
    Payload = Any  # `bytes | Blob`: this module is below those that know Blobs
else:
    # What decoders let in. Any would let in whatever an array can hold, which takes 60 times the bytes that
    # say it, and from Python 3.14 on arrays as deep as the stack.
    Payload = bytes | msgspec.msgpack.Ext

SUCCESS, DONE, FAILURE = 0, 1, 2
"""`Run.when`: a task starts when all tasks that it depends on have succeeded; when all of them have ended;
when one of them has ended badly."""

DEPENDENCY = "dependency"
"""`Failed.kind` of a task that never started, since one that it depends on ended badly."""

CALL, CHUNK, PROMISE, FIRING, ATTACHMENT, SINK_VALUE = 0, 1, 2, 3, 4, 5
"""`Spec.kind`: a payload is one call's (args, kwargs), or a list of argument tuples of a map; or the task has
no function and ends when somebody fulfils it; or it is a call of a schedule, with the time of the firing
before it (`messages.schedules.with_tick`); or it has no function and ends
as the task does whose id is its key; or it has no function, and its payload is the outcome that goes to its
sink."""
PROMISE_NAME = "taskmesh.promise"
"""`Spec.name` of promises: with their key it is what they are found by."""
ATTACHMENT_NAME = "taskmesh.attach"
"""`Spec.name` of attachments."""
SINK_VALUE_NAME = "taskmesh.stream"
"""`Spec.name` of values in sinks."""
NOT_DURABLE = "not durable"
"""`Failed.kind` of a task that demands a journal of a hub that has none."""
UNKNOWN = "unknown"
"""`Failed.kind` of a task of which nobody knows anything, or whose outcome is not kept."""

PICKLE, SAFE, ARROW_IPC = "pickle5", "safe", "arrow-ipc"
"""`Spec.codec`. SAFE: results are plain data, and clients unpickle nothing. With any further one, client and
function encode payloads, and slots hand over bytes."""


class LimitRule(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One limit of a task, as its spec states it. Limits of one name are one limit, whatever tasks have it.

    Attributes:
        name: its name.
        count: starts in a window; or tasks at a time, if there is no window.
        window: seconds of the window, 0 for none.
        smooth: starts keep a distance of window / count.
        keyed: each key of the calls (`Run.part`) has a limit of its own.
    """

    name: Name
    count: Annotated[int, Meta(ge=1)]
    window: Annotated[float, Meta(ge=0, le=LARGEST)] = 0.0
    smooth: bool = False
    keyed: bool = False


class Spec(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The common part of all calls of one task function with the same options; travels once on each link.

    A spec's number is a digest of its bytes (`core.ids.spec_number`), the same for every client and hub.

    Attributes:
        function: the callable's bytes as made by `serialize.code.dump_function`.
        name: for people: `module.qualname`, or the task's `name=`.
        timeout: soft limit in seconds, 0 for none. hard_timeout: the killing limit.
        expires: seconds after acceptance in which a task must have started, 0 for no limit.
        max_retries: retries after user errors; backoff, factor, max_backoff in seconds.
        retry_filter: pickled (on, never) exception classes, empty for (Exception,), ().
        acks: "late" (at least once) or "early" (at most once).
        on_client_loss: "run" or "cancel".
        codec: PICKLE or SAFE; else the function takes a payload's bytes and returns its result's.
        kind: CALL, CHUNK, PROMISE, FIRING, ATTACHMENT or SINK_VALUE.
        keep: seconds for which the outcome can be had after the end, by the task's id, and by its key.
        shared: what tasks of one key share: "all" outcomes, or only bad ones ("errors").
        limits: what holds its tasks back while too many run, or have started lately.
        durable: its tasks are in the hub's journal; None: if the hub has one.
        detach: its tasks do not end with their client.
        ignore_result: their clients are told that they have succeeded, and are not sent their results.
        sink: where outcomes go, in place of the client.
        headers: each call has its headers as its last argument.
        log_level: the level from which on its client takes what the tasks log; 0 for nothing.
        stream_logs: what they print goes to the client, too.
        source: digest and path of the source of the function's module at the client; empty for none.
    """

    function: bytes
    name: Name
    queue: Name = "default"
    priority: int = 0
    timeout: Number = 0.0
    hard_timeout: Number = 0.0
    expires: Number = 0.0
    max_retries: int = 0
    backoff: Number = 1.0
    factor: Number = 2.0
    max_backoff: Number = 600.0
    jitter: bool = True
    retry_filter: bytes = b""
    acks: Name = "late"
    tags: Annotated[tuple[Name, ...], Meta(max_length=MOST_NAMES)] = ()
    on_client_loss: Name = "run"
    codec: Name = PICKLE
    kind: int = CALL
    keep: Number = 0.0
    shared: Name = "all"
    limits: Annotated[tuple[LimitRule, ...], Meta(max_length=MOST_LIMITS)] = ()
    durable: bool | None = None
    detach: bool = False
    ignore_result: bool = False
    sink: Name = ""
    headers: bool = False
    log_level: Counter = 0
    stream_logs: bool = False
    source: Name = ""

    def retry_delay(self, errors: int) -> float:
        """Seconds before the next attempt after this many failures, without jitter."""
        try:
            return min(self.max_backoff, self.backoff * self.factor ** (errors - 1))
        except OverflowError:
            return self.max_backoff if self.backoff else 0.0


class Value(msgspec.Struct, array_like=True, omit_defaults=True):
    """The outcome of a task, for those that depend on it.

    Attributes:
        seq: the task's number with its client.
        payload: its result; empty if it failed.
        name: the name of its task function.
        attempt: the number of the execution that gave the outcome.
        failed: its bad end, if it has one.
        key: of a promise, for which its value is signed.
        is_kept: no task ran for it: a client has put it there, and says when nobody needs it any more.
    """

    seq: Counter
    payload: Payload = b""
    name: Name = ""
    attempt: int = 0
    failed: Failed | None = None
    key: Name = ""
    is_kept: bool = False

    @property
    def is_bare(self) -> bool:
        """True for a success whose result is ignored, and is not known here; no value is empty."""
        return self.failed is None and not len(self.payload)


class Run(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Tasks that a client submits: one spec, one group.

    Attributes:
        again: submitted before, to another hub or link.
        delay: seconds from now in which they are not to start.
        tried: attempts of each that have failed already, in a chunk, and count against its retries.
        needs: for each task, the tasks of the same client whose outcomes are among its arguments; empty if
            none has any.
        after: for each task, further tasks of the same client that it waits for; empty if none has any.
        when: SUCCESS, DONE or FAILURE: the end of those tasks for which it waits.
        part: the key of its keyed limits (`LimitRule.keyed`).
        at: the time before which they are not to start, in seconds since the epoch, 0 for none; `delay` says
            the same by the client's clock.
        rerun: of tasks whose results are ignored and may have gone with their end: the attempts that they
            have had. They run again, also where they have ended, since others need their results.
        age: seconds since a hub first accepted them, where it matters (`Spec.expires`); clients measure it.
    """

    spec: int
    group: int
    seqs: list[Counter]
    payloads: list[Payload]
    key: Name = ""
    again: bool = False
    delay: Number = 0.0
    tried: Counter = 0
    needs: list[Edges] = []
    after: list[Edges] = []
    when: int = SUCCESS
    part: Name = ""
    at: Number = 0.0
    rerun: Counter = 0
    age: Number = 0.0


class LaneRun(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Tasks on their way to a slot: one spec, one client, one attempt number.

    Attributes:
        attempt: the fencing token. `attempt - returns` is what people are shown, since an attempt that was
            handed back unstarted ran nothing.
        needs: for each task, the tasks whose outcomes are among its arguments, None for none of them; empty
            if no task has any.
        values: those of these outcomes that the receiver does not have yet.
        part: as in `Run`; the pool tells the next hub, should this one die.
    """

    spec: int
    client: int
    attempt: int
    returns: int
    seqs: list[Counter]
    payloads: list[Payload]
    needs: list[Edges | None] = []
    values: list[Value] = []
    part: Name = ""


class DoneRun(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Tasks that succeeded in one slot: `elapsed` seconds for all of them together.

    People are shown `attempt - returns`, as with `LaneRun`.

    Attributes:
        payloads: the results; empty ones, on the way to a client, of tasks whose results are ignored.
    """

    spec: int
    client: int
    attempt: int
    worker: str
    seqs: list[Counter]
    payloads: list[Payload]
    elapsed: Number
    returns: int = 0

    def part(self, places: Sequence[int]) -> DoneRun:
        """Return the outcomes at some places."""
        seqs, payloads = [self.seqs[place] for place in places], [self.payloads[place] for place in places]
        elapsed = self.elapsed * len(places) / len(self.seqs)
        return replace(self, seqs=seqs, payloads=payloads, elapsed=elapsed)


class Failed(msgspec.Struct, array_like=True, gc=False):
    """One attempt that did not succeed, or one task's bad end.

    Attributes:
        kind: "exception" | "function" | "argument" | "result" | "timeout" | "hard_timeout" | "crash" | "oom"
            | "cancelled" | "expired" | "lost" (it ran, its result is gone, nobody is to blame) | "signature"
            | "dependency" (a task that it depends on ended badly) | "unknown" (nothing is
            known of it) | "not durable" (the hub has no journal).
        type_name, text, traceback: the exception as data; `pickled` as itself, when that round-trips.
        retryable: the retry filter admits it. retry_after: seconds asked for by the task, -1 for none.
        history: one line for each failed attempt, filled in by the hub at the end.
        returns: as with `LaneRun`, in reports of a pool; clients get the number for people.
        upstream: of a "dependency", the counter of the task that ended badly.
        output: the last lines that its process has printed, of a report of a pool.
    """

    client: int
    seq: Counter
    attempt: int
    kind: str
    type_name: str = ""
    text: str = ""
    traceback: str = ""
    pickled: bytes = b""
    retryable: bool = False
    retry_after: Number = -1.0
    worker: str = ""
    history: list[str] = []
    returns: int = 0
    upstream: Counter = 0
    output: str = ""


class Held(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Tasks of one client and attempt, by counter: an inventory's or a hand-back's line.

    `bound`: of an inventory, tasks that are not to run without their client (on_client_loss="cancel").
    `returns`: of an inventory, as with `LaneRun`: a hub that comes after another does not know it.
    `limits`, `part`: of an inventory, the limits that the tasks have and their key.
    """

    client: int
    attempt: int
    seqs: list[Counter]
    bound: bool = False
    returns: int = 0
    limits: Annotated[tuple[LimitRule, ...], Meta(max_length=MOST_LIMITS)] = ()
    part: Name = ""


PRINTED, DEBUG, INFO, WARNING, ERROR, CRITICAL = 0, 10, 20, 30, 40, 50
"""`LogLine.level`: those of `logging`, and of a print."""
STACK = "taskmesh.stack"
"""The logger of lines that say where a task is in its code."""
LEVELS = {DEBUG: "debug", INFO: "info", WARNING: "warning", ERROR: "error", CRITICAL: "critical"}


class LogLine(msgspec.Struct, array_like=True, gc=False):
    """A record that a task has logged, or a line that it has printed.

    Attributes:
        time: seconds since the epoch.
        level: as in `logging`; PRINTED for a print.
        logger: the logger's name; "stdout" or "stderr" for a print.
        text: the message, with the traceback of its exception.
        path: the file that it comes from, and its line.
    """

    time: Number
    level: Counter
    logger: Name
    text: str
    path: Name = ""
    line: Counter = 0

    @property
    def level_name(self) -> str:
        """The name of the level, or of the next lower one that has a name."""
        return next((name for level, name in reversed(LEVELS.items()) if self.level >= level), "printed")


class Progress(msgspec.Struct, array_like=True):
    """News of a running task: `done` of `total` (0 when unknown); total = -1 says only that it runs.

    `elapsed`: seconds that it has been running. `lines`: what it has logged since the last news.
    """

    client: int
    seq: Counter
    attempt: int
    done: Amount
    total: Amount
    worker: str = ""
    elapsed: Number = 0.0
    lines: list[LogLine] = []
