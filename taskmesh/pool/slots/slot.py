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
from multiprocessing import process as processes
from typing import Final, NamedTuple

import msgspec

from taskmesh.errors import TaskMeshError
from taskmesh.messages import frames
from taskmesh.messages.slot_messages import FromSlot, SlotTasks
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import BUFFER, Inbound, pack, send_all
from taskmesh.pool.slots.outbox import OUTBOX_SIZE, STACK_SIGNAL, OutboxWriter
from taskmesh.pool.slots.runner import SlotEnds, TaskRunner, install
from taskmesh.pool.slots.soft_timeout import SoftTimeout
from taskmesh.pool.slots.spin_wait import SpinWait
from taskmesh.pool.slots.streams import Streams, out_of_reach
from taskmesh.serialize.code import allow_only
from taskmesh.serialize.sources import look_at_imports
from taskmesh.shm import files
from taskmesh.shm.blob import copy_arguments
from taskmesh.system.session import name_process, open_process

_OOM_SCORE: Final = 500
_BROKEN: Final = 70
"""Exit status of a slot that cannot go on: its descriptors were closed, or taskmesh has a bug."""
_TASKS: Final = msgspec.msgpack.Decoder(SlotTasks)  # our own encoder made it: wire's checks would take longer
_PERMIT_REPLY: Final = msgspec.msgpack.Decoder(messages.PermitReply)
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_PROGRAM: Final = msgspec.msgpack.Decoder(messages.Program)


class SlotBootstrap(NamedTuple):
    """The number of a process's first slot, and its descriptors in the order of `messages.Fork`."""

    slot: int
    sock: int
    tickets: int
    outbox: int
    stdout: int
    stderr: int
    control: int = -1


Incoming = tuple[int, bytes | memoryview, list[int]]


class SlotLink:
    """The slot's socket to its supervisor."""

    def __init__(self, fd: int, room: int = BUFFER) -> None:
        self._sock = socket.socket(fileno=fd)
        self._inbound = Inbound(self._sock, room=room)
        self._readable = select.poll()
        self._readable.register(fd, select.POLLIN)
        self._frames = self._inbound.frames()
        self._lock = threading.Lock()  # a task's threads may report progress
        self._kept: deque[Incoming] = deque()  # came while an answer was waited for

    def send_ready(self) -> None:
        send_all(self._sock, pack(messages.READY, _ENCODE(messages.Ready(os.getpid()))))

    def send(self, kind: int, message: FromSlot) -> None:
        """Send results or progress; waits until the supervisor has room for it."""
        body, blobs = frames.encode_local(message)
        fds = [blob.to_fd() for blob in blobs]
        with self._lock:
            send_all(self._sock, pack(kind, body, len(fds)), fds)

    def ask(self, serial: int, *, lends: bool = True) -> messages.PermitReply:
        """Ask for the way to the hub, for the task with this serial; wait for the reply.

        Args:
            serial: of the task.
            lends: another slot gets this one's permit.

        Raises:
            TaskMeshError: the supervisor is gone.
        """
        with self._lock:
            request = messages.PermitRequest(serial, lends)
            send_all(self._sock, pack(messages.PERMIT_REQUEST, _ENCODE(request)))
        while (frame := next(self._frames, None) or self.receive()) is not None:
            kind, body, fds = frame
            if kind == messages.PERMIT_REPLY:
                return _PERMIT_REPLY.decode(body)
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
        self._sock.close()


def run_slot(bootstrap: SlotBootstrap, preload: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Run tasks until the supervisor says stop or is gone.

    Args:
        preload: modules that are imported first, and references of middleware that starts first.
        only: modules whose functions alone may be run, by name; empty for any function.
    """
    if only:
        allow_only(only)
    streams = prepare_process(bootstrap)
    sock = out_of_reach(bootstrap.sock)
    link = SlotLink(sock)
    ends = SlotEnds(bootstrap.slot, out_of_reach(bootstrap.tickets), OutboxWriter(bootstrap.outbox))
    os.lseek(bootstrap.outbox, OUTBOX_SIZE, os.SEEK_SET)
    faulthandler.register(STACK_SIGNAL, out_of_reach(bootstrap.outbox))
    runner = TaskRunner(link, ends, streams, SoftTimeout())
    install(lambda: runner)
    os.register_at_fork(after_in_child=runner.close_after_fork)
    signal.signal(signal.SIGINT, runner.interrupted)
    try:
        import_modules(preload)
        runner.middleware.start([reference for reference in preload if ":" in reference])
        link.send_ready()
        serve(link, runner, SpinWait(sock))
    except BaseException:  # noqa: BLE001  whatever it is, this process ends here
        try:
            if not runner.is_forked_child:
                traceback.print_exc()
                sys.stderr.flush()
        finally:  # an exception's own code may fail as it is printed
            os._exit(_BROKEN)  # noqa: TID251  our descriptors are closed, or a task has forked us
    run_exit_functions()


def import_modules(preload: Sequence[str]) -> None:
    for module in preload:
        if ":" not in module:
            importlib.import_module(module)
    look_at_imports()


def serve(link: SlotLink, runner: TaskRunner, spin_wait: SpinWait | None = None) -> None:
    """Run the tasks that come, until the supervisor says stop or is gone.

    Args:
        spin_wait: waits for what comes after a lone task; None to sleep.
    """
    lone = False
    while True:
        frame = link.buffered()
        if frame is None:
            runner.before_wait()
            frame = _receive_soon(link, spin_wait) if lone and spin_wait is not None else link.receive()
            runner.after_wait()
        if frame is None or frame[0] == messages.STOP:
            break
        kind, body, fds = frame
        if kind == messages.PROGRAM:
            _follow(_PROGRAM.decode(body))
            continue
        message = frames.to_slot.decode_local(body, fds) if fds else _TASKS.decode(body)
        lone = len(message.runs) == 1 and len(message.runs[0].seqs) == 1
        runner.run(message)
        del message  # large arguments are given up before their results are sent
    runner.before_wait()


def _follow(program: messages.Program) -> None:
    """Find modules where the program does now, and beyond that where tasks have added to the path."""
    path = [*map(os.fsdecode, program.path)]
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    if program.authkey:
        processes.current_process().authkey = program.authkey


def _receive_soon(link: SlotLink, spin_wait: SpinWait) -> Incoming | None:
    """Wait for the next frame after a lone task: the next may follow at once."""
    began = time.monotonic()
    spin_wait.wait()
    frame = link.receive()
    spin_wait.waited(time.monotonic() - began)
    return frame


def prepare_process(bootstrap: SlotBootstrap) -> Streams:
    """Make a process of slots out of a forked child."""
    streams = Streams(bootstrap.stdout, bootstrap.stderr)
    os.environ["TASKMESH_SLOT"] = str(bootstrap.slot)
    faulthandler.enable(2, all_threads=bootstrap.control < 0)  # there may be a thousand
    name_process(f"slot-{bootstrap.slot}")
    _tell_multiprocessing(f"slot-{bootstrap.slot}")
    _offer_to_oom_killer()
    files.keep_spares(files.SPARE_BYTES)
    copy_arguments()
    return streams


def _tell_multiprocessing(name: str) -> None:
    """Have libraries that ask it find a child of that name, which may start processes of its own."""
    server, parent = processes.current_process(), os.getppid()
    watched = open_process(parent)
    if watched is not None:
        found = processes._ParentProcess(server.name, parent, out_of_reach(watched))  # type: ignore[attr-defined]
        processes._parent_process = found  # type: ignore[attr-defined]
    server.name = name


def _offer_to_oom_killer() -> None:
    """Prefer this slot to its supervisor when the kernel kills for memory."""
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError), open(path, "r+", encoding="ascii") as score:
        adjusted = min(1000, int(score.read()) + _OOM_SCORE)
        score.seek(0)
        score.write(str(adjusted))


def run_exit_functions() -> None:
    """End as an interpreter does, but without waiting for the task's threads."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
