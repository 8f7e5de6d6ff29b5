"""Outcomes that later submissions under the same key are answered with, for some seconds after the end."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from taskmesh.core.hub.states import TaskRecord
from taskmesh.core.link import size_of, size_of_failure
from taskmesh.wire.runs import DoneRun, Failed, Kept

KEPT_BYTES: Final = 256 << 20
ENTRY: Final = 800
"""Bytes that an outcome takes beside its payload, about: small ones are most of them."""
STALE: Final = 64
_REMEMBERED: Final = frozenset({"exception", "result"})
"""Bad ends that another attempt would come to as well, unless the retry filter admits them."""

Outcome = DoneRun | Failed
Key = tuple[str, str]


class ResultCache:
    """Outcomes by task name and key. The oldest go when there is no room for a new one.

    Args:
        limit: bytes of all outcomes together. stored: whether `fresh` is to be filled.

    Attributes:
        size: bytes that are kept.
        fresh: what was kept and has not been taken to the store: until when, and what.
    """

    def __init__(self, limit: int = KEPT_BYTES, *, stored: bool = False) -> None:
        self.size = 0
        self.fresh: list[tuple[float, Kept]] = []
        self._stored = stored
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[float, int, Outcome]] = OrderedDict()
        self._ends: list[tuple[float, Key]] = []  # a heap, with ends of such as went before

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        """Notes how a task ended, if it has a key and its spec asks for that."""
        spec, extra = record.spec.spec, record.extra
        if extra is None or extra.key is None:
            return
        if isinstance(outcome, Failed) or spec.shared == "all":
            self.keep_for(extra.key, spec.keep, outcome, now)

    def keep_for(self, key: Key, keep: float, outcome: Outcome, now: float) -> None:
        """Note an outcome for `keep` seconds, if another attempt would come to it as well."""
        if keep <= 0:
            return
        if not isinstance(outcome, Failed):
            kept = Kept(*key, keep, [outcome], [])
        elif would_come_again(outcome):
            kept = Kept(*key, keep, [], [outcome])
        else:
            return
        if self._put(key, now + keep, outcome) and self._stored:
            self.fresh.append((now + keep, kept))

    def restore(self, entries: Iterable[tuple[float, Kept]], now: float) -> None:
        """Takes in what an earlier hub has kept, but nothing in place of what is known here.

        Nobody vouches for what a store says: no outcome is kept for longer than its task asked for.
        """
        for until, kept in entries:
            key = (kept.name, kept.key)
            outcome: Outcome = kept.done[0] if kept.done else kept.failed[0]
            end = min(until, now + kept.keep)
            fit = not isinstance(outcome, Failed) or would_come_again(outcome)
            if fit and end > now and self.find(key, now) is None:
                self._put(key, end, outcome)

    def _put(self, key: Key, until: float, outcome: Outcome) -> bool:
        """Keeps an outcome, if it is not too large for any room."""
        size = size_of_failure(outcome) if isinstance(outcome, Failed) else size_of(outcome)
        size += ENTRY + len(key[0]) + len(key[1])
        self._forget(key)
        if size > self._limit:
            return False
        self._kept[key] = (until, size, outcome)
        self.size += size
        heapq.heappush(self._ends, (until, key))
        while self.size > self._limit:
            self._forget(next(iter(self._kept)))
        if len(self._ends) > 2 * len(self._kept) + STALE:
            self._ends = [(until, key) for key, (until, _, _) in self._kept.items()]
            heapq.heapify(self._ends)
        return True

    def find(self, key: Key, now: float) -> Outcome | None:
        """Return the outcome that is kept for a key, or None."""
        until, _, outcome = self._kept.get(key, (0.0, 0, None))
        return outcome if until > now else None

    def sweep(self, now: float) -> None:
        """Forgets what is over; looks at nothing else."""
        while self._ends and self._ends[0][0] <= now:
            _, key = heapq.heappop(self._ends)
            if key in self._kept and self._kept[key][0] <= now:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self.size -= self._kept.pop(key, (0.0, 0, None))[1]


def would_come_again(failure: Failed) -> bool:
    """Return True if another attempt would end in the same way."""
    return failure.kind in _REMEMBERED and not failure.retryable
