"""Outcomes that later submissions under the same key are answered with, for some seconds after the end."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskmesh.core.clients import size_of, size_of_failure
from taskmesh.core.states import TaskRecord
from taskmesh.wire.messages import DoneRun, Failed

KEPT_BYTES: Final = 256 << 20
_REMEMBERED: Final = frozenset({"exception", "result"})
"""Bad ends that another attempt would come to as well, unless the retry filter admits them."""

Outcome = DoneRun | Failed
Key = tuple[str, str]


class Memory:
    """Outcomes by task name and key. The oldest go when there is no room for a new one.

    Args:
        limit: bytes of all outcomes together.

    Attributes:
        now: the hub's clock. size: bytes that are kept.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.now = 0.0
        self.size = 0
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[float, int, Outcome]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, record: TaskRecord, outcome: Outcome) -> None:
        """Notes how a task ended, if it has a key and its spec asks for that."""
        spec, extra = record.spec.spec, record.extra
        if spec.keep <= 0 or extra is None or extra.key is None:
            return
        if isinstance(outcome, Failed):
            if outcome.kind not in _REMEMBERED or outcome.retryable:
                return
            size = size_of_failure(outcome)
        elif spec.shared != "all":
            return
        else:
            size = size_of(outcome)
        self._forget(extra.key)
        if size > self._limit:
            return
        self._kept[extra.key] = (self.now + spec.keep, size, outcome)
        self.size += size
        while self.size > self._limit:
            self._forget(next(iter(self._kept)))

    def find(self, key: Key) -> Outcome | None:
        """What the key's task ended with, if that is still kept."""
        until, _, outcome = self._kept.get(key, (0.0, 0, None))
        return outcome if until > self.now else None

    def sweep(self) -> None:
        """Forgets what is over."""
        for key in [key for key, (until, _, _) in self._kept.items() if until <= self.now]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self.size -= self._kept.pop(key, (0.0, 0, None))[1]
