"""A client that keeps a log: what it submits, what is acknowledged, what each task ends with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from itertools import pairwise
from pathlib import Path
from typing import Any

from taskmesh import Mesh, TaskFuture
from taskmesh.errors import TaskMeshError
from tests.faults.checker import CANCELLED, OK, Verdict, check
from tests.faults.workload import answer, digest, ordinary, pause_of
from tests.harness.cluster import pools_of
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

SAMPLE_EVERY = 20
"""Looks at a condition between two looks at the hub's books."""


class Client:
    """One mesh, whose tasks log themselves, and the client's own log of them.

    Attributes:
        futures: by task number. samples: the hub's status at several moments.
    """

    def __init__(self, mesh: Mesh, folder: Path, name: str = "client") -> None:
        self.mesh = mesh
        self.log = Journal(folder / f"{name}.log")
        self.executions = Journal(folder / f"{name}-executions.log")
        self.futures: dict[int, TaskFuture[str]] = {}
        self.samples: list[dict[str, Any]] = []
        self.ended: set[int] = set()
        self._unconfirmed: set[int] = set()
        self._next = 0

    # --- submitting ---------------------------------------------------------------------------------------

    def submit(self, function: Callable[..., str], *arguments: object, **options: Any) -> int:
        """Submit a task of the workload; its log and number come first. Returns the number."""
        index = self._next
        self._next += 1
        surface = self.mesh.with_options(**options) if options else self.mesh
        self.log.write("submit", index)
        future = surface.submit(function, self.executions.path, index, *arguments)
        self.log.write("submitted", index, future.task_id)
        self.futures[index] = future
        self._unconfirmed.add(index)
        future.add_done_callback(lambda ended: self._ended(index, ended))
        return index

    def submit_ordinary(self, count: int, data: bytes = b"", **options: Any) -> list[int]:
        """Submit so many checksum tasks of 0 to 5 ms."""
        return [self.submit(ordinary, data, pause_of(i), **options) for i in range(count)]

    def cancel(self, index: int) -> bool:
        """Give a task up; False when it has ended."""
        cancelled = self.futures[index].cancel()
        if cancelled:
            self.log.write("cancel", index)
        return cancelled

    def _ended(self, index: int, future: Future[str]) -> None:
        """A task's done-callback."""
        assert isinstance(future, TaskFuture)
        try:
            result: object = future.result()
            kind, value = OK, digest(result) if isinstance(result, bytes) else str(result)
        except CancelledError:
            kind, value = CANCELLED, "-"
        except BaseException as error:  # noqa: BLE001  whatever the task ended with goes into the log
            kind, value = type(error).__name__, "-"
        self.log.write("outcome", index, kind, value, future.attempt)
        self.ended.add(index)

    # --- waiting ------------------------------------------------------------------------------------------

    def confirm(self) -> int:
        """Log what the hub has confirmed since the last look; return how many it has not."""
        for index in list(self._unconfirmed):
            if self.futures[index].accepted:
                self._unconfirmed.discard(index)
                self.log.write("accepted", index)
        return len(self._unconfirmed)

    def wait_accepted(self, timeout: float) -> None:
        wait_until(lambda: not self.confirm(), timeout, "the hub has confirmed every task")

    def wait_ended(self, count: int, timeout: float = 20.0) -> None:
        """Wait until so many tasks have ended."""
        self._wait(lambda: len(self.ended) >= count, timeout, f"{count} of {self._next} tasks have ended")

    def wait_for_each(self, indexes: Iterable[int], timeout: float = 20.0) -> None:
        """Wait until these tasks have ended."""
        wanted = set(indexes)
        self._wait(lambda: wanted <= self.ended, timeout, f"{len(wanted)} tasks have ended")

    def wait_all(self, timeout: float = 20.0) -> None:
        """Wait until every task has ended."""
        self.wait_ended(self._next, timeout)

    def wait_started(self, *indexes: int, timeout: float = 10.0) -> None:
        """Wait until the execution log says that these tasks have started."""
        self._wait(lambda: set(indexes) <= self.started(), timeout, f"tasks {indexes} have started")

    def wait_restarted(self, *indexes: int, timeout: float = 10.0) -> None:
        """Wait until the execution log says that each of these tasks has started a second time."""
        self._wait(
            lambda: all(self.starts(i) >= 2 for i in indexes), timeout, f"{indexes} have started again"
        )

    def wait_until_lane(self, pool: str, state: str, timeout: float) -> None:
        """Wait until the hub says that this pool is in this state."""

        def reached() -> bool:
            self.sample()
            return bool(self.samples) and pools_of(self.samples[-1]).get(pool, {}).get("state") == state

        self._wait(reached, timeout, f"{pool} is {state}")

    def watch_for(self, seconds: float, look: Callable[[], object] = lambda: None) -> None:
        """Let a fault last so long, and look at the hub's books, and what else there is, meanwhile."""
        end = time.monotonic() + seconds
        self._wait(lambda: bool(look()) or time.monotonic() >= end, seconds + 10, "time passes")

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        looks = 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            self.confirm()
            if looks % SAMPLE_EVERY == 0:
                self.sample()
            return condition()

        try:
            wait_until(look, timeout, what)
        except AssertionError as error:
            left = [index for index in self.futures if index not in self.ended]
            raise AssertionError(
                f"{error}; {len(self.ended)} have; not, for example, {self._words(left[:5])}"
            ) from None

    def _words(self, indexes: Iterable[int]) -> str:
        return ", ".join(f"{index}: {self.futures[index]!r}" for index in indexes)

    def sample(self) -> None:
        """Look at the hub's books, if it answers."""
        with contextlib.suppress(TaskMeshError):
            self.samples.append(self.mesh.status(timeout=0.2))

    # --- looking back -------------------------------------------------------------------------------------

    def started(self) -> set[int]:
        return {entry.index for entry in self.executions.entries() if entry.kind == "start"}

    def pid_of(self, index: int) -> int:
        """The process in which a task was started last."""
        return max(
            (entry.when, int(entry.fields[2]))
            for entry in self.executions.entries()
            if entry.kind == "start" and entry.index == index
        )[1]

    def restarted(self, index: int) -> float:
        """When a task was started for the second time."""
        starts = [e.when for e in self.executions.entries() if e.kind == "start" and e.index == index]
        return starts[1]

    def longest_gap(self, since: float, until: float | None = None) -> float:
        """Seconds for which no task ended, at most, between two moments: how long everything stood."""
        ends = [e.when for e in self.executions.entries() if e.kind == "end" and since <= e.when]
        moments = sorted([since, *(when for when in ends if until is None or when <= until)])
        moments += [until] if until is not None else []
        return max(after - before for before, after in pairwise(moments))

    def starts(self, index: int) -> int:
        """How often a task has started."""
        return sum(e.kind == "start" and e.index == index for e in self.executions.entries())

    def started_in(self, pids: Iterable[int]) -> set[int]:
        """The tasks that were started in one of these processes."""
        words = {str(pid) for pid in pids}
        return {e.index for e in self.executions.entries() if e.kind == "start" and e.fields[2] in words}

    def verdict(self, data: bytes = b"", **options: Any) -> Verdict:
        """Judge the run by its logs."""
        self.confirm()
        return check(
            self.log, self.executions, lambda index: answer(index, data), samples=self.samples, **options
        )

    def assert_clean(
        self, *, repeated: Iterable[int] | None = None, once: Iterable[int] = (), data: bytes = b""
    ) -> Verdict:
        """Assert that nothing was lost, duplicated or unexpected and every invariant holds.

        Args:
            repeated: the only tasks that may have run more than once; None for any.
            once: at-most-once tasks.
        """
        verdict = self.verdict(data, once=once)
        print(verdict)  # noqa: T201  shown with a failed test
        assert not verdict.violations, "\n".join(verdict.violations)
        assert verdict.submitted == len(self.futures) == len(self.ended)
        assert (verdict.lost, verdict.duplicated, verdict.unexpected) == ([], [], [])
        if repeated is not None:
            assert set(verdict.repeated) <= set(repeated), f"run again without a cause: {verdict.repeated}"
        return verdict
