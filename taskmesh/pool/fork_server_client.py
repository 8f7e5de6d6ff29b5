"""The supervisor's client of its fork server: starts it, sends it orders, hears its reports, replaces it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from taskmesh.pool import messages
from taskmesh.pool.channel import Inbound, Outbound, pack
from taskmesh.system.clock import monotonic
from taskmesh.system.process import interpreter_command, start_in_session
from taskmesh.system.selector import CallbackSelector
from taskmesh.system.session import end_session, open_process

_FORK_SERVER: Final = "taskmesh.pool.fork_server"
"""Named, not imported: the supervisor needs nothing of what slots need."""
_BACK_OFF: Final = (0.1, 5.0)
"""Seconds between attempts to start a fork server, the first and the longest."""
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_FORKED: Final = msgspec.msgpack.Decoder(messages.Forked)
_REFUSED: Final = msgspec.msgpack.Decoder(messages.ForkRefused)
_EXITED: Final = msgspec.msgpack.Decoder(messages.Exited)


class ForkServerClient:
    """One fork server process, from its start to its end.

    Attributes:
        pid: its process id, which is the session id of all slots.
        pidfd: a descriptor that becomes readable when it ends; without one its socket's end tells.
        sock: the socket to it, non-blocking.
        up: it has reported that it works.

    Args:
        sys_path: where slots find modules.
        name: the pool's, for people.
        preload: modules that every slot imports before it is ready.
        only: modules whose functions alone slots may run; empty for any.

    Raises:
        OSError: no process or no descriptor can be had.
    """

    def __init__(
        self, sys_path: Sequence[str], name: str, preload: Sequence[str] = (), only: Sequence[str] = ()
    ) -> None:
        self.up = False
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                arguments = (theirs.fileno(), os.getpid(), list(preload), list(only))
                code = (
                    "__import__('gc').disable(); "  # until all is loaded
                    f"__import__({_FORK_SERVER!r}, fromlist=['main']).main{arguments!r}"
                )
                command = interpreter_command(code, f"taskmesh:{name}", sys_path)
                self._process = start_in_session(command, [theirs.fileno()])
        except BaseException:
            self.sock.close()
            raise
        self.pid = self._process.pid
        self.sock.setblocking(False)
        self.pidfd = open_process(self.pid)
        self._inbound = Inbound(self.sock, dispensable=True)  # EXITED reports deaths, too
        self._outbound = Outbound(self.sock)

    def send(self, kind: int, order: object = None, fds: Sequence[int] = (), keep: object = None) -> None:
        """Send an order. `keep` stays referenced until its descriptors have gone."""
        with contextlib.suppress(OSError):  # its death is noticed by `pidfd` or the socket's end
            self._outbound.send(pack(kind, _ENCODE(order), len(fds)), fds, keep)

    @property
    def wants_write(self) -> bool:
        """True while orders wait for room in the socket."""
        return bool(self._outbound.queue)

    def write(self) -> None:
        """Send more; called when the socket is writable."""
        with contextlib.suppress(OSError):
            self._outbound.flush()

    def reports(self) -> Iterator[tuple[int, memoryview, list[int]]]:
        """Yield the frames that have come in: kind, body, descriptors.

        Raises:
            EOFError: its end is closed.
        """
        try:
            while self._inbound.receive():
                yield from self._inbound.frames()
        except BlockingIOError:
            return
        except OSError:
            pass
        raise EOFError

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
        self._inbound.close_fds()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close_after_fork(self) -> None:
        """Close the descriptors in a forked child of the supervisor's process, whose child it is not."""
        self.close()
        self._process.returncode = 0


@dataclass(frozen=True, slots=True)
class ForkServerEvents:
    """Callbacks for the reports of a fork server.

    Attributes:
        forked: takes a slot's token, its process id, and a pidfd or None.
        refused: takes a slot's token and the reason why there is no process for it.
        exited: takes a slot's token, its exit status, and whether the kernel killed it for memory.
        lost: takes the reason why the fork server is gone, "" if it had worked. Every process of its session
            is gone, too.
    """

    forked: Callable[[int, int, int | None], None]
    refused: Callable[[int, str], None]
    exited: Callable[[int, int, bool], None]
    lost: Callable[[str], None]


class ForkServerSupervisor:
    """Keeps a fork server running while slots are wanted; a dead one is replaced at the next slot's start.

    The first one is started at once, since it takes longest: it comes up while its supervisor does.

    Attributes:
        trouble: why there is no fork server.

    Args:
        sys_path: where slots find modules.
        name: the pool's, for people.
        preload: modules that every slot imports before it is ready.
        only: modules whose functions alone slots may run; empty for any.
    """

    def __init__(
        self, sys_path: Sequence[str], name: str, preload: Sequence[str] = (), only: Sequence[str] = ()
    ) -> None:
        self._arguments = (sys_path, name, preload, only)
        self._events: ForkServerEvents | None = None
        self._selector: CallbackSelector | None = None
        self._client: ForkServerClient | None = None
        self._failures = 0  # fork servers in a row that never came up
        self._retry_at = 0.0
        self.trouble = ""
        self._start()

    def listen(self, selector: CallbackSelector, events: ForkServerEvents) -> None:
        """Begin to hear the fork server's reports, in the loop of `selector`."""
        self._selector, self._events = selector, events
        self._watch()

    @property
    def is_running(self) -> bool:
        """True while there is a fork server."""
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
        """Order a slot's death."""
        self._send(messages.KILL, messages.Kill(token))

    def stop(self) -> None:
        """Order the fork server to kill every slot and to end."""
        self._send(messages.END)

    def _send(self, kind: int, order: object = None, fds: Sequence[int] = (), keep: object = None) -> None:
        if self._client is not None:
            self._client.send(kind, order, fds, keep)
            self._watch_writes(self._client)

    def _start(self) -> None:
        try:
            self._client = ForkServerClient(*self._arguments)
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
            self._selector.set_writing(client.sock.fileno(), client.wants_write)

    def _ready(self) -> None:
        """The socket is readable, or writable again."""
        client = self._client
        if client is not None:
            client.write()
            try:
                self._read(client)
            except EOFError:
                self.reap()
            else:
                self._watch_writes(client)

    def _read(self, client: ForkServerClient) -> None:
        """Pass the fork server's reports on; raises EOFError when its end is closed."""
        events = self._events
        for kind, body, fds in client.reports():
            if kind == messages.UP:
                client.up = True
            elif events is None:
                continue
            elif kind == messages.FORKED:
                forked = _FORKED.decode(body)
                events.forked(forked.token, forked.pid, fds[0] if fds else None)
            elif kind == messages.REFUSED:
                refused = _REFUSED.decode(body)
                events.refused(refused.token, refused.reason)
            elif kind == messages.EXITED:
                exited = _EXITED.decode(body)
                events.exited(exited.token, exited.status, exited.oom)

    def reap(self) -> None:
        """End the fork server, if it has not ended yet, and everything that it had started."""
        client = self._client
        if client is None:
            return
        with contextlib.suppress(EOFError):
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
        if self._events is not None:
            self._events.lost("" if client.up else self.trouble)

    def close_after_fork(self) -> None:
        """Close the descriptors in a forked child of the supervisor's process; touches no process."""
        if self._client is not None:
            self._client.close_after_fork()
