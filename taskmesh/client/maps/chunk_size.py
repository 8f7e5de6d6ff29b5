"""The size of a map's chunks, and the number of chunks that are sent ahead of the results."""

from __future__ import annotations

import math

_CHUNK_S = 0.008
"""A chunk takes about this long: much longer than handing it over, much shorter than anybody's patience."""

_AHEAD_S = 0.1
"""Work that waits for each slot: a refill needs the GIL thrice, and a caller that computes keeps it 5 ms."""

_GROWTH = 8
_MAX_ITEMS = 4096
_MAX_BYTES = 256 << 10
_FEW, _MANY = 2, 32


class ChunkSizer:
    """Sizes for the chunks of one map, from what earlier chunks took.

    Attributes:
        ahead: chunks that may be on their way at a time.
        bound: as given.
    """

    def __init__(self, slots: int, total: int | None, chunksize: int | None = None, bound: int | None = None):
        """Begin with what is known before the first chunk.

        Args:
            slots: how many run at a time.
            total: items in all, None when unknown.
            chunksize: items in a chunk; None measures.
            bound: items that may be drawn and not yet given out, None for no bound.
        """
        self.bound = bound
        self._slots = slots
        self._item_s: float | None = None
        self._item_bytes = 1.0
        self._proven = 1
        self._most = _MAX_ITEMS
        if total is not None:
            self._most = min(self._most, total // (4 * slots))
        if bound is not None:
            self._most = min(self._most, bound // (2 * slots))
        self._fixed = chunksize
        if self._most <= 1:  # there is nothing to measure for
            self._fixed = chunksize or 1
        self.ahead: float = _FEW * slots if self._fixed is None else math.inf

    def size(self, left: int | None) -> int:
        """Return the items of the next chunk; fewer if few are `left`, so that all slots end together."""
        if self._fixed is not None:
            return self._fixed
        if self._item_s is None:
            return 1
        items = self._chunk_items()
        if left is not None:
            items = min(items, left // (2 * self._slots))
        return max(1, items)

    def observe_time(self, items: int, seconds: float) -> None:
        if self._fixed is not None or items < 1:
            return
        measured = max(seconds / items, 1e-8)
        if self._item_s is None or measured > self._item_s:
            self._item_s = measured  # a surprise for the worse counts at once, one for the better by and by
        else:
            self._item_s = (self._item_s + measured) / 2
        self._proven = max(self._proven, items)
        chunk_s = self._chunk_items() * self._item_s
        self.ahead = self._slots * min(_MANY, max(_FEW, math.ceil(_AHEAD_S / chunk_s)))

    def observe_bytes(self, items: int, size: int) -> None:
        self._item_bytes = max(1.0, size / items)

    def _chunk_items(self) -> int:
        item_s = self._item_s or _CHUNK_S
        by_time = int(_CHUNK_S / item_s)
        by_bytes = int(_MAX_BYTES / self._item_bytes)
        return max(1, min(by_time, by_bytes, self._proven * _GROWTH, self._most))
