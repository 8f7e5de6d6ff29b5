"""A slot's process: takes tasks from its socket, runs them one after the other, sends results back."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from taskmesh.errors import TaskMeshError
from taskmesh.framing import frames
from taskmesh.pool import orders
from taskmesh.pool.busy_poll import BusyPoll
from taskmesh.pool.channel import Inbound, pack, send_all
from taskmesh.pool.execution import Executor
from taskmesh.pool.outbox import OutboxWriter
from taskmesh.pool.streams import Streams, out_of_reach
from taskmesh.serialize.code import allow_only
from taskmesh.shm import files
from taskmesh.system.services import System
from taskmesh.wire.slot_messages import FromSlot, SlotTasks

_OOM_SCORE: Final = 500
_BROKEN: Final = 70
"""Exit status of a slot that cannot go on: its descriptors were closed, or a bug of ours."""
_TASKS: Final = msgspec.msgpack.Decoder(SlotTasks)  # our own encoder made it: wire's checks would take longer
_ANSWER: Final = msgspec.msgpack.Decoder(orders.Answer)
_ENCODE: Final = msgspec.msgpack.Encoder().encode


class Birth:
    """What makes a forked child a slot: its number, and its descriptors in the order of `orders.Fork`."""

    __slots__ = ("outbox", "slot", "sock", "stderr", "stdout", "system", "tickets")

    def __init__(self, slot: int, system: System, fds: Sequence[int]) -> None:
        self.slot = slot
        self.system = system
        self.sock, self.tickets, self.stdout, self.stderr, self.outbox = fds


Incoming = tuple[int, bytes | memoryview, list[int]]


class SlotLink:
    """The slot's socket to its supervisor."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._inbound = Inbound(self._sock)
        self._readable = select.poll()
        self._readable.register(fd, select.POLLIN)
        self._frames = self._inbound.frames()
        self._lock = threading.Lock()  # a task's threads may report progress
        self._kept: deque[Incoming] = deque()  # came while an answer was waited for

    def hello(self) -> None:
        """Says that the slot is up."""
        send_all(self._sock, pack(orders.READY, _ENCODE(orders.Ready(os.getpid()))))

    def send(self, kind: int, message: FromSlot) -> None:
        """Sends results or progress; waits until the supervisor has room for it."""
        body, blobs = frames.encode_local(message)
        fds = [blob.to_fd() for blob in blobs]
        with self._lock:
            send_all(self._sock, pack(kind, body, len(fds)), fds)

    def ask(self, serial: int) -> orders.Answer:
        """Asks for a place for the tasks of the running one; waits for the answer.

        Raises:
            TaskMeshError: the supervisor is gone.
        """
        with self._lock:
            send_all(self._sock, pack(orders.ASK, _ENCODE(orders.Ask(serial))))
        while (frame := next(self._frames, None) or self.receive()) is not None:
            kind, body, fds = frame
            if kind == orders.ANSWER:
                return _ANSWER.decode(body)
            self._kept.append((kind, bytes(body), fds))
        raise TaskMeshError("this task cannot submit tasks: its pool has ended")

    def buffered(self) -> Incoming | None:
        """The next frame, if it has been read already."""
        return self._kept.popleft() if self._kept else next(self._frames, None)

    def receive(self) -> Incoming | None:
        """The next frame, waited for; None when the supervisor is gone."""
        while files.close_idle(time.monotonic()) and not self._readable.poll(1000 * files.KEPT_S):
            pass
        while self._inbound.receive():
            self._frames = self._inbound.frames()
            found = next(self._frames, None)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Closes the socket."""
        self._sock.close()


def run_slot(birth: Birth, preload: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Runs tasks until the supervisor says stop or is gone; imports the modules of `preload` first.

    Args:
        only: modules whose functions alone may be run, by name; empty for any function.
    """
    if only:
        allow_only(only)
    streams = _settle(birth)
    sock, tickets = out_of_reach(birth.sock), out_of_reach(birth.tickets)
    link = SlotLink(sock)
    outbox = OutboxWriter(birth.outbox)
    os.close(birth.outbox)
    executor = Executor(link, tickets, outbox, streams, birth.slot)
    files.keep_spares(files.SPARE_BYTES)
    os.register_at_fork(after_in_child=executor.disown)
    signal.signal(signal.SIGINT, executor.interrupted)
    try:
        for module in preload:
            importlib.import_module(module)
        link.hello()
        _serve(link, executor, BusyPoll(sock))
    except BaseException:  # noqa: BLE001  whatever it is, this process ends here
        try:
            if not executor.disowned:
                traceback.print_exc()
                sys.stderr.flush()
        finally:  # an exception's own code may fail as it is printed
            os._exit(_BROKEN)  # noqa: TID251  our descriptors are closed, or a task has forked us
    _farewell()


def _serve(link: SlotLink, executor: Executor, busy_poll: BusyPoll) -> None:
    lone = False
    while True:
        frame = link.buffered()
        if frame is None:
            executor.rest()
            frame = _receive_soon(link, busy_poll) if lone else link.receive()
            executor.resume()
        if frame is None or frame[0] == orders.STOP:
            break
        _, body, fds = frame
        message = frames.to_slot.decode_local(body, fds) if fds else _TASKS.decode(body)
        lone = len(message.runs) == 1 and len(message.runs[0].seqs) == 1
        executor.run(message)
        del message  # large arguments are given up before their results are sent
    executor.rest()


def _receive_soon(link: SlotLink, busy_poll: BusyPoll) -> Incoming | None:
    """Waits for the next frame after a lone task: the next may follow at once."""
    began = time.monotonic()
    busy_poll.wait()
    frame = link.receive()
    busy_poll.waited(time.monotonic() - began)
    return frame


def _settle(birth: Birth) -> Streams:
    """Makes a slot's process out of a forked child."""
    streams = Streams(birth.stdout, birth.stderr)
    os.environ["TASKMESH_SLOT"] = str(birth.slot)
    faulthandler.enable(2)
    birth.system.name_process(f"slot-{birth.slot}")
    _offer_to_oom_killer()
    return streams


def _offer_to_oom_killer() -> None:
    """When memory runs out, a slot is to be killed and not its supervisor."""
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError), open(path, "r+", encoding="ascii") as score:
        adjusted = min(1000, int(score.read()) + _OOM_SCORE)
        score.seek(0)
        score.write(str(adjusted))


def _farewell() -> None:
    """What an interpreter does at its end, but without waiting for the task's threads."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
