"""Which of a client's tasks the hub has confirmed: all up to a number, and a few beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_AHEAD_LIMIT = 100_000


class Acceptance:
    """A set of counters that fills up from 1, mostly in order.

    Attributes:
        to: every counter up to this one is in the set.
    """

    def __init__(self) -> None:
        self.to = 0
        self._ahead: set[int] = set()

    def add(self, seqs: Sequence[int], oldest: Callable[[], int]) -> None:
        """Adds distinct counters; repeats are harmless.

        Args:
            seqs: at least one.
            oldest: tells the oldest counter that can still be missing: a hub that leaves gaps must not make
                us remember everything beyond them for ever.
        """
        low, high = min(seqs), max(seqs)
        if high <= self.to:
            return
        ahead = self._ahead
        if low == self.to + 1 and high - low + 1 == len(seqs):
            self.to = high
            if ahead:  # cancelled before the hub confirmed them
                ahead.difference_update(seqs)
        else:
            ahead.update([seq for seq in seqs if seq > self.to])
            if len(ahead) > _AHEAD_LIMIT:
                self.to = max(self.to, oldest() - 1)
                self._ahead = ahead = {seq for seq in ahead if seq > self.to}
        while self.to + 1 in ahead:
            self.to += 1
            ahead.discard(self.to)

    @property
    def has_gaps(self) -> bool:
        """Whether counters are in the set that stand beyond one that is not."""
        return bool(self._ahead)

    def __contains__(self, seq: int) -> bool:
        return seq <= self.to or seq in self._ahead
