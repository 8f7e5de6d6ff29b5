"""The port of a mesh, by which the client surface and the network layer meet.

A mesh owns one `SubmitPort` (an embedded hub, or the gateway of a remote one) and hands it one `OpenTasks`
(its pending table). Two threads meet here, the caller's and the port's loop:

- The caller queues a task in the table and then looks at `port.sleeping`; when that is true it sets it to
  false and calls `port.wake()`. The loop, before it blocks, sets `sleeping = True`, looks at
  `open_tasks.queued` once more, and only then blocks; awake again it sets `sleeping = False`. So no task is
  overlooked, and a caller that goes on submitting wakes the loop once: every further call would give the GIL
  away, and tasks submitted meanwhile would travel one by one.
- The loop calls `open_tasks.drain()` whenever it is awake, and the table's other methods with whole batches.
  None of them blocks, runs user code or unpickles anything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from taskmesh.client.machine.settings import ClientSettings
from taskmesh.client.port.shell import ClientShell, OpenTasks, SinkIntake
from taskmesh.core.actions import Reconnect, Send
from taskmesh.core.events import Requested, SinkAcked, SinkClosed, SinkOpened
from taskmesh.errors import (
    ConfigError,
    ForkedMeshError,
    LocalProtocolError,
    MeshClosed,
    TaskMeshError,
)
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.schedules import Declaration
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import MAX_WAIT, Loop
from taskmesh.system.wakeup import Wakeup

LAZY_WAIT = 0.02
"""Seconds after which new tasks are taken in though nothing can be done with them yet."""


class SubmitPort:
    """The link from one client to its hub: a loop in a thread; subclasses put the machines into the loop.

    Every method but `forked` may be called from any thread.

    Args:
        open_tasks: the client's pending table.
        settings: the client machine's.

    Attributes:
        client: the client id (64 random bits), fixed at construction.
        address: where a hub of its own listens, for others; empty if it does not.
        sleeping: True while the loop blocks, or is about to: after queueing a task `wake()` must be called.
    """

    def __init__(self, open_tasks: OpenTasks, settings: ClientSettings) -> None:
        self.client = settings.client
        self.address = ""
        self.sleeping = False
        self._open_tasks = open_tasks
        self._shell = ClientShell(open_tasks, settings, monotonic(), self._send, self._reconnect)
        self._thread: threading.Thread | None = None
        self._wake_up: Wakeup | None = None
        self._closing = threading.Event()
        self._cancel = True
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    def start(self, timeout: float) -> None:
        """Open the link; return when the hub has welcomed the client.

        Raises:
            HubUnreachable: no hub answered within `timeout` seconds.
            ConfigError: the settings cannot be used.
        """
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """True if the hub answers, as far as is known."""
        return self._shell.machine.open and not self._closing.is_set()

    def slots_of(self, queue: str, tags: frozenset[str]) -> tuple[int, float]:
        """Return how many slots serve tasks of a queue and tags, and when the hub has said so; 0, 0.0 before.

        The hub tells a client that has tasks each second; nothing is asked.
        """
        return self._shell.machine.slots.get((queue, tags), (0, 0.0))

    def gateway(self, timeout: float) -> str:
        """Return the address at which this user's other processes reach the mesh's own hub, without keys.

        Raises:
            HubUnreachable: the hub does not answer within `timeout` seconds.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """Make a sleeping loop drain the table; cheap, never blocks, harmless at any time.

        Once is enough, however long the loop takes to get the GIL.
        """
        self.sleeping = False
        if self._wake_up is not None:
            self._wake_up.set()

    def cancel(self, seqs: Sequence[int], *, unstarted: bool = False) -> None:
        """Cancel tasks. The loop drains the table before it passes this on, so the hub knows the tasks.

        With `unstarted` only tasks that have not started are cancelled; the table gets their outcomes.
        """
        self._put(Requested(m.CancelTasks([], list(seqs)) if unstarted else m.CancelTasks(list(seqs))))

    def query(self, what: str, argument: str = "", limit: int = 100, timeout: float = 5.0) -> object:
        """Ask the hub for a view ("status", "pools", "tasks", "task", "events"); return plain data.

        Raises:
            HubUnreachable: no answer within `timeout` seconds.
            TaskMeshError: the hub's refusal.
        """
        requests = self._usable().requests
        return requests.ask(lambda number: m.Query(number, what, argument, limit), self._put, timeout)

    def command(self, verb: str, target: str, timeout: float = 5.0) -> object:
        """Send an operator's command (wire.messages.Command lists them); raises as `query` does."""
        return self._usable().requests.ask(lambda number: m.Command(number, verb, target), self._put, timeout)

    def fulfil(self, fulfil: m.Fulfil, timeout: float) -> bool:
        """End the promise of a key; return True if nobody has done so before. Raises as `query` does."""
        requests = self._usable().requests
        return bool(requests.ask(lambda number: replace(fulfil, number=number), self._put, timeout))

    def put_schedule(self, declaration: Declaration, timeout: float = 5.0) -> None:
        """Have the hub keep a schedule; raises as `query` does."""
        self._usable().requests.ask(lambda number: m.PutSchedule(number, declaration), self._put, timeout)

    def drop_schedule(self, name: str, timeout: float = 5.0) -> bool:
        """Have the hub remove a schedule; return whether there was one; raises as `query` does."""
        requests = self._usable().requests
        return bool(requests.ask(lambda number: m.DropSchedule(number, name), self._put, timeout))

    def open_sink(self, name: str, credit: int, intake: SinkIntake) -> None:
        """Take outcomes from a sink.

        Raises:
            ConfigError: this client does so already, or takes from MOST_SINKS others.
        """
        shell = self._usable()
        if len(shell.intakes) >= m.MOST_SINKS:
            raise ConfigError(f"this mesh takes from {m.MOST_SINKS} sinks already: close some")
        if shell.intakes.setdefault(name, intake) is not intake:
            raise ConfigError(f"this mesh takes from sink {name!r} already: threads can share its Sink")
        shell.events.append(SinkOpened(name, credit))
        self.wake()

    def sink_acked(self, name: str) -> None:
        """Have the loop look at what was acknowledged; nothing happens once the port has ended."""
        self._shell.events.append(SinkAcked(name, []))
        self.wake()

    def close_sink(self, name: str) -> None:
        """Take no more from a sink; `SinkIntake.end` is called when the hub knows."""
        intake = self._shell.intakes.get(name)
        if not self._is_running:
            if intake is not None:
                intake.end()
            return
        self._shell.events += (SinkAcked(name, []), SinkClosed(name))
        self.wake()

    def close(self, *, cancel: bool, timeout: float) -> None:
        """End the link and everything that the port started; return within `timeout` seconds or so.

        With `cancel` the hub drops this client's tasks and kills its running ones; without, all have ended
        (the mesh has waited for that). May be called twice; never called from the port's own thread.
        """
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._cancel = cancel
        self._closing.set()
        self._shell.requests.end()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._wake_up is not None:
            self._wake_up.close()

    def forked(self) -> None:
        """Close the port's descriptors in a forked child; touch no lock, thread or peer."""
        if self._wake_up is not None:
            self._wake_up.close()

    @property
    def _was_started(self) -> bool:
        return self._thread is not None

    @property
    def _is_running(self) -> bool:
        """True if its loop goes on."""
        return self._thread is not None and self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------------------------

    def _new_loop(self, wake_up: Wakeup) -> Loop:
        """Return the thread's loop, which `wake` wakes up."""
        self._wake_up = wake_up
        loop = Loop(idle=self._about_to_block, awake=self._blocked)
        loop.watch(wake_up.fd, wake_up.clear)
        return loop

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        """Run `work` in the thread: it turns its loop until `_closing` is set, and cleans up."""
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
            self.sleeping = False
            self._shell.requests.end()
            for intake in list(self._shell.intakes.values()):
                intake.end()

    def _fail(self, error: BaseException) -> None:
        """Pass an error that ends the thread to `start`, or to all futures once the mesh is open."""
        self._failure = error
        if self._shell.opened.is_set():
            self._open_tasks.broken(error)
        else:
            self._shell.opened.set()

    def _send(self, action: Send) -> None:
        raise NotImplementedError

    def _reconnect(self, action: Reconnect) -> None:
        """Drop the link and dial again."""

    def _about_to_block(self) -> float:
        """Return how long the loop may block; ask for `wake` only if a new task could be acted on at once.

        While it could not, the loop is woken by what it waits for, and takes in at one stroke what has been
        queued meanwhile. A needless wake costs the submitter more than the submission: it hands over the GIL.
        """
        self.sleeping = urgent = self._could_act()
        if self._shell.pending:
            return 0.0
        return MAX_WAIT if urgent else LAZY_WAIT

    def _could_act(self) -> bool:
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
        if not self._was_started or self._closing.is_set():
            raise MeshClosed("this mesh is closed; open a new one")
        return self._shell
