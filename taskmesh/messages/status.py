"""The status of a hub: the one description of what `Mesh.status()`, commands and the dashboard are told.

It is plain data, so that it is JSON as it stands. Times are seconds before the answer, and a count is of
tasks where nothing else is said.
"""

from __future__ import annotations

from typing import TypedDict


class PoolStatus(TypedDict):
    """A pool.

    Attributes:
        pool: its name.
        session: the number of its session with this hub.
        state: "opening", "ready", "paused", "draining", "silent" or "cut"; a ready one is given tasks.
        slots: its slots.
        busy: slots that run a task.
        outstanding: tasks that it has, running or next in line.
        queues: queues that it serves.
        tags: its tags.
        host: the name of its machine.
        pid: its process there.
        python: its version of Python.
        heard: when it was heard of last.
    """

    pool: str
    session: int
    state: str
    slots: int
    busy: int
    outstanding: int
    queues: list[str]
    tags: list[str]
    host: str
    pid: int
    python: str
    heard: float


class QueueStatus(TypedDict):
    """Tasks that wait in one queue for pools with the same tags.

    Attributes:
        queue: its name.
        tags: tags that a pool must have.
        waiting: how many wait.
        oldest: for how long the first of them has waited.
        pools: pools that serve it.
        slots: their slots, of those that take work.
        busy: such slots that run a task.
    """

    queue: str
    tags: list[str]
    waiting: int
    oldest: float
    pools: int
    slots: int
    busy: int


class Quantiles(TypedDict):
    """Times of which half, 95 and 99 of a hundred are no longer; None before there are any."""

    p50: float | None
    p95: float | None
    p99: float | None


class FunctionStatus(TypedDict):
    """The tasks of one function that have ended.

    Attributes:
        name: its name.
        succeeded: that have succeeded.
        cancelled: that were cancelled.
        failed: that have ended in another way.
        kinds: these by the kind of their end.
        slot_seconds: the time that its tasks took in slots.
        run: how long one takes in its slot.
        wait: how long one waits from its acceptance to its first start.
    """

    name: str
    succeeded: int
    cancelled: int
    failed: int
    kinds: dict[str, int]
    slot_seconds: float
    run: Quantiles
    wait: Quantiles


class SinkStatus(TypedDict):
    """A sink.

    Attributes:
        sink: its name.
        key: the key whose user it belongs to; None for everybody's.
        waiting: outcomes that wait.
        unacknowledged: outcomes that consumers have.
        bytes: of all of these.
        consumers: programs that take from it.
        acknowledged: outcomes that consumers have taken.
        full: tasks whose outcomes go there wait.
    """

    sink: str
    key: str | None
    waiting: int
    unacknowledged: int
    bytes: int
    consumers: int
    acknowledged: int
    full: bool


class JournalStatus(TypedDict):
    """The hub's journal.

    Attributes:
        state: "connected", or the trouble that it has.
        why: the reason for that; empty if it has none.
        epoch: the number of the hub's start with this journal.
        number: of its last transaction.
        transactions: of this hub.
        waiting: changes that wait to be written.
        waiting_bytes: their bytes.
        full: it takes no more durable tasks.
        lag: how long the last changes took to be written.
        unsynced: since when it has what is not on the disk yet.
    """

    state: str
    why: str
    epoch: int
    number: int
    transactions: int
    waiting: int
    waiting_bytes: int
    full: bool
    lag: float
    unsynced: float


class KeptStatus(TypedDict):
    """Outcomes that are kept for whoever asks: how many, their bytes, and those that had no room."""

    outcomes: int
    bytes: int
    evicted: int


class LettersStatus(TypedDict):
    """Dead letters: how many, their bytes, and those that had no room."""

    letters: int
    bytes: int
    evicted: int


class ClientStatus(TypedDict):
    """A program that submits tasks.

    Attributes:
        client: its id.
        name: its name.
        key: the key that it shows; None without one.
        present: it is there; else it has tasks here, and is awaited.
        tasks: that it has here.
    """

    client: str
    name: str
    key: str | None
    present: bool
    tasks: int


class HubStatus(TypedDict):
    """A hub, and all that it knows of.

    Tasks that share a key count once, and attachments not at all.

    Attributes:
        verdicts: sentences about all that is wrong, and what to do.
        epoch: when the hub has started, in milliseconds since 1970: its counts begin then.
        accepted: tasks that it has accepted.
        finished: of these, tasks that have ended.
        ended: these by how they have ended.
        tasks: the others by state.
        orphans: tasks whose programs have left.
        unclaimed: tasks that pools hold for programs that are not back.
        bytes: of arguments.
        duplicate_results: results of tasks that had one.
        stale_failures: failures of attempts that did not count any more.
        pools: the pools.
        refused: why pools were not let in, by their names.
        warnings: texts about the hub, pools and programs, by who they are.
        queues: the queues where most tasks wait, and others that pools serve.
        journal: the journal; None without one.
        kept: outcomes that are kept.
        dead: dead letters.
        sinks: the sinks.
        functions: the functions that have used most time.
        clients: the programs.
    """

    verdicts: list[str]
    epoch: int
    accepted: int
    finished: int
    ended: dict[str, int]
    tasks: dict[str, int]
    orphans: int
    unclaimed: int
    bytes: int
    duplicate_results: int
    stale_failures: int
    pools: list[PoolStatus]
    refused: dict[str, str]
    warnings: dict[str, str]
    queues: list[QueueStatus]
    journal: JournalStatus | None
    kept: KeptStatus
    dead: LettersStatus
    sinks: list[SinkStatus]
    functions: list[FunctionStatus]
    clients: list[ClientStatus]
