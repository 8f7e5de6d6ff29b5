"""The callback thread: where the user's done-callbacks run, in order and never in the port's thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial

from taskmesh.client.futures.waiters import LockEvent, interruptible

_log = logging.getLogger("taskmesh.client")


class CallbackThread:
    """A queue of jobs and the one thread that does them in order; the thread starts with the first job.

    Attributes:
        context: what the thread runs in.
    """

    def __init__(self, name: str = "taskmesh-callbacks") -> None:
        self.context = Context()
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may call in
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, jobs: Iterable[Callable[[], object]]) -> bool:
        """Queue jobs, whose errors are logged; return False after `close`, when none is done any more."""
        with self._lock:
            if self._closed:
                return False
            for job in jobs:  # before `close`, if it comes: behind its None they would be lost
                self._jobs.put(job)
            with suppress(RuntimeError):  # the next job tries again
                self.start()
            return True

    def start(self) -> None:
        """Start the thread, if it has not been started.

        Raises:
            RuntimeError: the system has none to give, or the interpreter is ending and starts no more.
        """
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self.context.run, args=(self._work,), name=self._name, daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    raise

    @property
    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def flush(self) -> None:
        """Wait until all jobs queued so far are done; called by a job it does nothing."""
        with self._lock:
            thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return
        done = LockEvent()
        with self._lock:
            closed = self._closed
            if not closed:
                self._jobs.put(done.set)
        if closed:  # meanwhile: the thread ends at its None, and would do no job behind it
            interruptible(partial(_has_ended, thread), None)
        else:
            done.wait(None)

    def close(self, timeout: float | None) -> None:
        """Have the thread end after the jobs that are queued, and wait up to `timeout` seconds for that."""
        with self._lock:
            self._closed, thread = True, self._thread
            if thread is None or not thread.is_alive():
                return
            self._jobs.put(None)
        if thread is not threading.current_thread():
            interruptible(partial(_has_ended, thread), timeout)

    @staticmethod
    def do(job: Callable[[], object]) -> None:
        """Do a job, and log its error."""
        try:
            job()
        except BaseException:  # noqa: BLE001  other callbacks and the mesh's end wait for this thread
            _log.exception("a job of the callback thread failed: %r", job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.do(job)
            del job  # what it holds must not wait for the next one


def _has_ended(thread: threading.Thread, timeout: float) -> bool:
    thread.join(timeout)
    return not thread.is_alive()
