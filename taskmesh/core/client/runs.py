"""Runs of tasks cut into parts."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from msgspec.structs import replace

from taskmesh.wire.runs import Run


def split_run(run: Run, limit: int, size: int) -> list[Run]:
    """A run in parts of at most `limit` tasks and `size` bytes, but for a task that is larger by itself."""
    bytes_to = list(accumulate(map(len, run.payloads)))
    count = len(bytes_to)
    if count <= limit and (not count or bytes_to[-1] <= size):
        return [run]
    parts: list[Run] = []
    start = before = 0
    while start < count:
        end = bisect_right(bytes_to, before + size, start, min(start + limit, count))
        end = max(end, start + 1)
        parts.append(part_of(run, start, end))
        start, before = end, bytes_to[end - 1]
    return parts


def part_of(run: Run, start: int, end: int) -> Run:
    """Some tasks of a run as a run."""
    return replace(run, seqs=run.seqs[start:end], payloads=run.payloads[start:end])
