"""The supervisor's client of its fork server: starts it, sends it orders, hears its reports, replaces it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from taskmesh.config import PoolConfig
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import Inbound, Outbound, pack
from taskmesh.system.clock import monotonic
from taskmesh.system.process import hashing_alike, interpreter_command, start_in_session
from taskmesh.system.selector import CallbackSelector
from taskmesh.system.session import end_session, open_process

_FORK_SERVER: Final = "taskmesh.pool.slots.fork_server"
"""Named, not imported: the supervisor needs nothing of what slots need."""
_BACK_OFF: Final = (0.1, 5.0)
"""Seconds between attempts to start a fork server, the first and the longest."""
_ENCODE: Final = msgspec.msgpack.Encoder().encode
Report = messages.Forked | messages.ForkRefused | messages.Exited
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Report]]] = {
    messages.FORKED: msgspec.msgpack.Decoder(messages.Forked),
    messages.REFUSED: msgspec.msgpack.Decoder(messages.ForkRefused),
    messages.EXITED: msgspec.msgpack.Decoder(messages.Exited),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOptions:
    """Options of a pool's slots that only the command line has, or the arguments of a MeshExecutor.

    Attributes:
        modules: modules that every slot imports before it is ready.
        max_tasks: tasks after which a slot's process is replaced; 0 for never.
        max_memory: bytes beyond which it is; 0 for any number.
        max_age: seconds after which it is; 0 for never.
        watch: folders with modules; when one has changed, all slots are replaced.
        gpus: the GPUs that each slot sees, by its number; empty for those of this process.
    """

    modules: Sequence[str] = ()
    max_tasks: int = 0
    max_memory: int = 0
    max_age: float = 0.0
    watch: Sequence[str] = ()
    gpus: Sequence[str] = ()


NO_OPTIONS: Final = SlotOptions()


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """Settings with which a pool's slots are started.

    Attributes:
        name: the pool's, for people.
        preload: modules that every slot imports, and middleware that it starts, before it is ready.
        only: modules whose functions alone slots may run; empty for any.
        user: the name of the user as whom slots run; empty for this process's.
        sys_path: where slots find modules.
        options: of the command line.
    """

    name: str
    preload: Sequence[str] = ()
    only: Sequence[str] = ()
    user: str = ""
    sys_path: Sequence[str] = field(default_factory=lambda: list(sys.path))
    options: SlotOptions = NO_OPTIONS

    @classmethod
    def of(cls, config: PoolConfig, name: str, options: SlotOptions = NO_OPTIONS) -> SlotSettings:
        """Return the settings of a pool with these options."""
        only = config.only_registered
        preload = (*options.modules, *only, *config.middleware)
        return cls(name, preload, only, config.slot_user, options=options)


class ForkServerClient:
    """One fork server process, from its start to its end.

    Attributes:
        pid: its process id, which is the session id of all slots.
        pidfd: a descriptor that becomes readable when it ends; without one its socket's end tells.
        sock: the socket to it, non-blocking.
        inbound: its reports.
        outbound: the orders to it.
        up: it has reported that it works.

    Raises:
        OSError: no process or no descriptor can be had.
    """

    def __init__(self, slots: SlotSettings) -> None:
        self.up = False
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                modules = list(slots.preload), list(slots.only)
                gpus = list(slots.options.gpus)
                arguments = (theirs.fileno(), os.getpid(), *modules, slots.user, gpus)
                code = (
                    "__import__('gc').disable(); "  # until all is loaded
                    f"__import__({_FORK_SERVER!r}, fromlist=['main']).main{arguments!r}"
                )
                line = interpreter_command(code, f"taskmesh:{slots.name}", slots.sys_path)
                command, environment = hashing_alike(line)
                self._process = start_in_session(command, [theirs.fileno()], environment)
        except BaseException:
            self.sock.close()
            raise
        self.pid = self._process.pid
        self.sock.setblocking(False)
        self.pidfd = open_process(self.pid)
        self.inbound = Inbound(self.sock, dispensable=True)  # EXITED reports deaths, too
        self.outbound = Outbound(self.sock)

    def end(self) -> int | None:
        """Kill it and every process of its session, and reap it; return its exit status."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # not send_signal, which would reap it
        with contextlib.suppress(OSError):  # it is not our child, or a sandbox refuses this
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        end_session(self.pid)  # before it is reaped: its id is still the session's and nobody else's
        return self._process.wait()

    def close(self) -> None:
        """Close the descriptors; the process must have been reaped."""
        self.sock.close()
        self.inbound.close_fds()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close_after_fork(self) -> None:
        """Close the descriptors in a forked child of the supervisor's process, whose child it is not."""
        self.close()
        self._process.returncode = 0


class ForkServerSupervisor:
    """Keeps a fork server running while slots are wanted; a dead one is replaced at the next slot's start.

    The first one is started at once, since it takes longest: it comes up while its supervisor does.

    Attributes:
        trouble: why there is no fork server.
        slots: what it starts slots with.
    """

    def __init__(self, slots: SlotSettings) -> None:
        self.slots = slots
        self._on_report: Callable[[Report, int | None], None] = lambda report, pidfd: None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._selector: CallbackSelector | None = None
        self._client: ForkServerClient | None = None
        self._failures = 0  # fork servers in a row that never came up
        self._retry_at = 0.0
        self.trouble = ""
        self._start()

    def listen(
        self,
        selector: CallbackSelector,
        on_report: Callable[[Report, int | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin to hear the fork server's reports.

        Args:
            selector: polls for them.
            on_report: takes a report of a slot; of one that was forked with its pidfd, if there are such.
            on_lost: takes the reason why the fork server is gone, "" if it had worked. Every process of its
                session is gone, too.
        """
        self._selector, self._on_report, self._on_lost = selector, on_report, on_lost
        self._watch()

    @property
    def is_running(self) -> bool:
        return self._client is not None

    def fork(self, token: int, slot: int, fds: Sequence[int], keep: object) -> bool:
        """Order a slot.

        Args:
            token: of this start of the slot.
            slot: the slot's number.
            fds: its descriptors, see `messages.Fork`.
            keep: what keeps them open until they have gone.

        Returns:
            False when there is no fork server and it is too soon for another: see `trouble`.
        """
        if self._client is None and monotonic() >= self._retry_at:
            self._start()
            self._watch()
        self._send(messages.FORK, messages.Fork(token, slot), fds, keep)
        return self._client is not None

    def kill(self, token: int) -> None:
        self._send(messages.KILL, messages.Kill(token))

    def stop(self) -> None:
        """Order the fork server to kill every slot and to end."""
        self._send(messages.END)

    def _send(self, kind: int, order: object = None, fds: Sequence[int] = (), keep: object = None) -> None:
        client = self._client
        if client is not None:
            with contextlib.suppress(OSError):  # its death is noticed by `pidfd` or the socket's end
                client.outbound.send(pack(kind, _ENCODE(order), len(fds)), fds, keep)
            self._watch_writes(client)

    def _start(self) -> None:
        try:
            self._client = ForkServerClient(self.slots)
        except OSError as error:
            self._failed(f"the fork server could not be started {messages.PROCESS_LIMITS}: {error}")

    def _failed(self, trouble: str) -> None:
        """Count a fork server that never came up, so that the next one is not tried too soon."""
        first, longest = _BACK_OFF
        self._retry_at = monotonic() + min(longest, first * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self.trouble = trouble

    def _watch(self) -> None:
        if self._client is not None and self._selector is not None:
            self._selector.add(self._client.sock.fileno(), self._ready)
            if self._client.pidfd is not None:
                self._selector.add(self._client.pidfd, self.reap)

    def _watch_writes(self, client: ForkServerClient) -> None:
        if self._selector is not None:
            self._selector.set_writing(client.sock.fileno(), bool(client.outbound.queue))

    def _ready(self) -> None:
        """The socket is readable, or writable again."""
        client = self._client
        if client is not None:
            with contextlib.suppress(OSError):
                client.outbound.flush()
            if self._read(client):
                self._watch_writes(client)
            else:
                self.reap()

    def _read(self, client: ForkServerClient) -> bool:
        """Pass the fork server's reports on; return False when its end is closed."""
        try:
            while client.inbound.receive():
                for kind, body, fds in client.inbound.frames():
                    if kind == messages.UP:
                        client.up = True
                    else:
                        self._on_report(_DECODERS[kind].decode(body), fds[0] if fds else None)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def reap(self) -> None:
        """End the fork server, if it has not ended yet, and everything that it had started."""
        client = self._client
        if client is None:
            return
        self._read(client)
        self._client = None
        if self._selector is not None:
            self._selector.remove(client.sock.fileno(), client.pidfd)
        status = client.end()
        client.close()
        if client.up:
            self._failures = 0
        else:
            self._failed(
                f"the fork server ({sys.executable}) ended with status {status} before it was up: see stderr"
            )
        self._on_lost("" if client.up else self.trouble)

    def close_after_fork(self) -> None:
        """Close the descriptors in a forked child of the supervisor's process; touches no process."""
        if self._client is not None:
            self._client.close_after_fork()
