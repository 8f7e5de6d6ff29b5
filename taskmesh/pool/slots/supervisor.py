"""The supervisor of a pool's slots: starts them, gives them tasks, takes tasks back, reports their ends."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from taskmesh.core.events import (
    ProcessTold,
    SlotAsked,
    SlotExited,
    SlotFinished,
    SlotReady,
    SlotRecalled,
    SlotReported,
)
from taskmesh.errors import LocalProtocolError, ProtocolError
from taskmesh.messages.runs import DEBUG, STACK, LogLine
from taskmesh.messages.slot_messages import SlotLogs, SlotTasks
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor, Report
from taskmesh.pool.slots.messages import CANCEL, SLOT, Forked, ForkRefused, PermitReply
from taskmesh.pool.slots.output import Console, TaskPrints
from taskmesh.pool.slots.slot_handle import SlotHandle, SlotProcess
from taskmesh.shm import files
from taskmesh.system.cgroups import LONGEST_DEATH
from taskmesh.system.clock import monotonic
from taskmesh.system.selector import CallbackSelector
from taskmesh.system.session import send_signal

SlotEvent = SlotReady | SlotFinished | SlotReported | SlotAsked | SlotRecalled | SlotExited | ProcessTold

_KILLED: Final = -9
_OUTPUT = 4096
"""Characters of its last output that a failure has."""
_RETRY: Final = 0.05
"""Seconds until a look whether there is a descriptor now for a large argument."""
_IDLE_LOOK: Final = 1.0
"""Seconds between two looks for idle memory files."""
_LAST_WORDS: Final = 0.5
"""Seconds that are waited for our own stdout to take what slots have printed."""
_STACK_WAIT: Final = 1.0
"""Seconds that a slot has to say where its task is."""
_STACK_LOOK: Final = 0.02
"""Seconds between two looks at that: it is whole when the second sees no more than the first."""
NO_STACK: Final = "its slot does not answer: its process is stopped, or the task has replaced the program"
NO_PROCESS: Final = 1
"""The status of a slot for which there was no process; its log says why."""


@dataclass(slots=True)
class StackWait:
    """The wait for a slot to say where its task is.

    Attributes:
        serial: of the task.
        until: the time after which the slot is not going to answer.
        seen: the text of the last look.
    """

    serial: int
    until: float
    seen: str = ""


class Watching(Protocol):
    """A loop that watches a supervisor's one descriptor for reading, until `SlotSupervisor.close`."""

    def watch(self, source: int, callback: Callable[[], None], /) -> None: ...

    def unwatch(self, source: int, /) -> None: ...


class SlotSupervisor:
    """The slots of one pool, in processes forked by one fork server. It is a timer of its loop, too.

    Every method returns at once (but `close`) and is called from the loop's thread. Events are given to
    `on_event` only while the loop calls back, never from inside another method (but `close`).

    Args:
        fork_server: forks them.
        loop: watches them.
        on_event: takes the events, in order for each slot.
        tee: pass what slots print on to this process's stdout and stderr.

    Attributes:
        deadline: the time at which `turn` is to be called.
    """

    def __init__(
        self,
        fork_server: ForkServerSupervisor,
        loop: Watching,
        on_event: Callable[[SlotEvent], None],
        *,
        tee: bool = True,
    ) -> None:
        self._on_event = on_event
        self._loop = loop
        self._fork_server = fork_server
        try:
            self._selector = CallbackSelector()
        except OSError:
            self._fork_server.reap()
            raise
        self._console = Console(self._selector, tee=tee)
        self.deadline = 0.0
        self._retry_at = math.inf
        self._idle_look = 0.0
        self._handles: dict[int, SlotHandle] = {}
        self._processes: dict[int, SlotProcess] = {}  # by token
        self._shared: dict[int, SlotProcess] = {}  # by number: those that further slots may join
        self._next_token = 1
        self._queue: deque[SlotEvent] = deque()
        self._exits: dict[int, SlotExited] = {}  # each slot's last; the caller may not have handled it yet
        self._kernel_killed_another = -math.inf  # when its kill was told of a slot of ours
        self._dispatching = False
        self._closed = False
        self._stacks: dict[SlotHandle, StackWait] = {}
        self._printing: dict[int, TaskPrints] = {}  # by slot, while its task's prints are its log
        self._fork_server.listen(self._selector, self._on_report, self._server_lost)
        loop.watch(self._selector.fileno(), self._dispatch)
        _open.add(self)
        files.keep_spares(files.SPARE_BYTES)

    @property
    def is_closing(self) -> bool:
        """True when slots end because of `close`."""
        return self._closed

    def fileno(self) -> int:
        """Return the one descriptor: it is readable when a slot has reported something."""
        return self._selector.fileno()

    # --- actions ---

    def start(self, slot: int, number: int | None = None) -> None:
        """Start a slot; SlotReady or SlotExited(ready=False) follows.

        Args:
            slot: the slot's number.
            number: of the process that it shares; None for one of its own.
        """
        if slot in self._handles:
            raise LocalProtocolError(f"slot {slot} is started already")
        shared = None if number is None else self._shared.get(number)
        process: SlotProcess | None = None
        try:
            process = shared or SlotProcess(self._next_token, number)
            handle = SlotHandle(slot, process, self._fork_server.slots.sys_path)
        except OSError as error:
            if process is not None and shared is None:
                process.close()
            why = f"no descriptors, memory or files for a slot (see `ulimit -n`, `-v`, `-f`): {error}"
            self._post(SlotExited(slot, 0, NO_PROCESS, ready=False, log=why))
            return
        self._next_token += shared is None
        self._handles[slot] = process.slots[slot] = handle
        self._selector.add(handle.sock.fileno(), partial(self._ready, handle))
        if shared is None:
            self._fork(process, handle)
        elif process.control is not None:
            process.control.send(SLOT, slot, handle.slot_fds())
            self._watch_control(process)

    def _fork(self, process: SlotProcess, first: SlotHandle) -> None:
        self._processes[process.token] = process
        self._console.add(process.output)
        if process.control is not None and process.number is not None:
            self._shared[process.number] = process
            self._selector.add(process.control.sock.fileno(), partial(self._control_ready, process))
        if not self._fork_server.fork(process.token, first.slot, process.fds(first), process):
            self._remove(process, NO_PROCESS, oom=False, reason=self._fork_server.trouble)

    def hand_over(self, slot: int, message: SlotTasks) -> None:
        """Give tasks to a slot, which may be still starting.

        To one that is gone, as the caller may not know yet, they count among its SlotExited's `unstarted`.
        """
        handle = self._handles.get(slot)
        if handle is None:
            gone = self._exits.get(slot)
            if gone is None:
                raise LocalProtocolError(f"tasks for slot {slot}, which is not there")
            gone.unstarted += sum(len(run.seqs) for run in message.runs)
            return
        self._end_prints(handle)  # of a task that was taken back
        if message.prints:
            self._printing[slot] = prints = TaskPrints(message.first)
            self._console.begin_task(handle.process.output, prints)
        handle.hand_over(message)
        self._pump(handle)

    def recall(self, slot: int, generation: int) -> None:
        """Take back every task of a slot that has not started; SlotRecalled follows (not from a dead slot).

        Later hand-overs must carry `generation`, which no earlier one did.
        """
        handle = self._handles.get(slot)
        if handle is not None:
            self._post(SlotRecalled(slot, handle.take_back(generation)))
            self._pump(handle)

    def reply(self, slot: int, reply: PermitReply) -> None:
        handle = self._handles.get(slot)
        if handle is not None:
            handle.reply(reply)
            self._watch_writes(handle)

    def peek(self, slot: int) -> None:
        """Read a busy slot's outbox; SlotFinished follows when something new is in it."""
        handle = self._handles.get(slot)
        if handle is not None:
            for event in handle.peek():
                self._post(event)

    def ask_stack(self, slot: int, serial: int) -> None:
        """Find out where a task is in its code; SlotReported with a line of its log follows, within a second.

        Nothing follows if the task has ended.
        """
        self.peek(slot)  # what ran before it may not have been reported
        handle = self._handles.get(slot)
        if handle is None or serial < handle.expected:
            return
        if serial > handle.expected:
            self._tell_stack(handle, serial, "it has not started: it waits in its slot behind another task")
        elif handle.ask_stack():
            self._watch_control(handle.process)
            self._stacks[handle] = StackWait(serial, monotonic() + _STACK_WAIT)
            self.deadline = 0.0
        else:
            self._tell_stack(handle, serial, NO_STACK)

    def _look_for_stacks(self, now: float) -> None:
        """Report the stacks that are whole: nothing marks their end, but soon nothing more is written."""
        for handle, wait in list(self._stacks.items()):
            text = handle.stack()
            if (text and text == wait.seen) or now >= wait.until:
                del self._stacks[handle]
                self._tell_stack(handle, wait.serial, text or NO_STACK)
            wait.seen = text

    def _tell_stack(self, handle: SlotHandle, serial: int, text: str) -> None:
        line = LogLine(time.time(), DEBUG, STACK, text.rstrip())
        self._post(SlotReported(handle.slot, SlotLogs(serial, [line])))

    def cancel(self, slot: int, serial: int) -> None:
        """Mark the running task as cancelled; kill the slot if its task does not look for that.

        Where slots share a process the slot gives the task up.
        """
        handle = self._handles.get(slot)
        if handle is None:
            return
        looks = handle.cancel(serial)
        if handle.process.control is not None:
            handle.process.control.send(CANCEL, (slot, serial))
            self._watch_control(handle.process)
        elif not looks:
            self.kill(slot)

    def kill(self, slot: int) -> None:
        """SIGKILL a slot's process and what it has started; SlotExited of each of its slots follows."""
        handle = self._handles.get(slot)
        if handle is not None:
            handle.process.killed = True
            self._kill(handle.process)

    def kill_for_memory(self, slot: int, why: str) -> None:
        """Kill a slot before the kernel does: SlotExited reports a kill for memory, with the reason."""
        handle = self._handles.get(slot)
        if handle is not None and not handle.process.killed:
            handle.process.out_of_memory = True
            handle.trouble = why
            self.kill(slot)

    def stop(self, slot: int) -> None:
        """Let a slot end when it has done its tasks; SlotExited follows."""
        handle = self._handles.get(slot)
        if handle is not None:
            handle.stop()
            self._watch_writes(handle)

    def pids(self) -> dict[int, int]:
        """Return the process ids of the slots whose processes are known to exist."""
        return {slot: handle.process.pid for slot, handle in self._handles.items() if handle.process.pid}

    # --- starts and deaths ---

    def _on_report(self, report: Report, pidfd: int | None) -> None:
        process = self._processes[report.token]
        if isinstance(report, Forked):
            process.forked(report.pid, pidfd)
            if process.control is None:
                for handle in process.slots.values():
                    handle.close_slot_ends()
            if process.killed:
                self._kill(process)
        elif isinstance(report, ForkRefused):
            self._remove(process, NO_PROCESS, oom=False, reason=report.reason)
        else:
            self._remove(process, report.status, oom=report.oom)

    def _server_lost(self, reason: str) -> None:
        """Remove every slot: the fork server has died, and they are being killed."""
        deadline = monotonic() + LONGEST_DEATH
        for process in list(self._processes.values()):
            if process.pid and not send_signal(process.pidfd):
                with contextlib.suppress(OSError):  # where there is no /proc to find a session's processes by
                    os.killpg(process.pid, signal.SIGKILL)
            _await_death(process, deadline)
            self._remove(process, _KILLED, oom=False, reason=reason)

    def _kill(self, process: SlotProcess) -> None:
        """The group is killed by the fork server when it reaps the leader, if not before."""
        if not send_signal(process.pidfd):
            self._fork_server.kill(process.token)

    def _remove(self, process: SlotProcess, status: int, *, oom: bool, reason: str = "") -> None:
        """Report the slots of a process that is gone: all that they had sent first, then their exits."""
        slots = list(process.slots.values())
        for handle in slots:
            self._queue.extend(handle.read_all())
            self._queue.extend(handle.peek())
            self._end_prints(handle)
        self._console.remove(process.output)
        del self._processes[process.token]
        self._leave_control(process)
        oom = self._is_for_memory(process, status, oom=oom)
        left = {handle: handle.left() for handle in slots}
        suspects = 1 if process.control is None else sum(handle.open > left[handle] for handle in slots)
        for handle in slots:
            log = "\n".join(filter(None, (process.output.text(), handle.trouble, reason)))
            self._drop(handle)
            self._post(SlotExited(handle.slot, left[handle], status, oom, handle.ready, log, suspects))
        process.close()

    def _drop(self, handle: SlotHandle) -> None:
        self._selector.remove(handle.sock.fileno())
        del self._handles[handle.slot]
        self._stacks.pop(handle, None)
        handle.close()

    def _is_for_memory(self, process: SlotProcess, status: int, *, oom: bool) -> bool:
        """Return True if a slot was killed for lack of memory, by the kernel or by us.

        Two slots may run out of memory at once: we kill one, and the kernel the other. The fork server knows
        only how many the kernel has killed. Its kill may be told of the slot that we have killed.
        """
        if status != _KILLED:
            return False
        if process.killed:
            if oom:
                self._kernel_killed_another = monotonic()
            return process.out_of_memory
        if not oom and monotonic() - self._kernel_killed_another < LONGEST_DEATH:
            self._kernel_killed_another = -math.inf
            return True
        return oom

    # --- slots' sockets ---

    def _ready(self, handle: SlotHandle) -> None:
        """The slot's socket is readable, or writable again."""
        unsent = handle.unsent
        if unsent and handle.wants_write:
            handle.write()
        self._queue.extend(handle.read())
        if handle.at_end:
            # The fork server reports deaths. A slot whose task has closed the socket, or that sends invalid
            # frames, must not live on.
            self._selector.remove(handle.sock.fileno())
            self._control_ready(handle.process)  # it may say that the slot has ended
            if self._handles.get(handle.slot) is handle:
                self._kill(handle.process)
        elif unsent:
            self._pump(handle)

    # --- processes whose slots are threads ---

    def _control_ready(self, process: SlotProcess) -> None:
        if process.control is None:
            return
        process.control.write()
        try:
            news = process.control.read()
        except (OSError, ProtocolError, msgspec.DecodeError):
            self._leave_control(process)
            self._kill(process)
            return
        for each in news:
            if each.kind != "ended":
                self._queue.append(ProcessTold(each.slot, each.kind, each.text, each.is_worn))
            elif each.slot in process.slots:
                self._ended(process.slots.pop(each.slot))
        if not process.slots:
            self._leave_control(process)
            process.control.close()  # it ends
        self._watch_control(process)

    def _ended(self, handle: SlotHandle) -> None:
        """Report a slot that has ended, as it was told, while its process goes on."""
        self._queue.extend(handle.read_all())
        left = handle.left()
        self._drop(handle)
        self._post(SlotExited(handle.slot, left, 0))

    def _watch_control(self, process: SlotProcess) -> None:
        if process.control is not None and process in self._shared.values():
            self._selector.set_writing(process.control.sock.fileno(), process.control.wants_write)

    def _leave_control(self, process: SlotProcess) -> None:
        """Have nothing to do with its control any more: further slots get another process."""
        number = process.number
        if process.control is not None and number is not None and self._shared.get(number) is process:
            self._selector.remove(process.control.sock.fileno())
            del self._shared[number]

    def _pump(self, handle: SlotHandle) -> None:
        if handle.pump():
            self.deadline = self._retry_at = monotonic() + _RETRY
        self._watch_writes(handle)

    def _watch_writes(self, handle: SlotHandle) -> None:
        self._selector.set_writing(handle.sock.fileno(), handle.wants_write)

    # --- the loop ---

    def turn(self, now: float) -> None:
        """Send what no descriptor was left for, and close memory files that are idle, when it is time."""
        if now >= self._retry_at:
            self._retry_at = math.inf
            for handle in self._handles.values():
                self._pump(handle)
        if now >= self._idle_look:
            self._idle_look = now + _IDLE_LOOK
            files.close_idle(now)
        self._look_for_stacks(now)
        stacks = now + _STACK_LOOK if self._stacks else math.inf
        self.deadline = min(self._retry_at, self._idle_look, stacks)

    def _post(self, event: SlotEvent) -> None:
        if isinstance(event, SlotExited):
            self._exits[event.slot] = event
        self._queue.append(event)
        if not self._dispatching:
            self._selector.wakeup.set()

    def _dispatch(self, timeout: float = 0) -> None:
        """Called by the loop when something is ready."""
        if self._dispatching:
            raise LocalProtocolError("on_event called back into the loop")
        self._dispatching = True
        try:
            self._selector.poll(timeout)
            for slot, prints in self._printing.items():
                self._tell_prints(slot, prints)
            while self._queue:
                event = self._queue.popleft()
                if type(event) is SlotFinished:
                    if event.slot in self._printing:
                        self._queue.appendleft(event)
                        self._end_prints(self._handles[event.slot])
                        continue
                    if event.results.failed:
                        self._note_output(event)
                self._on_event(event)
        finally:
            self._dispatching = False

    def _end_prints(self, handle: SlotHandle) -> None:
        """Report what is left of the log of a slot's task, if its prints are its log: before all events."""
        prints = self._printing.pop(handle.slot, None)
        if prints is not None:
            self._console.end_task(handle.process.output)
            prints.end()
            self._tell_prints(handle.slot, prints)

    def _tell_prints(self, slot: int, prints: TaskPrints) -> None:
        """Report what a task has printed, before all events that are queued: it was printed before them."""
        lines = prints.take()
        if lines:
            self._queue.appendleft(SlotReported(slot, SlotLogs(prints.serial, lines)))

    def _note_output(self, event: SlotFinished) -> None:
        """Add to failures what their process has printed last."""
        handle = self._handles.get(event.slot)
        if handle is None:
            return
        self._console.catch_up(handle.process.output)
        output = handle.process.output.text()[-_OUTPUT:]
        for failure in event.results.failed:
            failure.output = output

    # --- the end ---

    def close(self, timeout: float) -> None:
        """End every slot and the fork server, and leave nothing behind.

        Slots have `timeout` seconds to finish what they were given, then they are killed. Events of that time
        are given to `on_event` from inside. May be called twice.
        """
        if self._closed:
            return
        self._closed = True
        if timeout > 0:
            for slot in list(self._handles):
                self.stop(slot)
            self._run_until(lambda: not self._processes, timeout)
        for process in list(self._processes.values()):
            process.killed = True
            self._kill(process)
        self._run_until(lambda: not self._processes, LONGEST_DEATH)
        self._fork_server.stop()
        self._run_until(lambda: not self._fork_server.is_running, LONGEST_DEATH)
        self._fork_server.reap()
        while self._queue:
            self._on_event(self._queue.popleft())
        self._loop.unwatch(self._selector.fileno())
        self._console.close(_LAST_WORDS)
        self._selector.close()
        _open.discard(self)
        if not _open:
            files.keep_spares(0)

    def _run_until(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = monotonic() + timeout
        while not condition():
            now = monotonic()
            if now >= deadline:
                return
            self.turn(now)
            self._dispatch(max(0.0, min(deadline, self.deadline) - now))

    def close_after_fork(self) -> None:
        """Close every descriptor in a forked child of this process; touches no process or thread."""
        self._fork_server.close_after_fork()
        for handle in self._handles.values():
            handle.close()
        for process in self._processes.values():
            process.close()
        self._selector.close()
        _open.discard(self)


_open: set[SlotSupervisor] = set()


def _await_death(process: SlotProcess, deadline: float) -> None:
    """Wait until a killed process is dead: until then its slots may still take tickets."""
    poll = select.poll()
    if process.pidfd is not None:
        poll.register(process.pidfd, select.POLLIN)
    elif process.pid:
        for handle in process.slots.values():
            poll.register(handle.sock, getattr(select, "POLLRDHUP", select.POLLHUP))
    else:
        return
    poll.poll(max(0.0, deadline - monotonic()) * 1000)
