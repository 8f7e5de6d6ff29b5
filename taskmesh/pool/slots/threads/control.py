"""The supervisor's socket to a process whose slots are threads."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from taskmesh.errors import RemoteProtocolError
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import Inbound, OutboundToProcess, pack

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_NEWS: Final = msgspec.msgpack.Decoder(messages.ProcessNews)


class ThreadControl:
    """The socket to a process whose slots are threads. Like a handle it never waits.

    Attributes:
        sock: our end.
        slot_end: the process's, until `close_slot_end`.
    """

    def __init__(self) -> None:
        self.sock, self.slot_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self._inbound = Inbound(self.sock)
        self._outbound = OutboundToProcess(self.sock)

    def close_slot_end(self) -> None:
        self.slot_end.close()

    def send(self, kind: int, order: object, fds: Sequence[int] = ()) -> None:
        """Send an order, or queue what cannot be sent now."""
        self._outbound.send(pack(kind, _ENCODE(order), len(fds)), fds)

    @property
    def wants_write(self) -> bool:
        return self._outbound.wants_write

    def write(self) -> None:
        """Send more; called when the socket is writable."""
        self._outbound.flush()

    def read(self) -> list[messages.ProcessNews]:
        """Return what has come.

        Raises:
            OSError: the process has closed its end.
            ProtocolError: no news at all.
        """
        news: list[messages.ProcessNews] = []
        try:
            while self._inbound.receive():
                for kind, body, _ in self._inbound.frames():
                    if kind != messages.NEWS:
                        raise RemoteProtocolError(
                            f"a frame of unknown kind {kind} came from a slot's process"
                        )
                    news.append(_NEWS.decode(body))
        except BlockingIOError:
            return news
        if news:
            return news
        raise ConnectionResetError("its end is closed")

    def close(self) -> None:
        self.close_slot_end()
        self.sock.close()
        self._inbound.close_fds()
