"""Runs of tasks cut into parts."""

from __future__ import annotations

from taskmesh.wire.messages import Run


def split_run(run: Run, limit: int, size: int) -> list[Run]:
    """A run in parts of at most `limit` tasks and `size` bytes, but for a task that is larger by itself."""
    if len(run.seqs) <= limit and sum(map(len, run.payloads)) <= size:
        return [run]
    parts: list[Run] = []
    start = weight = 0
    for index, payload in enumerate(run.payloads):
        if index > start and (index - start >= limit or weight + len(payload) > size):
            parts.append(part_of(run, start, index))
            start, weight = index, 0
        weight += len(payload)
    return [*parts, part_of(run, start, len(run.seqs))]


def part_of(run: Run, start: int, end: int) -> Run:
    """Some tasks of a run as a run."""
    return Run(run.spec, run.group, run.seqs[start:end], run.payloads[start:end], run.key, run.again)
