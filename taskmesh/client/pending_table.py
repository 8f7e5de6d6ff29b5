"""The pending table: every task of one client that has no outcome yet. Submitters put in, the port ends.

`put` is the hot path and takes no lock: each of its steps is one atomic operation, in an order that the
port's `drain` and `resolve` can meet at any point. Everything else holds `lock`, once for many tasks.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures._base import FINISHED, PENDING
from functools import partial
from typing import TYPE_CHECKING, Any

from taskmesh.client.dependencies import UpstreamTasks
from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.completion import Completion, End, complete, end_of
from taskmesh.client.futures.future import RAW, OpenRun, TaskFuture
from taskmesh.client.futures.outcome import Success
from taskmesh.client.futures.task_logs import MOST_KEPT, TaskLogs
from taskmesh.client.futures.waiters import Edges, WaiterPool, Waiters, interruptible, running_loop, wake
from taskmesh.client.runs import OpenRuns, by_run, dependent_run, depends, sent_run
from taskmesh.client.sequence import TAKE, Acceptance, SequenceNumbers
from taskmesh.config import ClientConfig
from taskmesh.errors import ForkedMeshError, MeshClosed, QueueFull
from taskmesh.messages.runs import DoneRun, Failed, Progress, Run, Spec
from taskmesh.serialize.payload import Payload

if TYPE_CHECKING:
    import asyncio

    from taskmesh.client.port.port import SubmitPort


def is_detached(future: TaskFuture[Any]) -> bool:
    """Return True if a task does not end with its client."""
    return future._run.spec.detach


_WEIGHTY = 256
"""Payloads up to this many bytes are bounded well enough by the number of tasks; larger ones are counted."""

_new = object.__new__


class PendingTable:
    """The client's tasks without an outcome: the `OpenTasks` of a port, and the TaskTable of its futures.

    Attributes:
        lock: guards everything but `put`; reentrant, since a signal handler or a finalizer may call in.
        client: the client id.
        refusal: why nothing is taken any more, None while the mesh is open.
        failed_with_port: tasks that were open when the port could not go on, for the reason of `refusal`.
        decoding: results that a thread is rebuilding, see TaskFuture.
        waiter_pool: for the threads that wait.
        memfd: whether large payloads go into memory files at once, since the port can pass these on.
        unresolved: the tasks without an outcome.
        weight: bytes of the larger calls of pending tasks, and of such that may run again for these.
    """

    def __init__(
        self, limits: ClientConfig, callbacks: CallbackThread, open_port: Callable[[], object]
    ) -> None:
        self.lock = threading.RLock()
        self.client = 0
        self.refusal: BaseException | None = None
        self.failed_with_port = 0
        self.decoding: dict[int, list[Any]] = {}
        self.waiter_pool = WaiterPool()
        self.logs = TaskLogs()
        self.memfd = False
        self._port: SubmitPort | None = None
        self._limits = limits
        self._open_port = open_port
        self._callbacks = callbacks
        self.unresolved: dict[int, TaskFuture[Any]] = {}
        self._open_runs = OpenRuns()
        self._sequence = SequenceNumbers()
        self._ceiling = 0  # the highest seq that may be pending now; none before there is a port
        self._weights: dict[int, int] = {}
        self.weight = 0
        self._upstream = UpstreamTasks(self.lock, self._lighten)
        self.values_of, self.calls_of = self._upstream.values_of, self._upstream.calls_of
        self._acceptance = Acceptance(self.unresolved)
        self._changed = threading.Condition(self.lock)
        self._watching = 0
        self._awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def attach(self, port: SubmitPort | None) -> None:
        """Name the port that drains this table: the first `put` asks for it.

        None: it did not open, and the next `put` asks again; or it has closed.
        """
        room = self._limits.max_pending
        with self.lock:
            self._port = port
            self._ceiling += -room if port is None else room
            if port is not None:
                self.client = port.client

    # --- the submitters' side

    def put(self, run: OpenRun, payload: Payload, edges: Edges | None = None) -> TaskFuture[Any]:
        """Add a task and make its future; wait while the table is full.

        Raises:
            QueueFull: it is full, and an event loop runs in this thread.
            MeshClosed: nothing is taken any more; or ForkedMeshError, or what broke the port.
        """
        seq = self._sequence.draw()
        if seq > self._ceiling or len(payload) > _WEIGHTY:
            seq = self._admit(seq, len(payload))
        future: TaskFuture[Any] = _new(TaskFuture)
        future._seq = seq
        future._run = run
        future._content = payload
        future._extras = None
        future._state = PENDING
        if edges is not None:
            return self._put_dependent(future, edges)
        try:
            self.unresolved[seq] = future
            run.queued.append(future)
        finally:  # an interrupt may come here, but must not leave a queued task that is never drained
            if not run.dirty:
                run.dirty = True
                self._open_runs.dirty.append(run)
            port = self._port
            if port is not None and port.sleeping:
                port.sleeping = False
                port.wake()
        return future

    def keep(self, run: OpenRun, payload: Payload) -> TaskFuture[Any]:
        """Make a future that has ended with this value, for tasks to depend on; no task runs for it."""
        future: TaskFuture[Any] = _new(TaskFuture)
        future._seq = seq = self._sequence.draw()
        future._run = run
        future._content = payload
        future._extras = None
        future._origin = Success(0, "", 0.0)
        future._form = RAW
        future._state = FINISHED
        with self.lock:
            self._acceptance.add([seq])
            self._free(1)
        weakref.finalize(future, self._drop, seq).atexit = False
        return future

    def _drop(self, seq: int) -> None:
        """Tell the hub that a value is not needed any more."""
        if self._port is not None:
            self._port.cancel([seq])

    def _put_dependent(self, future: TaskFuture[Any], edges: Edges) -> TaskFuture[Any]:
        """Add a task that depends on others: after all of these, in an order that the port keeps."""
        future._extras = waiters = Waiters()
        waiters.edges = edges
        with self.lock:
            self._upstream.hold(edges)
            self.unresolved[future._seq] = future
            self._open_runs.dependents.append(future)
            port = self._port
            if port is not None and port.sleeping:
                port.sleeping = False
                port.wake()
        return future

    def _admit(self, seq: int, size: int) -> int:
        """Open the port or wait for room if need be, then count the payload; return the seq to use."""
        if self._port is None and self.refusal is None:
            try:
                self._open_port()
            except BaseException:
                with self.lock:
                    self._ceiling += self._sequence.give_back(seq)
                raise
        with self.lock:
            if self.refusal is None and self._is_full():
                self._ceiling += self._sequence.give_back(seq)
                self._wait_for_room()
                seq = TAKE
            if self.refusal is not None:
                raise self.refusal
            if seq == TAKE:
                seq, old = self._sequence.take()
                self._ceiling -= old  # it takes room again
            if seq > self._ceiling:  # numbers that interrupted submits took are missing: count anew
                self._ceiling = seq + self._limits.max_pending - len(self.unresolved) - 1
            if size > _WEIGHTY:
                self._weights[seq] = size
                self.weight += size
            return seq

    def _wait_for_room(self) -> None:
        if running_loop() is not None:
            limits = self._limits
            raise QueueFull(
                f"{len(self.unresolved)} tasks of {limits.max_pending} and {self.weight} bytes of "
                f"{limits.max_bytes} are pending (client.max_pending, client.max_bytes): in an event loop "
                "use `await mesh.call()`, or `await mesh.asubmit()` for the future, which wait for room"
            )
        self._wait(lambda: not self._is_full(), None)

    def _is_full(self) -> bool:
        return len(self.unresolved) >= self._limits.max_pending or self.weight >= self._limits.max_bytes

    def room(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """Return what to await before `put` is tried again; None when there is room (or never will be)."""
        with self.lock:
            if not self._is_full() or self.refusal is not None:
                return None
            waiter: asyncio.Future[None] = loop.create_future()
            self._awaiting.append((loop, waiter))
            return waiter

    # --- waiting and giving up

    def flush(self, timeout: float | None) -> None:
        """Wait until the hub has confirmed every task submitted so far.

        Raises:
            TimeoutError: not within `timeout` seconds. Or what broke the port.
        """
        with self.lock:
            if not self._wait(self._acceptance.of_all(), timeout):
                raise TimeoutError(f"the hub has not confirmed every task within {timeout:g} s")
            if self.refusal is not None:
                raise self.refusal

    def wait_idle(self, more: Sized) -> None:
        """Wait until no task but detached ones is pending, and `more` is empty.

        Code that empties it calls `nudge()`.
        """
        pending = self.unresolved
        newest: TaskFuture[Any] | None = None

        def is_idle() -> bool:
            nonlocal newest
            if more:
                return False
            if newest is None or newest._seq not in pending:  # as a rule it ends last: few look at all
                newest = next((future for future in reversed(self.unended) if not is_detached(future)), None)
            return newest is None

        with self.lock:
            self._wait(is_idle, None)

    def nudge(self) -> None:
        """Have the threads that wait look again."""
        with self.lock:
            self._changed.notify_all()

    @property
    def unended(self) -> list[TaskFuture[Any]]:
        return list(self.unresolved.values())

    def _wait(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, lock held, for a change that makes the predicate true, or for the end of the mesh."""
        if self._open_runs and self._port is not None:
            self._port.wake()  # an interrupted submit may have left it asleep
        self._watching += 1
        try:
            ended = partial(self._changed.wait_for, lambda: self.refusal is not None or predicate())
            return interruptible(ended, timeout, self.waiter_pool.driver)
        finally:
            self._watching -= 1

    def cancel(self, futures: Iterable[TaskFuture[Any]] | None = None, *, tell: bool = True) -> int:
        """Cancel tasks, and tell the port; return how many of them were still pending.

        Args:
            futures: of the tasks. None cancels all of them without a word to the port, which is to close.
            tell: False: the hub goes on with them.
        """
        tell &= futures is not None
        if futures is None:
            futures = self.unended
        completion = Completion(self._callbacks)
        with self.lock:
            seqs = [future._seq for future in futures if self._take(future, None, completion)]
            if seqs:
                self._acceptance.add(seqs)
                self._release(seqs)
        completion.notify()
        if tell and seqs and self._port is not None:
            self._port.cancel(seqs)
        return len(seqs)

    def refuse(self, reason: BaseException | None = None) -> None:
        """Take no more tasks, and end the pending ones with the reason (default: MeshClosed)."""
        completion = Completion(self._callbacks)
        with self.lock:
            if self.refusal is None:
                self.refusal = reason or MeshClosed("this mesh is closed: open a new one")
            self._ceiling = -1
            ended = [future._seq for future in self.unended if self._take(future, self.refusal, completion)]
            self._release(ended)
            if reason is not None:
                self.failed_with_port += len(ended)
        completion.notify()
        self.waiter_pool.close()

    broken = refuse  # what a port that cannot go on calls

    def forked(self) -> None:
        """End every future with ForkedMeshError, in a forked child, where no thread can release the lock."""
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.decoding = {}
        self.waiter_pool.close()
        self._port = None
        self._ceiling = -1
        self.refusal = ForkedMeshError(
            "this mesh belongs to the parent process: open one here, after the fork"
        )
        for future in self.unresolved.values():
            future._extras = None
            complete(future, self.refusal, self._callbacks)
        self.unresolved.clear()

    def _take(self, future: TaskFuture[Any], end: End, completion: Completion) -> bool:
        """End the future if it is pending; lock held."""
        if self.unresolved.pop(future._seq, None) is None:
            return False
        extras = future._extras
        if extras is not None and extras.edges is not None:
            kind = "cancelled" if end is None else "lost"
            self._upstream.failed(future, extras.edges, Failed(0, future._seq, 0, kind))
        completion.add(future, end)
        return True

    def _release(self, seqs: Sequence[int]) -> None:
        """Free the room of tasks that are not pending any more; lock held."""
        for seq in seqs:
            self._lighten(seq)
        self._free(len(seqs))

    def _lighten(self, seq: int) -> None:
        """The call of a task is not kept any more; lock held."""
        self.weight -= self._weights.pop(seq, 0)

    def _free(self, count: int) -> None:
        self._ceiling += count
        if self._watching:
            self._changed.notify_all()
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, []
            wake(awaiting)

    # --- the futures' side

    @property
    def connected(self) -> bool:
        """True if the hub answers; before the mesh has opened nothing speaks against it."""
        return self._port is None or self._port.connected

    def is_accepted(self, seq: int) -> bool:
        return seq in self._acceptance

    def end_if_refused(self, future: TaskFuture[Any]) -> None:
        """Turn a future away that came in while the mesh was closing."""
        if self.refusal is not None and self.unresolved.pop(future._seq, None) is not None:
            complete(future, self.refusal, self._callbacks)

    # --- the port's side

    @property
    def queued(self) -> bool:
        return bool(self._open_runs.dirty or self._open_runs.dependents)

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Take the tasks submitted since the last drain, with the specs that are new in them."""
        return self._open_runs.drain(self.lock)

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuild unfinished tasks (of those given, or all drained ones), `again=True`, with their specs."""
        with self.lock:
            if seqs is None:
                self.accepted(list(self._acceptance.ended))  # they have ended, and no hub has them any more
                undrained = self._open_runs.undrained
                futures = [future for future in self.unended if future._seq not in undrained]
            else:
                futures = [future for seq in seqs if (future := self.unresolved.get(seq)) is not None]
            open_runs: dict[OpenRun, list[TaskFuture[Any]]] = {}
            dependents: list[TaskFuture[Any]] = []
            for future in futures:
                if depends(future):
                    dependents.append(future)
                else:
                    open_runs.setdefault(future._run, []).append(future)
            specs = {future._run.number: future._run.spec for future in futures}
            runs = [sent_run(run, own, again=True) for run, own in open_runs.items()]
            runs += [dependent_run(run, own, again=True) for run, own in by_run(dependents)]
            return list(specs.items()), runs

    def accepted(self, seqs: Sequence[int]) -> None:
        """Note that tasks are in the hub's ledger. Repeats are harmless."""
        if seqs:
            with self.lock:
                self._acceptance.add(seqs)
                if self._watching:
                    self._changed.notify_all()

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """End tasks. Those that are unknown, cancelled or resolved already are skipped."""
        completion = Completion(self._callbacks)
        with self.lock:
            for run in done:
                self._acceptance.end(run.seqs)
            count = self._succeed(done, completion)
            if failed:  # what is too large for it never reaches the hub
                self._acceptance.end([record.seq for record in failed if record.worker])
                self.accepted([record.seq for record in failed if not record.worker])
                count += self._fail(failed, completion)
            if self._weights:
                for seq in itertools.chain((record.seq for record in failed), *(run.seqs for run in done)):
                    if not self._upstream.keeps_call(seq):
                        self._lighten(seq)
            self._free(count)
        completion.notify()

    def _succeed(self, done: list[DoneRun], completion: Completion) -> int:
        """End the futures of tasks that have succeeded; return how many there were. Lock held."""
        count = 0
        pop = self.unresolved.pop
        for run in done:
            if run.payloads and not len(run.payloads[0]):
                count += self._succeed_bare(run, completion)
                continue
            count += len(run.seqs)
            origin = Success.of(run)  # not the run: it would keep every payload until the last is dropped
            for seq, payload in zip(run.seqs, run.payloads):  # noqa: B905  a check for each run costs more
                future = pop(seq, None)
                if future is None:
                    count -= 1
                    continue
                extras = future._extras
                if extras is not None:
                    if extras.edges is not None:
                        self._upstream.succeeded(future, extras.edges, payload, origin.attempt)
                    if not completion.collect(future, extras, (payload, origin)):
                        continue
                future._content = payload  # as `complete` does it
                future._origin = origin
                future._form = RAW
                future._state = FINISHED
        return count

    def _succeed_bare(self, run: DoneRun, completion: Completion) -> int:
        """End the futures of tasks that ignore their results; return how many there were. Lock held."""
        count = 0
        origin = Success.of(run)
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            future = self.unresolved.pop(seq, None)
            if future is not None:
                count += 1
                extras = future._extras
                if extras is not None and extras.edges is not None:
                    self._upstream.succeeded(future, extras.edges, payload, origin.attempt)
                completion.add(future, origin if future._run.ignores_result else (payload, origin))
        return count

    def _fail(self, failed: list[Failed], completion: Completion) -> int:
        """End the futures of tasks that have ended badly; return how many there were. Lock held."""
        count = 0
        for record in failed:
            future = self.unresolved.pop(record.seq, None)
            if future is not None:
                count += 1
                extras = future._extras
                if extras is not None and extras.edges is not None:
                    self._upstream.failed(future, extras.edges, record)
                completion.add(future, end_of(record))
        return count

    def notice(self, progress: list[Progress]) -> None:
        """Take in news of running tasks."""
        has_lines = False
        with self.lock:
            for news in progress:
                future = self.unresolved.get(news.seq)
                if future is not None:
                    extras = future._ensure_waiters()
                    extras.progress = news
                    if news.lines:
                        extras.lines = extras.lines or deque(maxlen=MOST_KEPT)
                        extras.lines += self.logs.add(future._run.spec.name, future.task_id, news)
                        news.lines, has_lines = [], True
        if has_lines:
            self._callbacks.put([self.logs.hand_over])
