"""Outcomes that are kept for a time after the end of their tasks, for all who ask by a key or an id."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, owned, plain
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.settings import KEPT_BYTES
from taskmesh.link.link import size_of, size_of_failure
from taskmesh.messages.journal_entries import KEPT, JournalKept
from taskmesh.messages.runs import UNKNOWN, DoneRun, Failed
from taskmesh.messages.status import KeptStatus

ENTRY: Final = 800
"""Bytes that an outcome takes beside its payload, about: small ones are most of them."""
STALE: Final = 64
_REMEMBERED: Final = frozenset({"exception", "result"})
"""Bad ends that another attempt would come to as well, unless the retry filter admits them."""

Outcome = DoneRun | Failed
Key = tuple[str, str]


def _nobody(_task: int) -> str:
    """Return the user of every task of a hub without keys."""
    return ""


class CachedOutcome:
    """One outcome that is kept.

    Attributes:
        number: its place in the journal.
        until: the hub's time of its end.
        outcome: the result of one task, or its bad end.
        key: the name of the task and its key, as `owned` has it; None if it answers no submission.
        tasks: the ids by which it can be asked for.
        user: whose tasks these are.
        size: the bytes that it is counted for.
    """

    __slots__ = ("key", "number", "outcome", "size", "tasks", "until", "user")

    def __init__(
        self, number: int, until: float, outcome: Outcome, key: Key | None, tasks: list[int], user: str
    ) -> None:
        self.number = number
        self.until = until
        self.outcome = outcome
        self.key = key
        self.tasks = tasks
        self.user = user
        size = size_of_failure(outcome) if isinstance(outcome, Failed) else size_of(outcome)
        self.size = size + ENTRY + (len(key[0]) + len(key[1]) if key is not None else 0)

    def entry(self, offset: float) -> JournalKept:
        """Return the entry of the journal.

        Args:
            offset: the time on the wall less the hub's own.
        """
        tasks = [(task >> SEQ_BITS, task & SEQ_MASK) for task in self.tasks]
        entry = JournalKept(self.until + offset, tasks, self.user)
        if self.key is not None:
            entry.name, entry.key = self.key[0], plain(self.key[1])
        if isinstance(self.outcome, Failed):
            entry.failed = self.outcome
        else:
            entry.done = self.outcome
        return entry

    @classmethod
    def of(cls, number: int, entry: JournalKept, offset: float) -> CachedOutcome:
        """Return the outcome of an entry that `entry` has made."""
        outcome = entry.done or entry.failed or Failed(0, 0, 0, UNKNOWN)
        key = (entry.name, owned(entry.user, entry.key)) if entry.key and _answers(outcome) else None
        tasks = [client << SEQ_BITS | seq for client, seq in entry.tasks]
        return cls(number, entry.until - offset, outcome, key, tasks, entry.user)


class ResultCache:
    """Outcomes by key and by id. The oldest go when there is no room for a new one.

    Args:
        limit: bytes of all outcomes together.
        journal: where they are written down, if there is one.
        offset: returns the time on the wall less the hub's own.

    Attributes:
        size: bytes that are kept.
        evicted: how many have gone before their time, since there was no room.
    """

    def __init__(
        self,
        limit: int = KEPT_BYTES,
        journal: JournalChanges | None = None,
        offset: Callable[[], float] = float,
    ) -> None:
        self.size = 0
        self.evicted = 0
        self._limit = limit
        self._kept: JournaledDict[int, CachedOutcome] = JournaledDict(
            journal,
            KEPT,
            encode=lambda _, cached: cached.entry(offset()),
            decode=lambda number, entry: (number, CachedOutcome.of(number, entry, offset())),
        )
        self._by_key: dict[Key, CachedOutcome] = {}
        self._by_task: dict[int, CachedOutcome] = {}
        self._ends: list[tuple[float, int]] = []  # a heap, with ends of such as went before
        self._next = 1

    def __len__(self) -> int:
        return len(self._kept)

    def view(self) -> KeptStatus:
        return {"outcomes": len(self._kept), "bytes": self.size, "evicted": self.evicted}

    def keep(
        self,
        record: TaskRecord,
        outcome: Outcome,
        now: float,
        *,
        user_of: Callable[[int], str] = _nobody,
    ) -> list[int]:
        """Note how a task ended, if its spec asks for that; return the ids by which that can be asked for.

        Args:
            record: the task.
            outcome: its result, or its bad end.
            now: the time.
            user_of: gives the user whose task one of them is: several may wait, by its key.
        """
        spec, extra = record.spec.spec, record.extra
        if extra is None or spec.keep <= 0:
            return []
        is_for_all = isinstance(outcome, Failed) or spec.shared == "all"
        key = extra.key if is_for_all and _answers(outcome) else None
        users: dict[str, list[int]] = {}
        for task in extra.waiting(record.id):
            users.setdefault(user_of(task), []).append(task)
        kept: list[int] = []
        for user, tasks in (users or {"": []}).items():
            cached = CachedOutcome(self._next, now + spec.keep, outcome, key, tasks, user)
            kept += tasks if self._put(cached) else []
            key = None  # the first one answers it
        return kept

    def keep_for(self, key: Key, keep: float, outcome: Outcome, now: float, *, user: str = "") -> None:
        """Note an outcome for `keep` seconds, if another attempt would come to it as well."""
        if keep <= 0 or not _answers(outcome):
            return
        self._put(CachedOutcome(self._next, now + keep, outcome, key, [], user))

    def add(self, key: Key, task: int, user: str = "") -> CachedOutcome:
        """Have another task answered with the outcome of a key: it can be asked for by its id, too."""
        first = self._by_key[key]
        cached = CachedOutcome(self._next, first.until, first.outcome, None, [task], user)
        self._put(cached)
        return cached

    def pending(self, cached: CachedOutcome) -> int:
        """Return the number of the journal's changes after which an outcome may be told; 0: now."""
        return self._kept.pending(cached.number)

    def restored(self) -> None:
        """Outcomes have been read: find them by key and by id."""
        for cached in list(self._kept.values()):
            self._next = cached.number + 1
            self._count_in(cached)

    def _put(self, cached: CachedOutcome) -> bool:
        """Keep an outcome, if it is not too large for any room."""
        if cached.key is not None and cached.key in self._by_key:
            self._forget(self._by_key[cached.key])
        if cached.size > self._limit:
            return False
        self._next += 1
        self._kept[cached.number] = cached
        self._count_in(cached)
        return True

    def _count_in(self, cached: CachedOutcome) -> None:
        if cached.key is not None:
            self._by_key[cached.key] = cached
        self._by_task.update(dict.fromkeys(cached.tasks, cached))
        self.size += cached.size
        heapq.heappush(self._ends, (cached.until, cached.number))
        while self.size > self._limit:
            self._forget(next(iter(self._kept.values())))
            self.evicted += 1
        if len(self._ends) > 2 * len(self._kept) + STALE:
            self._ends = [(cached.until, number) for number, cached in self._kept.items()]
            heapq.heapify(self._ends)

    def find(self, key: Key, now: float) -> CachedOutcome | None:
        cached = self._by_key.get(key)
        return cached if cached is not None and cached.until > now else None

    def of_task(self, task: int, now: float) -> CachedOutcome | None:
        cached = self._by_task.get(task)
        return cached if cached is not None and cached.until > now else None

    def sweep(self, now: float) -> None:
        """Forget what is over; look at nothing else."""
        while self._ends and self._ends[0][0] <= now:
            cached = self._kept.get(heapq.heappop(self._ends)[1])
            if cached is not None:
                self._forget(cached)

    def _forget(self, cached: CachedOutcome) -> None:
        del self._kept[cached.number]
        self.size -= cached.size
        if cached.key is not None and self._by_key.get(cached.key) is cached:
            del self._by_key[cached.key]
        for task in cached.tasks:
            if self._by_task.get(task) is cached:
                del self._by_task[task]


def _answers(outcome: Outcome) -> bool:
    """Return True if later submissions under the key of a task are answered with how it ended."""
    return not isinstance(outcome, Failed) or (outcome.kind in _REMEMBERED and not outcome.retryable)
