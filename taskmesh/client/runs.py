"""Runs of futures: pending tasks that have the same in common, as a message carries them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.waiters import Edges
from taskmesh.messages.runs import Run, Spec
from taskmesh.system.clock import monotonic

SPECS_REMEMBERED = 10_000
"""Beyond so many all are sent once more: a hub, which keeps far fewer, passes over those that it knows."""


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


class SpecsSent:
    """The numbers of specs that have been sent; a program that makes functions in a loop has ever more."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Note that a spec is sent; return True if it was not before."""
        if number in self._known:
            return False
        if len(self._known) >= SPECS_REMEMBERED:
            self._known.clear()
        self._known.add(number)
        return True


class OpenRuns:
    """Tasks that no Submit has taken yet, and the specs that were sent with others.

    Attributes:
        dirty: open runs with calls; a submitter appends one without a lock.
        dependents: tasks that depend on others, in their order: none comes before what it depends on.
    """

    __slots__ = ("_specs_sent", "dependents", "dirty")

    def __init__(self) -> None:
        self.dirty: list[OpenRun] = []
        self.dependents: list[TaskFuture[Any]] = []
        self._specs_sent = SpecsSent()

    def __bool__(self) -> bool:
        return bool(self.dirty or self.dependents)

    @property
    def undrained(self) -> set[int]:
        """Counters of the tasks."""
        futures = itertools.chain(self.dependents, *[list(run.queued) for run in list(self.dirty)])
        return {future._seq for future in futures}

    def drain(self, lock: AbstractContextManager[object]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Take the tasks as runs, with the specs that are new in them; `lock` guards the two lists."""
        specs: list[tuple[int, Spec]] = []
        runs: list[Run] = []
        with lock:  # whoever holds it is submitting tasks that are to travel together
            dependents = self.dependents[: len(self.dependents)]
            del self.dependents[: len(dependents)]
            taken = self.dirty[: len(self.dirty)]  # after the dependents: all that these depend on is there
            del self.dirty[: len(taken)]
        for run in taken:
            run.dirty = False  # first: what is queued from here on makes it dirty again
            futures = run.queued[: len(run.queued)]
            del run.queued[: len(futures)]
            if futures:
                runs.append(sent_run(run, futures, again=False))
                if self._specs_sent.is_new(run.number):
                    specs.append((run.number, run.spec))
        for run, futures in by_run(dependents) if dependents else ():
            runs.append(dependent_run(run, futures, again=False))
            if self._specs_sent.is_new(run.number):
                specs.append((run.number, run.spec))
        return specs, runs
