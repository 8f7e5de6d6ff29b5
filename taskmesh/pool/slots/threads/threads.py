"""Slots that share a process: each is a thread with a runner of its own (docs/adr/0053).

Coroutines run on one event loop, in the process's main thread, while their slots' threads wait for them. A
further thread follows the supervisor, ends tasks that run too long, and tells of a loop that stands still. A
thread cannot be stopped. So one whose task is given up is left to it, and its slot goes on in another.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskmesh.pool.slots import coroutines, messages
from taskmesh.pool.slots.channel import SMALL_ROOM, Inbound, pack, send_all
from taskmesh.pool.slots.middleware import SlotMiddleware
from taskmesh.pool.slots.outbox import OUTBOX_SIZE, STACK_BYTES, OutboxWriter
from taskmesh.pool.slots.runner import SlotEnds, install
from taskmesh.pool.slots.slot import (
    SlotBootstrap,
    SlotLink,
    import_modules,
    prepare_process,
    run_exit_functions,
)
from taskmesh.pool.slots.streams import Streams, out_of_reach
from taskmesh.pool.slots.threads.runner import LOOK_S, ThreadLimit, ThreadRunner, here, line_of
from taskmesh.serialize.code import allow_only
from taskmesh.system.process import raise_file_limit
from taskmesh.system.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio

BLOCKED_S: Final = 1.0
"""Seconds without a turn of the event loop after which it counts as blocked."""
_LOST_SHARE: Final = 4
"""The process is replaced when one in so many of its slots has left a thread to its task."""
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder().decode
LONGEST_WAIT_S: Final = 3600.0
"""Seconds between two looks at the slots, at most; poll(2) takes no more than 24 days."""
_BROKEN: Final = 70
"""Exit status of a process that cannot go on."""


class SlotThreads:
    """The slots of this process, and the thread that watches them.

    Args:
        control: the socket to the supervisor.
        streams: the process's.
        loop: runs coroutines, in the main thread.

    Attributes:
        streams: as given.
        middleware: is started before the first slot.
        has_ended: the supervisor has closed the socket.
    """

    def __init__(self, control: int, streams: Streams, loop: asyncio.AbstractEventLoop) -> None:
        self.streams = streams
        self.middleware = SlotMiddleware(ThreadLimit(_never))
        self.has_ended = False
        self._loop = loop
        self._main = threading.get_ident()
        self._sock = socket.socket(fileno=control)
        self._inbound = Inbound(self._sock)
        self._wakeup = Wakeup()
        self._sending = threading.Lock()
        self._runners: dict[int, ThreadRunner] = {}
        self._look_at = math.inf
        self._lost = 0  # threads that were left to their tasks
        self._is_worn = False
        self._asked, self._turned, self._asked_at = 0, 0, 0.0

    def add(self, slot: int, fds: Sequence[int]) -> None:
        """Begin a slot with these descriptors: socket, tickets, outbox."""
        sock, tickets, outbox = map(out_of_reach, fds)
        link = SlotLink(sock, SMALL_ROOM)
        runner = ThreadRunner(self, link, SlotEnds(slot, tickets, OutboxWriter(outbox)), outbox)
        link.send_ready()
        self._begin(runner)

    def _add_or_refuse(self, slot: int, fds: Sequence[int]) -> None:
        """Begin a slot; where there is no room for another, the others go on."""
        try:
            self.add(slot, fds)
        except (OSError, RuntimeError) as error:  # no descriptor, memory or thread is left
            self._runners.pop(slot, None)
            text = f"slot {slot} cannot be started (see `ulimit -n`, `-u` and `-v`, and pids.max): {error}"
            self._send(messages.ProcessNews(slot, "slot.refused", text))
            self._send(messages.ProcessNews(slot, "ended"))

    def _begin(self, runner: ThreadRunner) -> None:
        self._runners[runner.ends.slot] = runner
        name = f"slot-{runner.ends.slot}"
        threading.Thread(target=_unbroken, args=(runner.work,), name=name, daemon=True).start()

    def ended(self, runner: ThreadRunner) -> None:
        """Tell the supervisor that a slot has ended, as it was told; called in its thread."""
        ends = runner.ends
        del self._runners[ends.slot]
        self._send(messages.ProcessNews(ends.slot, "ended"))  # before its socket ends
        runner.link.close()
        ends.outbox.close_after_fork()
        os.close(ends.tickets)
        os.close(runner.stacks)

    def returned(self) -> None:
        """A task has returned to which its thread was left."""
        self._lost -= 1

    def _send(self, news: messages.ProcessNews) -> None:
        with self._sending, contextlib.suppress(OSError):
            send_all(self._sock, pack(messages.NEWS, _ENCODE(news)))

    def close_after_fork(self) -> None:
        """Called in a child that a task has forked."""
        self._sock.close()
        for runner in self._runners.values():
            runner.close_after_fork()

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine of a task; outside of the slots' threads in a loop of its own."""
        runner = here.get()
        if runner is None or not runner.is_here():
            return import_module("asyncio").run(coroutine)
        return runner.wait_for(coroutine, self._loop)

    # --- the thread that watches ---

    def look_at(self, at: float) -> None:
        """Have the thread look at the slots at this time at the latest."""
        if at < self._look_at:
            self._look_at = at
            self._wakeup.set()

    def watch(self) -> None:
        """Follow the supervisor, and end tasks whose time is over, until the supervisor closes the socket."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while not self.has_ended:
            wait = self._look_at - time.monotonic()
            ready = poll.poll(1000 * max(0.0, min(wait, LONGEST_WAIT_S)))
            self._wakeup.clear()
            if any(fd == self._sock.fileno() for fd, _ in ready):
                self._obey()
            self._look(time.monotonic())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _obey(self) -> None:
        self.has_ended = not self._inbound.receive()
        for kind, body, fds in self._inbound.frames():
            if kind == messages.SLOT:
                self._add_or_refuse(_DECODE(body), fds)
            elif kind == messages.CANCEL:
                slot, serial = _DECODE(body)
                if slot in self._runners:
                    self._runners[slot].cancel(serial)
            elif kind == messages.STACK:
                runner = self._runners.get(_DECODE(body))
                if runner is not None:
                    with contextlib.suppress(OSError):  # the slot has just ended
                        os.pwrite(runner.stacks, runner.stack().encode()[:STACK_BYTES], OUTBOX_SIZE)

    def _look(self, now: float) -> None:
        self._look_at = math.inf  # before the slots are looked at: they may set it meanwhile
        waits = False
        for runner in list(self._runners.values()):
            waits |= runner.waits
            if now >= runner.until:
                heir = runner.strike()
                if heir is not None:
                    self._leave(runner, heir)
            self._look_at = min(self._look_at, runner.until)
        if waits:
            self._look_at_loop(now)
            self._look_at = min(self._look_at, now + LOOK_S)

    def _leave(self, runner: ThreadRunner, heir: ThreadRunner) -> None:
        """Leave a thread to its task; have the process replaced when there are many such."""
        self._lost += 1
        text = f"{runner.describe()} goes on in its thread, and its slot in another: it was given up"
        stands_still = runner.waits and self._turned != self._asked
        try:
            self._begin(heir)
        except RuntimeError:  # no thread is left
            stands_still = True
        is_worn = not self._is_worn and (stands_still or self._lost * _LOST_SHARE > len(self._runners))
        if is_worn:
            self._is_worn = True
            text += f". {self._lost} threads were left so, or the loop stands still: the process is replaced"
        self._send(messages.ProcessNews(runner.ends.slot, "thread.left", text, is_worn))

    def _look_at_loop(self, now: float) -> None:
        """Tell of the task in which the event loop stands still."""
        if self._turned == self._asked:
            self._asked += 1
            self._asked_at = now
            self._loop.call_soon_threadsafe(self._turn, self._asked)
        elif now - self._asked_at >= BLOCKED_S:
            self._asked_at = math.inf  # once
            task = import_module("asyncio").current_task(self._loop)
            found = [runner for runner in list(self._runners.values()) if runner.coroutine is task]
            frames, frame = [], sys._current_frames().get(self._main)
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            what = found[0].describe() if found and task is not None else "a task"
            slot = found[0].ends.slot if found else next(iter(self._runners))
            stack = "\n".join(map(line_of, frames))
            text = (
                f"{what} keeps the event loop for over {BLOCKED_S:g} s without an await: no other "
                f"coroutine of its process runs. Make it a function, or await asyncio.to_thread():\n{stack}"
            )
            self._send(messages.ProcessNews(slot, "loop.blocked", text))

    def _turn(self, number: int) -> None:
        self._turned = number


def _prints_of_task() -> Callable[[int, str], None] | None:
    runner = here.get()
    return runner.printed if runner is not None and runner.takes_prints else None


def _unbroken(run: Callable[[], None]) -> None:
    """Call a function; end the process if it raises: taskmesh has a bug, or its descriptors were closed."""
    try:
        run()
    except BaseException:  # noqa: BLE001  whatever it is
        traceback.print_exc()
        os._exit(_BROKEN)  # noqa: TID251  as a slot with a process of its own would


def _never(seconds: float) -> None:
    """Watch nothing: no task runs."""


def run_threads(bootstrap: SlotBootstrap, preload: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Run slots in threads until the supervisor ends the process or is gone; otherwise as `run_slot`."""
    if only:
        allow_only(only)
    raise_file_limit()
    streams = prepare_process(bootstrap)
    del os.environ["TASKMESH_SLOT"]
    loop: asyncio.AbstractEventLoop = import_module("asyncio").new_event_loop()
    threads = SlotThreads(out_of_reach(bootstrap.control), streams, loop)
    install(here.get)
    streams.share(_prints_of_task)
    coroutines.run_by(threads.wait_for)
    os.register_at_fork(after_in_child=threads.close_after_fork)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        import_modules(preload)
        threads.middleware.start([reference for reference in preload if ":" in reference])
        threads.add(bootstrap.slot, (bootstrap.sock, bootstrap.tickets, bootstrap.outbox))
        threading.Thread(target=_unbroken, args=(threads.watch,), name="taskmesh-watch", daemon=True).start()
        while not threads.has_ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # a coroutine's, which ends with it
                loop.run_forever()
    except BaseException:  # noqa: BLE001  whatever it is, this process ends here
        traceback.print_exc()
        os._exit(_BROKEN)  # noqa: TID251  its slots have nobody to watch them
    run_exit_functions()
