"""The fork server: a small fresh interpreter that forks the slots, and reports how each of them ended.

It runs no user code, has one thread and imports only what slots need, so a fork is cheap and safe at any
time. It ends everything when its parent, the supervisor's process, is gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec

from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import Inbound, pack, send_all
from taskmesh.pool.slots.slot import SlotBootstrap, run_slot
from taskmesh.pool.slots.threads.threads import run_threads
from taskmesh.serialize.values import cloudpickle
from taskmesh.system.cgroups import OomCounter
from taskmesh.system.session import (
    adopt_orphans,
    become_user,
    die_with_parent,
    end_orphans,
    end_session,
    open_process,
)
from taskmesh.system.wakeup import Wakeup

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_FORK: Final = msgspec.msgpack.Decoder(messages.Fork)
_KILL: Final = msgspec.msgpack.Decoder(messages.Kill)
_PARENT_CHECK_MS: Final = 250
"""Milliseconds between looks at the parent's id, where there is no pidfd."""


def main(
    control: int,
    parent: int,
    preload: Sequence[str] = (),
    only: Sequence[str] = (),
    user: str = "",
    gpus: Sequence[str] = (),
) -> NoReturn:
    """Serve the supervisor at the socket `control` while `parent` lives; the fresh interpreter runs this."""
    bootstrap = ForkServer(control, parent, user).serve()
    if bootstrap is not None:
        if gpus:  # before anything is imported that may look for them
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[bootstrap.slot % len(gpus)]
        run = run_slot if bootstrap.control < 0 else run_threads
        run(bootstrap, preload, only)
    os._exit(0)  # noqa: TID251  all children are reaped, and nothing here needs a farewell


class ForkServer:
    """Forks and kills slots to order, and reaps them.

    Args:
        control: the socket to the supervisor.
        parent: the supervisor's process.
        user: the name of the user as whom slots run; empty for this process's.
    """

    def __init__(self, control: int, parent: int, user: str = "") -> None:
        self._user = user
        self._parent = parent
        self._parent_pidfd = open_process(parent)
        self._sock = socket.socket(fileno=control)
        self._inbound = Inbound(self._sock)
        self._pids: dict[int, int] = {}  # token -> pid
        self._tokens: dict[int, int] = {}  # pid -> token
        self._orphans: set[int] = set()  # were killed
        self._oom = OomCounter()
        self._ended = False
        self._child_died = Wakeup()

    def serve(self) -> SlotBootstrap | None:
        """Serve until the end; returns None, or in a forked child the slot that it becomes."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A service manager may send SIGTERM to all processes at once: the supervisor decides what follows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._child_died.write_fd, warn_on_full_buffer=False)
        # Inherited: the supervisor's parent, or its thread that started us, may have blocked some.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        adopt_orphans()
        cloudpickle()  # 5 ms here, or in every slot that gets a function of somebody's __main__
        gc.freeze()  # what is shared with slots stays untouched by their collectors
        gc.enable()
        self._report(messages.UP, None)
        poll = select.poll()
        for fd in (self._sock.fileno(), self._child_died.fd, self._parent_pidfd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        timeout = _PARENT_CHECK_MS if self._parent_pidfd is None else None
        while not self._ended:
            ready = {fd for fd, _ in poll.poll(timeout)}
            if self._parent_pidfd in ready or os.getppid() != self._parent:
                break
            if self._child_died.fd in ready:
                self._reap()
            if self._sock.fileno() in ready:
                bootstrap = self._obey()
                if bootstrap is not None:
                    return bootstrap
        self._finish()
        return None

    def _obey(self) -> SlotBootstrap | None:
        """Do what the supervisor has ordered; in a forked child returns the slot."""
        if not self._inbound.receive():
            self._ended = True
            return None
        for kind, body, fds in self._inbound.frames():
            if kind == messages.FORK:
                bootstrap = self._fork(_FORK.decode(body), fds)
                if bootstrap is not None:
                    return bootstrap
            elif kind == messages.KILL:
                pid = self._pids.get(_KILL.decode(body).token)
                if pid is not None:
                    _kill_group(pid)
            elif kind == messages.END:
                self._ended = True
        return None

    def _fork(self, order: messages.Fork, fds: list[int]) -> SlotBootstrap | None:
        server = os.getpid()
        self._oom.refresh()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"no process for the slot {messages.PROCESS_LIMITS}: {error}"
            self._report(messages.REFUSED, messages.ForkRefused(order.token, reason))
            pid = -1
        if pid == 0:
            os.setpgid(0, 0)
            if self._user:
                become_user(self._user)  # before the next line, which that would undo
            die_with_parent(server)
            self._leave_to_slot()
            return SlotBootstrap(order.slot, *fds)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            with contextlib.suppress(OSError):  # the child has done it, or is dead
                os.setpgid(pid, pid)
            self._pids[order.token] = pid
            self._tokens[pid] = order.token
            pidfd = open_process(pid)
            self._report(messages.FORKED, messages.Forked(order.token, pid), [] if pidfd is None else [pidfd])
            if pidfd is not None:
                os.close(pidfd)
        return None

    def _leave_to_slot(self) -> None:
        """Close the fork server's descriptors in a forked child, and give signals their default meaning."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._close()

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._sock.close()
        self._child_died.close()
        if self._parent_pidfd is not None:
            os.close(self._parent_pidfd)

    def _reap(self) -> None:
        """Report every death, and end what slots leave behind.

        A group is killed before its leader is reaped: until then its id is its own.
        """
        self._child_died.clear()
        leaves = False
        while (dead := _next_dead()) is not None:
            token = self._tokens.pop(dead.pid, None)
            leaves |= token is not None or dead.pid in self._orphans
            oom = False
            if token is not None:  # else it is an orphan of a slot
                _kill_group(dead.pid)
                oom = dead.status == -signal.SIGKILL and self._oom.explains(dead.pid)
            if not dead.is_reaped:
                os.waitpid(dead.pid, 0)
            if token is not None:
                del self._pids[token]
                self._report(messages.EXITED, messages.Exited(token, dead.status, oom))
        if leaves:
            self._orphans = end_orphans(self._tokens)

    def _report(self, kind: int, message: object, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the loop notices that the supervisor is gone
            send_all(self._sock, pack(kind, _ENCODE(message), len(fds)), fds)

    def _finish(self) -> None:
        """Kill and reap everything."""
        for pid in self._tokens:
            _kill_group(pid)
        end_session(os.getpid())
        with contextlib.suppress(ChildProcessError):
            while self._tokens or end_orphans(()):
                pid, status = os.waitpid(-1, 0)
                token = self._tokens.pop(pid, None)
                if token is not None:
                    exited = messages.Exited(token, os.waitstatus_to_exitcode(status), oom=False)
                    self._report(messages.EXITED, exited)
        self._close()


class _Dead(NamedTuple):
    """A child that has ended.

    Attributes:
        pid: its id.
        status: its exit code, or minus the signal's number.
        is_reaped: its id may be another's already.
    """

    pid: int
    status: int
    is_reaped: bool


def _next_dead() -> _Dead | None:
    """Return a dead child, not reaped yet unless a sandbox refuses such a look; None if there is none."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        sign = 1 if info.si_code == os.CLD_EXITED else -1
        return _Dead(info.si_pid, sign * info.si_status, is_reaped=False)
    except ChildProcessError:
        return None
    except OSError:
        return _next_reaped()


def _next_reaped() -> _Dead | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return _Dead(pid, os.waitstatus_to_exitcode(status), is_reaped=True) if pid else None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
