"""The supervisor's slots: `SlotHost` starts them, gives them tasks, takes tasks back, tells their ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from taskmesh.core.events import SlotAsked, SlotExited, SlotFinished, SlotReady, SlotRecalled, SlotReported
from taskmesh.errors import LocalProtocolError
from taskmesh.pool.console import Console
from taskmesh.pool.link import Births
from taskmesh.pool.nursery import Nursery
from taskmesh.pool.orders import Answer
from taskmesh.pool.seat import Seat
from taskmesh.shm import files
from taskmesh.system.clock import monotonic
from taskmesh.system.platforms import here
from taskmesh.system.watch import Watch
from taskmesh.wire.slot_messages import SlotTasks

SlotEvent = SlotReady | SlotFinished | SlotReported | SlotAsked | SlotRecalled | SlotExited

_KILLED: Final = -9
_RETRY: Final = 0.05
_LAST_WORDS: Final = 0.5
"""Seconds that are waited for our own stdout to take what slots have printed."""
_DYING: Final = 2.0
"""Seconds that a killed process may take to be gone."""
NO_PROCESS: Final = 1
"""The status of a slot for which there was no process; its log says why."""


class SlotHost:
    """The slots of one pool, each a process forked by one fork server.

    Every method returns at once (but `close`) and is called from the loop's thread. Events are given to
    `on_event` only while the loop calls the callback that it was given by `watch`, never from inside another
    method (but `close`).

    Args:
        on_event: takes the events, in order for each slot.
        watch: called once, with a descriptor to watch for reading and what to call when it is readable.
        unwatch: called by `close` with that descriptor.
        name: the pool's, for people.
        sys_path: where slots find modules; None for this process's `sys.path`.
        preload: modules that every slot imports before it is ready.
        only: modules whose functions alone they may run; empty for any.
        tee: pass what slots print on to this process's stdout and stderr.
        nursery: one that has been started earlier, with this path and these modules.
    """

    def __init__(
        self,
        *,
        on_event: Callable[[SlotEvent], None],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        name: str,
        sys_path: Sequence[str] | None = None,
        preload: Sequence[str] = (),
        only: Sequence[str] = (),
        tee: bool = True,
        nursery: Nursery | None = None,
    ) -> None:
        self._on_event = on_event
        self._unwatch = unwatch
        self._system = here()
        path = list(sys.path if sys_path is None else sys_path)
        self._nursery = Nursery(self._system, path, name, preload, only) if nursery is None else nursery
        try:
            self._watch = Watch(self._system, self._rung)
        except OSError:
            self._nursery.bury()
            raise
        self._console = Console(self._watch, tee=tee)
        self._timer: threading.Timer | None = None
        self._seats: dict[int, Seat] = {}
        self._tokens: dict[int, Seat] = {}
        self._next_token = 1
        self._queue: deque[SlotEvent] = deque()
        self._exits: dict[int, SlotExited] = {}  # each slot's last; the caller may not have handled it yet
        self._dispatching = False
        self._closed = False
        births = Births(self._forked, self._refused, self._exited)
        self._nursery.watched_by(self._watch, births, self._server_lost)
        watch(self._watch.fileno(), self._dispatch)
        _open.add(self)
        files.keep_spares(files.SPARE_BYTES)

    @property
    def is_closing(self) -> bool:
        """Whether slots end because of `close`."""
        return self._closed

    def fileno(self) -> int:
        """Readable when a slot has something to say."""
        return self._watch.fileno()

    # --- actions ---

    def start(self, slot: int) -> None:
        """Forks a slot; SlotReady or SlotExited(ready=False) follows."""
        if slot in self._seats:
            raise LocalProtocolError(f"slot {slot} is started already")
        try:
            seat = Seat(slot, self._next_token, self._system)
        except OSError as error:
            why = f"no descriptors, memory or files for a slot (see `ulimit -n`, `-v`, `-f`): {error}"
            self._post(SlotExited(slot, 0, NO_PROCESS, ready=False, log=why))
            return
        self._next_token += 1
        self._seats[slot] = self._tokens[seat.token] = seat
        self._watch.add(seat.sock.fileno(), partial(self._hear, seat))
        self._console.add(seat.output)
        if not self._nursery.fork(seat.token, slot, seat.slot_fds(), seat):
            self._bury(seat, NO_PROCESS, oom=False, reason=self._nursery.trouble)

    def hand_over(self, slot: int, message: SlotTasks) -> None:
        """Gives tasks to a slot, which may be still starting.

        To one that is gone, as the caller may not know yet, they count among its SlotExited's `unstarted`.
        """
        seat = self._seats.get(slot)
        if seat is None:
            gone = self._exits.get(slot)
            if gone is None:
                raise LocalProtocolError(f"tasks for slot {slot}, which is not there")
            gone.unstarted += sum(len(run.seqs) for run in message.runs)
            return
        seat.hand_over(message)
        self._pump(seat)

    def recall(self, slot: int, generation: int) -> None:
        """Takes back every task of a slot that has not started; SlotRecalled follows (not from a dead slot).

        Later hand-overs must carry `generation`, which no earlier one did.
        """
        seat = self._seats.get(slot)
        if seat is not None:
            self._post(SlotRecalled(slot, seat.take_back(generation)))
            self._pump(seat)

    def answer(self, slot: int, answer: Answer) -> None:
        """Answers a slot's SlotAsked."""
        seat = self._seats.get(slot)
        if seat is not None:
            seat.answer(answer)
            self._watch_writes(seat)

    def peek(self, slot: int) -> None:
        """Reads a busy slot's outbox; SlotFinished follows when something new is in it."""
        seat = self._seats.get(slot)
        if seat is not None:
            for event in seat.peek():
                self._post(event)

    def cancel(self, slot: int, serial: int) -> None:
        """Tells the running task that it has been cancelled; kills a slot whose task does not look."""
        seat = self._seats.get(slot)
        if seat is not None and not seat.cancel(serial):
            self.kill(slot)

    def kill(self, slot: int) -> None:
        """SIGKILLs a slot and what it has started; SlotExited follows."""
        seat = self._seats.get(slot)
        if seat is not None:
            seat.killed = True
            self._kill(seat)

    def kill_for_memory(self, slot: int, why: str) -> None:
        """The same before the kernel does it: SlotExited tells it as a kill for memory, with the reason."""
        seat = self._seats.get(slot)
        if seat is not None and not seat.killed:
            seat.out_of_memory = True
            seat.trouble = why
            self.kill(slot)

    def stop(self, slot: int) -> None:
        """Lets a slot end when it has done what it was given; SlotExited follows."""
        seat = self._seats.get(slot)
        if seat is not None:
            seat.stop()
            self._watch_writes(seat)

    def pids(self) -> dict[int, int]:
        """The process ids of the slots whose processes are known to be there."""
        return {slot: seat.pid for slot, seat in self._seats.items() if seat.pid}

    # --- births and deaths ---

    def _forked(self, token: int, pid: int, handle: int | None) -> None:
        seat = self._tokens[token]
        seat.pid = pid
        seat.handle = handle
        seat.let_go()
        if seat.killed:
            self._kill(seat)

    def _refused(self, token: int, reason: str) -> None:
        self._bury(self._tokens[token], NO_PROCESS, oom=False, reason=reason)

    def _exited(self, token: int, status: int, oom: bool) -> None:
        self._bury(self._tokens[token], status, oom=oom)

    def _server_lost(self, reason: str) -> None:
        """The fork server has died, and its slots are being killed."""
        deadline = monotonic() + _DYING
        for seat in list(self._tokens.values()):
            if seat.pid and not self._system.kill_process(seat.handle):
                with contextlib.suppress(OSError):  # where there is no /proc to find a session's processes by
                    os.killpg(seat.pid, signal.SIGKILL)
            _await_death(seat, deadline)
            self._bury(seat, _KILLED, oom=False, reason=reason)

    def _kill(self, seat: Seat) -> None:
        """The group is killed by the fork server when it reaps the leader, if not before."""
        if not self._system.kill_process(seat.handle):
            self._nursery.kill(seat.token)

    def _bury(self, seat: Seat, status: int, *, oom: bool, reason: str = "") -> None:
        """A slot's process is gone: everything that it had sent first, then its exit."""
        self._queue.extend(seat.read_all())
        self._queue.extend(seat.peek())
        self._console.remove(seat.output)
        self._watch.remove(seat.sock.fileno())
        del self._tokens[seat.token]
        del self._seats[seat.slot]
        log = "\n".join(filter(None, (seat.output.text(), seat.trouble, reason)))
        oom = status == _KILLED if seat.out_of_memory else oom and not seat.killed
        exited = SlotExited(seat.slot, seat.left(), status, oom, seat.ready, log)
        seat.close()
        self._post(exited)

    # --- slots' sockets ---

    def _hear(self, seat: Seat) -> None:
        """The slot's socket is readable, or writable again."""
        unsent = seat.unsent
        if unsent and seat.wants_write:
            seat.write()
        self._queue.extend(seat.read())
        if seat.at_end:
            # A death is the fork server's to tell. A slot that lives on without its socket, which its task
            # has closed, or that talks nonsense, must not live on.
            self._watch.remove(seat.sock.fileno())
            self._kill(seat)
        elif unsent:
            self._pump(seat)

    def _pump(self, seat: Seat) -> None:
        if seat.pump():
            self._retry_soon()
        self._watch_writes(seat)

    def _watch_writes(self, seat: Seat) -> None:
        self._watch.writing(seat.sock.fileno(), seat.wants_write)

    def _retry_soon(self) -> None:
        """Rings in a while: descriptors that were not to be had may be free then."""
        if self._timer is None:
            timer = threading.Timer(_RETRY, self._watch.alarm.ring)
            timer.name = "taskmesh-retry"
            timer.daemon = True
            try:
                timer.start()
                self._timer = timer
            except RuntimeError:  # threads are not to be had either: the loop itself waits
                select.select((), (), (), _RETRY)
                self._watch.alarm.ring()

    # --- the loop ---

    def _post(self, event: SlotEvent) -> None:
        if isinstance(event, SlotExited):
            self._exits[event.slot] = event
        self._queue.append(event)
        if not self._dispatching:
            self._watch.alarm.ring()

    def _rung(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
        for seat in self._seats.values():
            self._pump(seat)
        self._console.relieve()

    def _dispatch(self, timeout: float = 0) -> None:
        """Called by the loop when something is ready."""
        if self._dispatching:
            raise LocalProtocolError("on_event called back into the loop")
        self._dispatching = True
        try:
            self._watch.poll(timeout)
            while self._queue:
                self._on_event(self._queue.popleft())
        finally:
            self._dispatching = False

    # --- the end ---

    def close(self, timeout: float) -> None:
        """Ends every slot and the fork server, and leaves nothing behind.

        Slots have `timeout` seconds to finish what they were given, then they are killed. Events of that time
        are given to `on_event` from inside. May be called twice.
        """
        if self._closed:
            return
        self._closed = True
        if timeout > 0:
            for slot in list(self._seats):
                self.stop(slot)
            self._run_until(lambda: not self._seats, timeout)
        for slot in list(self._seats):
            self.kill(slot)
        self._run_until(lambda: not self._seats, _DYING)
        self._nursery.end()
        self._run_until(lambda: self._nursery.is_empty, _DYING)
        self._nursery.bury()
        while self._queue:
            self._on_event(self._queue.popleft())
        self._unwatch(self._watch.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        self._console.close(_LAST_WORDS)
        self._watch.close()
        _open.discard(self)
        if not _open:
            files.keep_spares(0)

    def _run_until(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = monotonic() + timeout
        while not condition():
            left = deadline - monotonic()
            if left <= 0:
                return
            self._dispatch(left)

    def forsake(self) -> None:
        """In a forked child of this process: closes every descriptor there, touches no process or thread."""
        self._nursery.forsake()
        for seat in self._seats.values():
            seat.close()
        self._watch.close()
        _open.discard(self)


_open: set[SlotHost] = set()


def _await_death(seat: Seat, deadline: float) -> None:
    """Waits until a killed slot is dead: until then it may still take a ticket."""
    poll = select.poll()
    if seat.handle is not None:
        poll.register(seat.handle, select.POLLIN)
    elif seat.pid:
        poll.register(seat.sock, getattr(select, "POLLRDHUP", select.POLLHUP))
    else:
        return
    poll.poll(max(0.0, deadline - monotonic()) * 1000)
