"""Waiting for many futures: wait, as_completed, gather; without a condition for each of them.

Futures of other libraries are left to concurrent.futures' own functions.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from contextlib import closing, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.waiters import interruptible
from taskmesh.client.progress import ProgressCounter, ProgressOption
from taskmesh.client.progress_display import counter_of
from taskmesh.system.clock import monotonic

T = TypeVar("T")
F = TypeVar("F", bound=Future[Any])


class DoneAndNotDone(NamedTuple, Generic[F]):
    """The result of `wait`: a named pair of sets, as in concurrent.futures."""

    done: set[F]
    not_done: set[F]


def wait(
    fs: Iterable[F], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone[F]:
    """Wait as `concurrent.futures.wait` does.

    Args:
        fs: futures, or a generator of them.
        timeout: seconds; what is not done then is in `not_done`.
        return_when: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION of concurrent.futures.

    Raises:
        TypeError: one of them is no future.
        ValueError: `return_when` is none of these.
    """
    futures = list(dict.fromkeys(fs))
    ours = _ours(futures)
    if ours is None:
        waited = concurrent.futures.wait(futures, timeout, return_when)
        return DoneAndNotDone(cast(set[F], waited.done), cast(set[F], waited.not_done))
    deadline = _deadline(timeout)
    if return_when == ALL_COMPLETED:
        _wait_for_all(ours, deadline)
    elif return_when in {FIRST_COMPLETED, FIRST_EXCEPTION}:
        _wait_for_first(ours, deadline, failed=return_when == FIRST_EXCEPTION)
    else:
        raise ValueError(f"invalid return condition: {return_when!r}")
    done = {future for future in futures if future.done()}
    return DoneAndNotDone(done, set(futures) - done)


def as_completed(
    fs: Iterable[F], timeout: float | None = None, *, progress: ProgressOption = False
) -> Iterator[F]:
    """Iterate over futures as they end; each once.

    Args:
        fs: futures, or a generator of them, which is drawn first.
        timeout: seconds from now until all of them have to be done.
        progress: show how many have ended, as `map` does.

    Raises:
        TimeoutError: (while iterating) they were not.
        TypeError: one of them is no future.
        ConfigError: `progress` cannot be used.
    """
    futures = list(dict.fromkeys(fs))
    counter = counter_of(progress, "tasks", len(futures))
    ours = _ours(futures)
    if ours is None:
        ended = cast(Iterator[F], concurrent.futures.as_completed(futures, timeout))
    else:
        ended = cast(Iterator[F], _completed(ours, _deadline(timeout)))
    return ended if counter is None else _counted(ended, counter)


@overload
def gather(
    futures: Iterable[Future[T]], *, timeout: float | None = None, progress: ProgressOption = False
) -> list[T]: ...


@overload
def gather(
    futures: Iterable[Future[T]],
    *,
    timeout: float | None = None,
    return_exceptions: bool,
    progress: ProgressOption = False,
) -> list[T | BaseException]: ...


def gather(
    futures: Iterable[Future[Any]],
    *,
    timeout: float | None = None,
    return_exceptions: bool = False,
    progress: ProgressOption = False,
) -> list[Any]:
    """Return the results of all futures, in their order.

    Args:
        futures: futures, or a generator of them.
        timeout: seconds from now until all of them have to be done.
        return_exceptions: put errors into the list; else the first that is known is raised at once, and the
            other tasks go on.
        progress: show how many have ended, as `map` does.

    Raises:
        TimeoutError: they were not done in time.
        TypeError: one of them is no future.
        ConfigError: `progress` cannot be used. Else the first task's own error, or TaskError, that is known.
    """
    every = list(futures)
    until = ALL_COMPLETED if return_exceptions else FIRST_EXCEPTION
    waited = wait(every, timeout, until) if not progress else _shown(every, timeout, until, progress)
    if not return_exceptions:
        failed = [future for future in every if future.done() and _has_failed(future)]
        for future in failed[1:]:  # the first is raised in their place
            if isinstance(future, TaskFuture):
                future._retrieved()
        if failed:
            failed[0].result()
    if waited.not_done:
        raise TimeoutError(f"{len(waited.not_done)} of {len(every)} tasks were not done within {timeout:g} s")
    if return_exceptions:
        return [_result_or_error(future) for future in every]
    return [future.result() for future in every]


def _shown(
    futures: list[Future[Any]], timeout: float | None, until: str, progress: ProgressOption
) -> DoneAndNotDone[Future[Any]]:
    """Wait, and show how many have ended."""
    ended = cast(Generator[Future[Any]], as_completed(futures, timeout, progress=progress))
    with closing(ended), suppress(TimeoutError):
        for future in ended:
            if until == FIRST_EXCEPTION and _has_failed(future):
                break
    return wait(futures, 0)


def _counted(futures: Iterator[F], counter: ProgressCounter) -> Iterator[F]:
    """Yield futures that have ended, and count them; none that was yielded is kept."""

    def counted(future: F) -> F:
        counter.add(1, _has_failed(future))
        return future

    counter.add(0)
    try:
        yield from map(counted, futures)
    finally:
        counter.end()


def _ours(futures: Sequence[Future[Any]]) -> list[TaskFuture[Any]] | None:
    """Return the futures if all of them are TaskFutures, else None."""
    ours = [future for future in futures if isinstance(future, TaskFuture)]
    for future in futures if len(ours) != len(futures) else ():
        if not isinstance(future, Future):
            raise TypeError(f"futures are waited for, as submit() returns them, not {future!r:.200}")
    return ours if len(ours) == len(futures) else None


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else monotonic() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


def _wait_for_all(futures: list[TaskFuture[Any]], deadline: float | None) -> None:
    for future in futures:
        if not future.done() and not future._wait_done(_left(deadline)):
            return


def _wait_for_first(futures: list[TaskFuture[Any]], deadline: float | None, *, failed: bool) -> None:
    ended = _completed(futures, deadline)
    try:
        for future in ended:
            if not failed or _has_failed(future):
                return
    except TimeoutError:
        pass
    finally:
        ended.close()


def _completed(futures: list[TaskFuture[Any]], deadline: float | None) -> Any:
    """Yield futures as they end, taken out of the list; keep none that was given."""
    count = len(futures)
    futures.reverse()
    arrivals: SimpleQueue[TaskFuture[Any]] = SimpleQueue()
    arrive = arrivals.put
    pending: set[TaskFuture[Any]] = set()
    drivers = {future._run.table.waiter_pool.driver for future in futures}  # a generator would keep a future
    driver = next(filter(None, drivers), None)
    try:
        while futures:
            if futures[-1]._watch(arrive):
                pending.add(futures.pop())
            else:
                yield futures.pop()
        while pending:
            ended: list[TaskFuture[Any]] = []
            if not interruptible(partial(_arrival, arrivals, ended), _left(deadline), driver):
                raise TimeoutError(f"{len(pending)} of {count} tasks are not done")
            pending.discard(ended[0])
            yield ended.pop()
    finally:
        for future in pending:
            future._unwatch(arrive)


def _arrival(arrivals: SimpleQueue[TaskFuture[Any]], ended: list[TaskFuture[Any]], seconds: float) -> bool:
    """Take the next future that has ended; return False if none has within these seconds."""
    try:
        ended.append(arrivals.get(timeout=seconds))
    except Empty:
        return False
    return True


def _has_failed(future: Future[Any]) -> bool:
    """Return True if a done future ended with an error; a payload that is not rebuilt yet counts as fine."""
    if isinstance(future, TaskFuture):
        return future._has_failed()
    return not future.cancelled() and future.exception() is not None


def _result_or_error(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BaseException as error:  # noqa: BLE001  asked for
        return error
