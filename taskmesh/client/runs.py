"""Runs of futures: pending tasks that have the same in common, as a message carries them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.waiters import Edges
from taskmesh.messages.runs import Run
from taskmesh.system.clock import monotonic


def depends(future: TaskFuture[Any]) -> bool:
    extras = future._extras
    return extras is not None and extras.edges is not None and bool(extras.edges.upstream)


def by_run(futures: Iterable[TaskFuture[Any]]) -> Iterator[tuple[OpenRun, list[TaskFuture[Any]]]]:
    """Group futures in their order, as runs have them; a run that another one interrupts comes again."""
    for (run, _, _), group in itertools.groupby(futures, key=_like):
        yield run, list(group)


def _like(future: TaskFuture[Any]) -> tuple[OpenRun, bool, bool]:
    """Return what tasks of one run have in common."""
    edges = future._ensure_waiters().edges or Edges()
    return future._run, bool(edges.needs), bool(edges.after)


def dependent_run(run: OpenRun, futures: list[TaskFuture[Any]], *, again: bool) -> Run:
    """Return tasks that depend on others as a message carries them."""
    sent = sent_run(run, futures, again=again)
    sent.when = run.when
    edges = [future._ensure_waiters().edges or Edges() for future in futures]
    needs = [[other._seq for other in each.needs] for each in edges]
    after = [[other._seq for other in each.after] for each in edges]
    sent.needs = needs if all(needs) else []
    sent.after = after if all(after) else []
    return sent


def sent_run(run: OpenRun, futures: list[TaskFuture[Any]], *, again: bool) -> Run:
    """Return tasks of a run as a message carries them."""
    delay = max(0.0, run.start_at - monotonic()) if run.start_at else 0.0
    sent = Run(
        run.number,
        run.group,
        [future._seq for future in futures],
        [future._content for future in futures],
        run.key,
        again,
        delay,
        run.tried,
    )
    if run.part:
        sent.part = run.part
    if delay:
        sent.at = run.at
    return sent
