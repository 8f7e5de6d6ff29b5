"""The supervisor's slots: `SlotHost` starts them, hands tasks over, takes them back, and tells what becomes of them."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from taskmesh.core.events import SlotExited, SlotFinished, SlotReady, SlotRecalled, SlotReported
from taskmesh.errors import LocalProtocolError, ProtocolError
from taskmesh.pool.link import Births, ForkServerLink
from taskmesh.pool.output import STDERR, STDOUT, Tee
from taskmesh.pool.platforms import here
from taskmesh.pool.seat import Seat
from taskmesh.pool.system import READ, WRITE
from taskmesh.wire.messages import SlotTasks

SlotEvent = SlotReady | SlotFinished | SlotReported | SlotRecalled | SlotExited

_KILLED: Final = -9
_RETRY: Final = 0.05
_BACK_OFF: Final = (0.1, 5.0)
_DYING: Final = 2.0
"""Seconds that a killed process may take to be gone."""


class SlotHost:
    """The slots of one pool, each a process forked by one fork server.

    Every method returns at once (but `close`) and is called from the loop's thread. Events are given to `on_event` only
    while the loop calls the callback that it was given by `watch`, never from inside another method (but `close`).

    Args:
        on_event: takes the events, in order for each slot.
        watch: called once, with a descriptor to watch for reading and what to call when it is readable.
        unwatch: called by `close` with that descriptor.
        name: the pool's, for people.
        sys_path: where slots find modules; None for this process's `sys.path`.
        tee: pass what slots print on to this process's stdout and stderr.
    """

    def __init__(
        self,
        *,
        on_event: Callable[[SlotEvent], None],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        name: str,
        sys_path: Sequence[str] | None = None,
        tee: bool = True,
    ) -> None:
        self._on_event = on_event
        self._unwatch = unwatch
        self._name = name
        self._sys_path = list(sys.path if sys_path is None else sys_path)
        self._system = here()
        self._link: ForkServerLink | None = None
        self._births = Births(self._forked, self._refused, self._exited)
        self._failures = 0  # fork servers in a row that never came up
        self._retry_at = 0.0
        self._trouble = ""
        self._spawn()  # before anything else: it takes longest
        self._poller = self._system.poller()
        self._alarm = self._system.alarm()
        self._tee = Tee(self._alarm.ring) if tee else None
        self._output_held = False
        self._timer: threading.Timer | None = None
        self._seats: dict[int, Seat] = {}
        self._tokens: dict[int, Seat] = {}
        self._next_token = 1
        self._queue: deque[SlotEvent] = deque()
        self._dispatching = False
        self._readers: dict[int, Callable[[], object]] = {}
        self._add_reader(self._alarm.fileno(), self._rung)
        self._watch_link()
        watch(self._poller.fileno(), self._dispatch)

    # --- actions ---

    def start(self, slot: int) -> None:
        """Forks a slot; SlotReady or SlotExited(ready=False) follows."""
        if slot in self._seats:
            raise LocalProtocolError(f"slot {slot} is started already")
        try:
            seat = Seat(slot, self._next_token, self._system)
        except OSError as error:
            self._post(SlotExited(slot, 0, 1, ready=False, log=f"no descriptors for the slot: {error}"))
            return
        self._next_token += 1
        self._seats[slot] = self._tokens[seat.token] = seat
        if self._link is None and time.monotonic() >= self._retry_at and self._spawn():
            self._watch_link()
        if self._link is None:
            self._bury(seat, 1, oom=False, reason=self._trouble)
            return
        self._add_reader(seat.sock.fileno(), partial(self._hear, seat))
        self._watch_output(seat)
        self._link.fork(seat.token, slot, seat.slot_fds(), seat)
        self._watch_writes_of_link()

    def hand_over(self, slot: int, message: SlotTasks) -> None:
        """Gives tasks to a slot, which may be still starting.

        To one whose SlotExited waits for delivery they count among its `unstarted` tasks.
        """
        seat = self._seats.get(slot)
        if seat is None:
            gone = self._exit_in_queue(slot)
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
            self._post(SlotRecalled(slot, seat.take_back()))
            self._pump(seat)

    def peek(self, slot: int) -> None:
        """Reads a busy slot's outbox; SlotFinished follows when something new is in it."""
        seat = self._seats.get(slot)
        if seat is not None:
            finished = seat.peek()
            if finished is not None:
                self._post(finished)

    def kill(self, slot: int) -> None:
        """SIGKILLs a slot and what it has started; SlotExited follows."""
        seat = self._seats.get(slot)
        if seat is not None:
            seat.killed = True
            self._kill(seat)

    def stop(self, slot: int) -> None:
        """Lets a slot end when it has done what it was given; SlotExited follows."""
        seat = self._seats.get(slot)
        if seat is not None:
            seat.stop()
            self._watch_writes(seat)

    def pids(self) -> dict[int, int]:
        """The process ids of the slots whose processes are known to be there."""
        return {slot: seat.pid for slot, seat in self._seats.items() if seat.pid}

    # --- the fork server ---

    def _spawn(self) -> bool:
        try:
            self._link = ForkServerLink(self._system, self._sys_path, self._name, self._births)
        except OSError as error:
            self._server_failed(f"the fork server could not be started: {error}")
            return False
        return True

    def _server_failed(self, trouble: str) -> None:
        """Counts a fork server that never came up, so that the next one is not tried too soon."""
        first, most = _BACK_OFF
        self._retry_at = time.monotonic() + min(most, first * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._trouble = trouble

    def _watch_link(self) -> None:
        if self._link is not None:
            self._add_reader(self._link.sock.fileno(), self._hear_link)
            if self._link.handle is not None:
                self._add_reader(self._link.handle, self._server_gone)

    def _hear_link(self) -> None:
        if self._link is None:
            return
        self._link.write()
        if not self._link.read():
            self._server_gone()
        else:
            self._watch_writes_of_link()

    def _server_gone(self) -> None:
        """The fork server has ended, and with it every slot."""
        link = self._link
        if link is None:
            return
        link.read()
        self._link = None
        self._remove_readers(link.sock.fileno(), *([] if link.handle is None else [link.handle]))
        link.end_all()
        status = link.reap(0)
        if link.up:
            self._failures = 0
        else:
            self._server_failed(f"the fork server ended with status {status} before it was up; see stderr")
        link.close()
        deadline = time.monotonic() + _DYING
        for seat in list(self._tokens.values()):
            _await_death(seat, deadline)
            self._bury(seat, _KILLED, oom=False, reason="" if link.up else self._trouble)

    def _forked(self, token: int, pid: int, handle: int | None) -> None:
        seat = self._tokens[token]
        seat.pid = pid
        seat.handle = handle
        seat.let_go()
        if seat.killed:
            self._kill(seat)

    def _refused(self, token: int, reason: str) -> None:
        self._bury(self._tokens[token], 1, oom=False, reason=reason)

    def _exited(self, token: int, status: int, oom: bool) -> None:
        self._bury(self._tokens[token], status, oom=oom)

    def _kill(self, seat: Seat) -> None:
        """The group is killed by the fork server when it reaps the leader, if not before."""
        if not self._system.kill_process(seat.handle) and self._link is not None:
            self._link.kill(seat.token)
            self._watch_writes_of_link()

    # --- slots ---

    def _hear(self, seat: Seat) -> None:
        """The slot's socket is readable, or writable again."""
        if seat.wants_write:
            seat.write()
        try:
            self._queue.extend(seat.read())
        except BlockingIOError:
            pass
        except EOFError:
            # Its death is the fork server's to tell. A slot that lives on without its socket must not: a task has
            # closed it.
            self._remove_readers(seat.sock.fileno())
            self._kill(seat)
            return
        except ProtocolError as error:
            self._trouble = str(error)
            self._remove_readers(seat.sock.fileno())
            self._kill(seat)
            return
        self._pump(seat)

    def _pump(self, seat: Seat) -> None:
        if seat.pump():
            self._retry_soon()
        self._watch_writes(seat)

    def _watch_writes(self, seat: Seat) -> None:
        """Watches for writability just while something waits for it."""
        if seat.sock.fileno() in self._readers and seat.wants_write != seat.watched:
            seat.watched = seat.wants_write
            self._poller.watch(seat.sock.fileno(), READ | WRITE if seat.watched else READ)

    def _watch_writes_of_link(self) -> None:
        if self._link is not None:
            self._poller.watch(self._link.sock.fileno(), READ | WRITE if self._link.wants_write else READ)

    def _bury(self, seat: Seat, status: int, *, oom: bool, reason: str = "") -> None:
        """A slot's process is gone: everything that it had sent first, then its exit."""
        with contextlib.suppress(BlockingIOError, EOFError, ProtocolError):
            while True:
                self._queue.extend(seat.read())
        finished = seat.peek()
        if finished is not None:
            self._queue.append(finished)
        for fd, stream in ((seat.output.stdout, STDOUT), (seat.output.stderr, STDERR)):
            self._pass_on(seat, fd, stream, at_most=64)
        del self._tokens[seat.token]
        del self._seats[seat.slot]
        self._remove_readers(seat.sock.fileno(), seat.output.stdout, seat.output.stderr)
        log = "\n".join(filter(None, (seat.output.text(), reason)))
        exited = SlotExited(seat.slot, seat.take_back(), status, oom and not seat.killed, seat.ready, log)
        seat.close()
        self._post(exited)

    def _exit_in_queue(self, slot: int) -> SlotExited | None:
        for event in self._queue:
            if isinstance(event, SlotExited) and event.slot == slot:
                return event
        return None

    # --- output ---

    def _watch_output(self, seat: Seat) -> None:
        if not self._output_held:
            for fd, stream in ((seat.output.stdout, STDOUT), (seat.output.stderr, STDERR)):
                self._add_reader(fd, partial(self._pass_on, seat, fd, stream))

    def _pass_on(self, seat: Seat, fd: int, stream: int, at_most: int = 1) -> None:
        """Reads a slot's output, keeps its end and passes it on."""
        for _ in range(at_most):
            data = seat.output.read(fd)
            if not data:
                if data is None:
                    self._remove_readers(fd)
                return
            if self._tee is not None:
                self._tee.put(stream, data)
                if self._tee.full and not self._output_held:
                    self._output_held = True
                    for other in self._seats.values():
                        self._remove_readers(other.output.stdout, other.output.stderr)

    # --- the loop ---

    def _add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self._readers[fd] = callback
        self._poller.watch(fd, READ)

    def _remove_readers(self, *fds: int) -> None:
        for fd in fds:
            if self._readers.pop(fd, None) is not None:
                self._poller.forget(fd)

    def _post(self, event: SlotEvent) -> None:
        self._queue.append(event)
        if not self._dispatching:
            self._alarm.ring()

    def _retry_soon(self) -> None:
        """Rings in a while: descriptors that were not to be had may be free then."""
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(_RETRY, self._alarm.ring)
            self._timer.name = "taskmesh-retry"
            self._timer.daemon = True
            self._timer.start()

    def _rung(self) -> None:
        self._alarm.hush()
        for seat in self._seats.values():
            self._pump(seat)
        if self._output_held and self._tee is not None and not self._tee.full:
            self._output_held = False
            for seat in self._seats.values():
                self._watch_output(seat)

    def _dispatch(self, timeout: float = 0) -> None:
        """Called by the loop when something is ready."""
        if self._dispatching:
            raise LocalProtocolError("on_event called back into the loop")
        self._dispatching = True
        try:
            for fd, _ in self._poller.poll(timeout):
                callback = self._readers.get(fd)
                if callback is not None:
                    callback()
            while self._queue:
                self._on_event(self._queue.popleft())
        finally:
            self._dispatching = False

    # --- the end ---

    def close(self, timeout: float) -> None:
        """Ends every slot and the fork server, and leaves nothing behind.

        Slots have `timeout` seconds to finish what they were given, then they are killed. Events of that time are
        given to `on_event` from inside.
        """
        for slot in list(self._seats):
            self.stop(slot)
        self._run_until(lambda: not self._seats, timeout)
        for slot in list(self._seats):
            self.kill(slot)
        self._run_until(lambda: not self._seats, _DYING)
        link = self._link
        if link is not None:
            link.end()
            self._run_until(lambda: self._link is None, _DYING)
        if self._link is not None:
            self._server_gone()
        self._run_until(lambda: not self._queue, 0)
        self._unwatch(self._poller.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._tee is not None:
            self._tee.close(_DYING)
        self._poller.close()
        self._alarm.close()

    def _run_until(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._dispatch(left)

    def forsake(self) -> None:
        """In a forked child of this process: closes every descriptor here, touches no process and no thread."""
        if self._link is not None:
            self._link.forsake()
        for seat in self._seats.values():
            seat.close()
        self._poller.close()
        self._alarm.close()


def _await_death(seat: Seat, deadline: float) -> None:
    """Waits until a killed slot is dead: until then it may still take a ticket."""
    poll = select.poll()
    if seat.handle is not None:
        poll.register(seat.handle, select.POLLIN)
    elif seat.pid:
        poll.register(seat.sock, select.POLLRDHUP if hasattr(select, "POLLRDHUP") else select.POLLHUP)
    else:
        return
    poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
