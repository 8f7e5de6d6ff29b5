"""The fork server: a small fresh interpreter whose forks are the slots, and which tells how each ended.

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

from taskmesh.pool import orders
from taskmesh.pool.channel import Inbound, pack, send_all
from taskmesh.pool.slot import Birth, run_slot
from taskmesh.serialize.values import cloudpickle
from taskmesh.system.killings import OomCounter
from taskmesh.system.platforms import here
from taskmesh.system.session import end_session

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_FORK: Final = msgspec.msgpack.Decoder(orders.Fork)
_KILL: Final = msgspec.msgpack.Decoder(orders.Kill)
_LOOK_MS: Final = 250  # how often the parent's id is asked for, where no descriptor tells its death


def main(control: int, parent: int, preload: Sequence[str] = (), only: Sequence[str] = ()) -> NoReturn:
    """What the fresh interpreter runs: serves the supervisor at the socket `control` while `parent` lives."""
    birth = ForkServer(control, parent).serve()
    if birth is not None:
        run_slot(birth, preload, only)
    os._exit(0)  # noqa: TID251  all children are reaped, and nothing here needs a farewell


class ForkServer:
    """Forks, kills and reaps slots as it is told."""

    def __init__(self, control: int, parent: int) -> None:
        self._system = here()
        self._parent = parent
        self._parent_handle = self._system.process(parent)
        self._sock = socket.socket(fileno=control)
        self._inbound = Inbound(self._sock)
        self._pids: dict[int, int] = {}  # token -> pid
        self._tokens: dict[int, int] = {}  # pid -> token
        self._oom = OomCounter()
        self._ended = False
        self._child_died, self._wakeup = socket.socketpair()
        for end in (self._child_died, self._wakeup):
            end.setblocking(False)

    def serve(self) -> Birth | None:
        """Serves until the end; returns None, or in a forked child the slot that it is to be."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A service manager may send SIGTERM to all processes at once: the supervisor decides what follows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        # Inherited: whoever started the supervisor, or its thread that started us, may have blocked some.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._system.adopt_orphans()
        cloudpickle()  # 5 ms here, or in every slot that gets a function of somebody's __main__
        gc.freeze()  # what is shared with slots stays untouched by their collectors
        gc.enable()
        self._tell(orders.UP, None)
        poll = select.poll()
        watched = [self._sock.fileno(), self._child_died.fileno()]
        if self._parent_handle is not None:
            watched.append(self._parent_handle)
        for fd in watched:
            poll.register(fd, select.POLLIN)
        look = _LOOK_MS if self._parent_handle is None else None
        while True:
            ready = {fd for fd, _ in poll.poll(look)}
            if self._parent_handle in ready or os.getppid() != self._parent:
                break
            if self._child_died.fileno() in ready:
                self._reap()
            if self._sock.fileno() in ready:
                birth = self._obey()
                if birth is not None:
                    return birth
                if self._ended:
                    break
        self._finish()
        return None

    def _obey(self) -> Birth | None:
        """Does what the supervisor has sent; in a forked child returns the slot."""
        if not self._inbound.receive():
            self._ended = True
            return None
        for kind, body, fds in self._inbound.frames():
            if kind == orders.FORK:
                birth = self._fork(_FORK.decode(body), fds)
                if birth is not None:
                    return birth
            elif kind == orders.KILL:
                pid = self._pids.get(_KILL.decode(body).token)
                if pid is not None:
                    _kill_group(pid)
            elif kind == orders.END:
                self._ended = True
        return None

    def _fork(self, order: orders.Fork, fds: list[int]) -> Birth | None:
        server = os.getpid()
        self._oom.refresh()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"no process for the slot {orders.PROCESS_LIMITS}: {error}"
            self._tell(orders.REFUSED, orders.ForkRefused(order.token, reason))
            pid = -1
        if pid == 0:
            os.setpgid(0, 0)
            self._system.die_with(server)
            self._leave_to_slot()
            return Birth(order.slot, self._system, fds)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            with contextlib.suppress(OSError):  # the child has done it, or is dead
                os.setpgid(pid, pid)
            self._pids[order.token] = pid
            self._tokens[pid] = order.token
            handle = self._system.process(pid)
            told = orders.Forked(order.token, pid, handle is not None)
            self._tell(orders.FORKED, told, [] if handle is None else [handle])
            if handle is not None:
                os.close(handle)
        return None

    def _leave_to_slot(self) -> None:
        """In a forked child: closes what is the fork server's, and gives signals their default meaning."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._close()

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._sock.close()
        self._child_died.close()
        self._wakeup.close()
        if self._parent_handle is not None:
            os.close(self._parent_handle)

    def _reap(self) -> None:
        """Tells every death. A group is killed before its leader is reaped: until then its id is its own."""
        with contextlib.suppress(BlockingIOError):
            while self._child_died.recv(4096):
                pass
        while (dead := _next_dead()) is not None:
            token = self._tokens.pop(dead.pid, None)
            oom = False
            if token is not None:  # else it is an orphan of a slot
                _kill_group(dead.pid)
                oom = dead.status == -signal.SIGKILL and self._oom.has_struck(dead.pid)
            if not dead.is_reaped:
                os.waitpid(dead.pid, 0)
            if token is not None:
                del self._pids[token]
                self._tell(orders.EXITED, orders.Exited(token, dead.status, oom))

    def _tell(self, kind: int, message: object, fds: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed by the loop
            send_all(self._sock, pack(kind, _ENCODE(message), len(fds or ())), fds or ())

    def _finish(self) -> None:
        """Leaves nothing behind."""
        for pid in self._tokens:
            _kill_group(pid)
        end_session(os.getpid())
        with contextlib.suppress(ChildProcessError):
            while self._tokens:
                pid, status = os.waitpid(-1, 0)
                token = self._tokens.pop(pid, None)
                if token is not None:
                    exited = orders.Exited(token, os.waitstatus_to_exitcode(status), oom=False)
                    self._tell(orders.EXITED, exited)
        self._close()


class _Dead(NamedTuple):
    """A child that has ended; `status`: exit code, or minus the signal's number."""

    pid: int
    status: int
    is_reaped: bool


def _next_dead() -> _Dead | None:
    """A dead child, not reaped yet unless a sandbox refuses such a look; None while there is none."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    except OSError:
        return _reaped()
    if info is None:
        return None
    exited = info.si_code == os.CLD_EXITED
    return _Dead(info.si_pid, info.si_status if exited else -info.si_status, is_reaped=False)


def _reaped() -> _Dead | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return _Dead(pid, os.waitstatus_to_exitcode(status), is_reaped=True) if pid else None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
