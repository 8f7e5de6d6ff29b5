"""Clients together: what they are to hear, what the hub knows of them, and what of theirs is cancelled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine.books.client_session import ClientSession
from taskmesh.messages.mesh_messages import Answer
from taskmesh.messages.runs import DoneRun, Failed


class Due:
    """News that clients are to hear.

    Attributes:
        acks: clients that are to hear how many of their Submits are in the ledger, and by when.
        news: clients that may be sent outcomes.
        unwritten: clients of whose Submits the journal has not all.
        answers: to clients, once the journal has the changes of these numbers.
    """

    def __init__(self) -> None:
        self.acks: dict[int, float] = {}
        self.news: set[int] = set()
        self.unwritten: dict[int, ClientSession] = {}
        self.answers: deque[tuple[int, int, Answer]] = deque()


class KnownClients:
    """Knowledge of clients beside their sessions.

    Attributes:
        most_kept: bytes of outcomes that may wait for one client before no more of its tasks are run.
        opened: how many sessions there have been.
        forgotten: clients that were forgotten, and have been told so.
        leaving: clients that have gone, with what has ended for them and is still to be written.
        slots: how many slots serve a queue and tags, as counted since the last sweep.
    """

    def __init__(self, most_kept: int) -> None:
        self.most_kept = most_kept
        self.opened = 0
        self.forgotten: dict[int, bool] = {}
        self.leaving: deque[tuple[int, Iterator[DoneRun | Failed]]] = deque()
        self.slots: dict[tuple[str, frozenset[str]], int] = {}


class Extent(IntEnum):
    """The part of a client's tasks that ends, from little to much."""

    BOUND = 0
    """Those with on_client_loss="cancel"."""
    ATTACHED = 1
    """All but detached ones."""
    ALL = 2


class Pending:
    """The cancellation of one client's tasks, while it is under way.

    Attributes:
        seqs: counters of those that have not been looked at; what came later is left alone.
        extent: which tasks.
        reason: why, for the log; empty for what needs no line there.
        count: how many were cancelled.
    """

    __slots__ = ("count", "extent", "reason", "seqs")

    def __init__(self, seqs: Iterable[int], extent: Extent, reason: str) -> None:
        self.seqs = deque(seqs)
        self.extent = extent
        self.reason = reason
        self.count = 0


class Cancellations:
    """Tasks that are being cancelled.

    Attributes:
        pending: what is to be cancelled, by client.
        at_pools: what pools are to drop: by session, then by client and attempt.
    """

    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}
        self.at_pools: dict[int, dict[tuple[int, int], list[int]]] = {}

    def at_pool(self, session: int, attempt: int, task: int) -> None:
        """Has the pool that holds a task told to drop it, with others of this moment."""
        cancels = self.at_pools.setdefault(session, {})
        cancels.setdefault((task >> SEQ_BITS, attempt), []).append(task & SEQ_MASK)
