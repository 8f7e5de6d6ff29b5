"""A peer that speaks ZMTP 3.0 (mechanism NULL) on a bare socket: it can say what no libzmq socket would.

Source: 23/ZMTP, greeting and framing.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from types import TracebackType
from typing import Self

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


class WirePeer:
    """Connects to a bound socket and claims to be of the given type."""

    def __init__(self, endpoint: str, socket_type: str) -> None:
        scheme, _, rest = endpoint.partition("://")
        if scheme == "tcp":
            host, _, port = rest.rpartition(":")
            self._stream = socket.create_connection((host, int(port)), timeout=5)
        else:
            self._stream = socket.socket(socket.AF_UNIX)
            self._stream.settimeout(5)
            self._stream.connect(rest)
        self._stream.sendall(GREETING)
        self._read(64)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type.encode()
        self._stream.sendall(bytes([COMMAND, len(ready)]) + ready)
        flags, _ = self.recv_frame()
        assert flags & COMMAND, "the other end did not answer with READY"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send_parts(self, *parts: bytes) -> None:
        """Sends one message."""
        for index, part in enumerate(parts):
            more = MORE if index < len(parts) - 1 else 0
            self._stream.sendall(struct.pack(">BQ", more | LONG, len(part)) + part)

    def send_unfinished(self, part: bytes) -> None:
        """Sends one frame of a message that has more."""
        self._stream.sendall(struct.pack(">BQ", MORE | LONG, len(part)) + part)

    def announce(self, size: int) -> None:
        """Sends the header of a frame of this many bytes, and its first one."""
        self._stream.sendall(struct.pack(">BQ", LONG, size) + b"\1")

    def say(self, part: bytes) -> None:
        """Send some bytes of the frame that was announced."""
        self._stream.sendall(part)

    def drain(self) -> None:
        """Reads until the other end closes the connection.

        Raises:
            OSError: it has.
        """
        while True:
            self._read(1)

    def fill(self, body: bytes, at_least: int) -> int:
        """Sends until the other end takes no more for a moment, but waits longer for the first messages.

        Returns:
            The number of messages sent whole.
        """
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while True:
                self._stream.settimeout(5 if sent < at_least else 0.05)
                self.send_parts(body)
                sent += 1
        return sent

    def recv_frame(self) -> tuple[int, bytes]:
        """The next frame with its flags."""
        flags = self._read(1)[0]
        size = struct.unpack(">Q", self._read(8))[0] if flags & LONG else self._read(1)[0]
        return flags, self._read(size)

    def recv_parts(self) -> list[bytes]:
        """The next message; commands are passed over."""
        parts = []
        while True:
            flags, body = self.recv_frame()
            if not flags & COMMAND:
                parts.append(body)
                if not flags & MORE:
                    return parts

    def has_data(self) -> bool:
        """Whether something can be read."""
        return bool(select.select([self._stream], [], [], 0)[0])

    def is_cut_off(self) -> bool:
        """Whether the other end has closed the connection; nothing must be under way."""
        self._stream.setblocking(False)
        try:
            return self._stream.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        finally:
            self._stream.settimeout(5)

    def close(self) -> None:
        """Cuts the connection."""
        self._stream.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._stream.recv(size - len(data))
            if not more:
                raise ConnectionError("the other end closed the connection")
            data += more
        return data
