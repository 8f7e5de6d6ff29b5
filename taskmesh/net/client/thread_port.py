"""The base of both kinds of SubmitPort: a loop in a thread of its own, and how other threads reach it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from taskmesh.core.client.settings import ClientSettings
from taskmesh.core.events import Requested
from taskmesh.errors import ForkedMeshError, LocalProtocolError, MeshClosed, TaskMeshError
from taskmesh.net.client.port import OutcomeSink
from taskmesh.net.client.shell import ClientShell
from taskmesh.system.loop import MAX_WAIT
from taskmesh.system.wakeup import Wakeup
from taskmesh.wire import messages as m

LAZY_WAIT = 0.02
"""Seconds after which new tasks are taken in though nothing can be done with them yet."""


class ThreadPort:
    """A SubmitPort whose loop runs in a thread of this process; subclasses put the machines into the loop.

    Args:
        sink: the client's pending table.
        settings: the client machine's.
    """

    def __init__(self, sink: OutcomeSink, settings: ClientSettings) -> None:
        self.client = settings.client
        self.sleeping = False
        self._settings = settings
        self._sink = sink
        self._shell: ClientShell | None = None
        self._thread: threading.Thread | None = None
        self._wake_up: Wakeup | None = None
        self._closing = threading.Event()
        self._cancel = True
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._pid = os.getpid()

    # --- SubmitPort -----------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True if the hub answers, as far as is known."""
        shell = self._shell
        return shell is not None and shell.machine.open and not self._closing.is_set()

    def wake(self) -> None:
        """Make a sleeping loop drain the sink; once is enough, however long it takes to get the GIL."""
        self.sleeping = False
        if self._wake_up is not None:
            self._wake_up.set()

    def cancel(self, seqs: Sequence[int], *, unstarted: bool = False) -> None:
        """Cancel tasks, or those of them that have not started."""
        self._put(Requested(m.CancelTasks([], list(seqs)) if unstarted else m.CancelTasks(list(seqs))))

    def query(self, what: str, argument: str = "", limit: int = 100, timeout: float = 5.0) -> object:
        """Ask the hub for a view."""
        requests = self._usable().requests
        return requests.ask(lambda number: m.Query(number, what, argument, limit), self._put, timeout)

    def command(self, verb: str, target: str, timeout: float = 5.0) -> object:
        """Send an operator's command."""
        return self._usable().requests.ask(lambda number: m.Command(number, verb, target), self._put, timeout)

    def fulfil(self, fulfil: m.Fulfil, timeout: float) -> bool:
        """End the promise of a key; return True if nobody has done so before."""
        requests = self._usable().requests
        return bool(requests.ask(lambda number: replace(fulfil, number=number), self._put, timeout))

    def fulfil_later(self, fulfil: m.Fulfil) -> None:
        """End the promise of a key, and wait for no answer."""
        self._put(Requested(self._usable().requests.numbered(lambda number: replace(fulfil, number=number))))

    def close(self, *, cancel: bool, timeout: float) -> None:
        """End the thread and whatever it started."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._cancel = cancel
        self._closing.set()
        self._end_requests()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._wake_up is not None:
            self._wake_up.close()

    def forked(self) -> None:
        """Close this port's descriptors in a forked child."""
        if self._wake_up is not None:
            self._wake_up.close()

    # --- the thread -----------------------------------------------------------------------------------------

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        """Run `work` in the thread: it turns its loop until `_closing` is set, and cleans up.

        It sets `_ready` when others may use its machines; `_ready` is set in any case when it ends.
        """
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._fail(error)
            if isinstance(error, LocalProtocolError) or not isinstance(error, TaskMeshError):
                raise  # a bug: its traceback must be seen, too
        finally:
            self._ready.set()
            self.sleeping = False
            self._end_requests()

    def _fail(self, error: BaseException) -> None:
        """Pass an error that ends the thread to `start`, or to all futures once the mesh is open."""
        self._failure = error
        shell = self._shell
        if shell is not None and shell.opened.is_set():
            self._sink.broken(error)
        elif shell is not None:
            shell.opened.set()

    def _end_requests(self) -> None:
        if self._shell is not None:
            self._shell.requests.end()

    def _about_to_block(self) -> float:
        """Return how long the loop may block; ask for `wake` only if a new task could be acted on at once.

        While it could not, the loop is woken by what it waits for, and takes in at one stroke what has been
        queued meanwhile. A needless wake costs the submitter more than the submission: it hands over the GIL.
        """
        shell = self._shell
        if shell is None:
            return 0.0
        urgent = self._could_act(shell)
        self.sleeping = urgent
        if shell.pending or self._closing.is_set():
            return 0.0
        return MAX_WAIT if urgent else LAZY_WAIT

    def _could_act(self, shell: ClientShell) -> bool:
        """Return True if a task that is queued now would go somewhere at once."""
        raise NotImplementedError

    def _blocked(self) -> None:
        self.sleeping = False

    def _put(self, request: Requested) -> None:
        self._usable().events.append(request)
        self.wake()

    def _usable(self) -> ClientShell:
        if os.getpid() != self._pid:
            raise ForkedMeshError("this mesh was opened before the fork; open a new one in the child")
        if self._shell is None or self._closing.is_set():
            raise MeshClosed("this mesh is closed; open a new one")
        return self._shell
