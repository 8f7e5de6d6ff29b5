"""A set of counters kept as intervals and bits: a million finished tasks cost a few numbers, in any order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

BITS = 10
BLOCK = 1 << BITS
"""Numbers of one block. Blocks that are not whole are found by a hash: kept as intervals, a million tasks
that end in another order than they came in moved megabytes for each of them."""
LAST = BLOCK - 1
FULL = (1 << BLOCK) - 1
COST = 300
"""Bytes that a block which is not whole takes, about."""


class IntervalSet:
    """Non-negative ints, mostly consecutive. Adding a consecutive run costs a step or three.

    Attributes:
        end: one more than the highest number that was ever in it, 0 when there was none.
        blocks: bits of the blocks that are neither whole nor empty; each takes about COST bytes.
    """

    __slots__ = ("_ends", "_starts", "blocks", "end")

    def __init__(self) -> None:
        self.end = 0
        self.blocks: dict[int, int] = {}
        self._starts: list[int] = []  # of whole blocks
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        bits = self.blocks.get(number >> BITS)
        if bits is None:
            return self._is_whole(number >> BITS)
        return bool(bits >> (number & LAST) & 1)

    def __len__(self) -> int:
        whole = sum(end - start for start, end in zip(self._starts, self._ends, strict=True))
        return whole * BLOCK + sum(bits.bit_count() for bits in self.blocks.values())

    @property
    def pieces(self) -> int:
        """The number of intervals. It looks at every block."""
        begins = sum((bits & ~(bits << 1)).bit_count() for bits in self.blocks.values())
        edges = [block for block, bits in self.blocks.items() if bits & 1] + self._starts
        joined = sum((block << BITS) - 1 in self for block in edges)
        return begins + len(self._starts) - joined

    def add(self, number: int) -> None:
        """Add one number; adding it again changes nothing."""
        block = number >> BITS
        bits = self.blocks.get(block)
        if bits is None or (bits := bits | 1 << (number & LAST)) == FULL:
            self._add(number, number + 1)  # the first of a block, or the last
            return
        self.blocks[block] = bits
        if number >= self.end:
            self.end = number + 1

    def add_all(self, numbers: Sequence[int]) -> None:
        """Add many numbers, quickest when they are consecutive and rising."""
        if not numbers:
            return
        first, last = numbers[0], numbers[-1]
        if len(numbers) == 1:
            self.add(first)
            return
        if last - first + 1 == len(numbers) and list(numbers) == list(range(first, last + 1)):
            self._add(first, last + 1)
            return
        self.end = max(self.end, max(numbers) + 1)
        block, bits = first >> BITS, 0
        for number in numbers:
            if number >> BITS != block:
                self._fill(block, bits)
                block, bits = number >> BITS, 0
            bits |= 1 << (number & LAST)
        self._fill(block, bits)

    def discard(self, number: int) -> None:
        """Take one number out; `end` stays where it is."""
        block = number >> BITS
        if self._is_whole(block):
            at = bisect_right(self._starts, block) - 1
            sides = (self._starts[at], block), (block + 1, self._ends[at])
            self._starts[at : at + 1] = [start for start, end in sides if start < end]
            self._ends[at : at + 1] = [end for start, end in sides if start < end]
            self.blocks[block] = FULL
        bits = self.blocks.pop(block, 0) & ~(1 << (number & LAST))
        if bits:
            self.blocks[block] = bits

    def _add(self, start: int, end: int) -> None:
        self.end = max(self.end, end)
        first, last = start >> BITS, (end - 1) >> BITS
        if first == last:
            self._fill(first, (1 << (end - start)) - 1 << (start & LAST))
            return
        self._fill(first, FULL >> (start & LAST) << (start & LAST))
        self._fill(last, FULL >> (LAST - (end - 1 & LAST)))
        if first + 1 < last:
            for block in range(first + 1, last):
                self.blocks.pop(block, None)
            self._join(first + 1, last)

    def _fill(self, block: int, bits: int) -> None:
        known = self.blocks.get(block)
        if known is None and self._starts and self._is_whole(block):
            return
        bits |= known or 0
        if bits != FULL:
            self.blocks[block] = bits
            return
        self.blocks.pop(block, None)
        self._join(block, block + 1)

    def _is_whole(self, block: int) -> bool:
        at = bisect_right(self._starts, block) - 1
        return at >= 0 and block < self._ends[at]

    def _join(self, start: int, end: int) -> None:
        """Note blocks as whole."""
        starts, ends = self._starts, self._ends
        low = bisect_right(starts, start)
        if low and ends[low - 1] >= start:
            low -= 1
            start = starts[low]
            end = max(end, ends[low])
        high = bisect_right(starts, end)
        if high > low:
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
