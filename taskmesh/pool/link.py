"""The supervisor's link to its fork server: starts it, gives it orders, hears of births and deaths."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from taskmesh.pool import orders
from taskmesh.pool.channel import Inbound, Outbound, pack
from taskmesh.system.process import interpreter, started
from taskmesh.system.services import System
from taskmesh.system.session import end_session

_SERVER: Final = (
    "taskmesh.pool.forkserver"  # named, not imported: the supervisor needs nothing of what slots need
)
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_FORKED: Final = msgspec.msgpack.Decoder(orders.Forked)
_REFUSED: Final = msgspec.msgpack.Decoder(orders.ForkRefused)
_EXITED: Final = msgspec.msgpack.Decoder(orders.Exited)


@dataclass(slots=True)
class Births:
    """What the link calls when the fork server has told something."""

    forked: Callable[[int, int, int | None], None]
    refused: Callable[[int, str], None]
    exited: Callable[[int, int, bool], None]


class ForkServerLink:
    """One fork server process, from its start to its end.

    Attributes:
        pid: its process id, the session id of all slots. up: it has said that it works.
        handle: a descriptor that tells its death, or None: then its socket's end does.
        sock: its socket, non-blocking. births: told of what it tells; must be there before `read`.
    """

    def __init__(
        self,
        system: System,
        sys_path: Sequence[str],
        name: str,
        preload: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> None:
        self.births: Births | None = None
        self.up = False
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                line = _command(list(sys_path), (list(preload), list(only)), theirs.fileno(), name)
                self._process = started(line, [theirs.fileno()])
        except BaseException:
            self.sock.close()
            raise
        self.pid = self._process.pid
        self.sock.setblocking(False)
        self.handle = system.process(self.pid)
        self._inbound = Inbound(self.sock, dispensable=True)  # EXITED tells deaths, too
        self._outbound = Outbound(self.sock)

    # --- orders ---

    def fork(self, token: int, slot: int, fds: Sequence[int], sent: object) -> None:
        """Orders a slot. `sent` is kept until its descriptors have gone."""
        self._send(pack(orders.FORK, _ENCODE(orders.Fork(token, slot)), len(fds)), fds, sent)

    def kill(self, token: int) -> None:
        """Orders a slot's death."""
        self._send(pack(orders.KILL, _ENCODE(orders.Kill(token))))

    def end(self) -> None:
        """Orders the fork server to kill every slot and to end."""
        self._send(pack(orders.END))

    def _send(self, data: bytes, fds: Sequence[int] = (), keep: object = None) -> None:
        with contextlib.suppress(OSError):  # its death is told by `handle` or by the socket's end
            self._outbound.send(data, fds, keep)

    @property
    def wants_write(self) -> bool:
        """Whether orders wait for room in the socket."""
        return bool(self._outbound.queue)

    def write(self) -> None:
        """Called when the socket is writable."""
        with contextlib.suppress(OSError):
            self._outbound.flush()

    # --- news ---

    def read(self) -> bool:
        """Passes on what the fork server has told; False when its end is closed."""
        try:
            while self._inbound.receive():
                for kind, body, fds in self._inbound.frames():
                    self._hear(kind, body, fds)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _hear(self, kind: int, body: memoryview, fds: list[int]) -> None:
        births = self.births
        if kind == orders.UP:
            self.up = True
        elif births is None:
            return
        elif kind == orders.FORKED:
            forked = _FORKED.decode(body)
            births.forked(forked.token, forked.pid, fds[0] if fds else None)
        elif kind == orders.REFUSED:
            refused = _REFUSED.decode(body)
            births.refused(refused.token, refused.reason)
        elif kind == orders.EXITED:
            exited = _EXITED.decode(body)
            births.exited(exited.token, exited.status, exited.oom)

    # --- end ---

    def end_all(self) -> int | None:
        """Kills the fork server and every process of its session, and reaps it; returns its exit status."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # not send_signal, which would reap it
        self._await_death()
        end_session(self.pid)  # before it is reaped: its id is still the session's and nobody else's
        return self._process.wait()

    def _await_death(self) -> None:
        """Waits until the killed fork server is dead, without reaping it."""
        with contextlib.suppress(OSError):  # it is no child of ours, or a sandbox refuses this
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """Closes the descriptors; the process must have been reaped."""
        self.sock.close()
        self._inbound.close_fds()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def forsake(self) -> None:
        """In a forked child of the supervisor's process: closes the descriptors, minds no process."""
        self.close()
        self._process.returncode = 0  # it is not this process's child


def _command(sys_path: list[str], modules: tuple[list[str], list[str]], control: int, name: str) -> list[str]:
    """The command line of a fork server."""
    code = (
        "__import__('gc').disable(); "  # until all is loaded
        f"__import__({_SERVER!r}, fromlist=['main']).main({control}, {os.getpid()}, *{modules!r})"
    )
    return interpreter(code, f"taskmesh:{name}", sys_path)
