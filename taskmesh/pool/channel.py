"""Frames over a stream socket, with descriptors alongside (SCM_RIGHTS): blocking and non-blocking ends."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from taskmesh.errors import RemoteProtocolError
from taskmesh.pool.orders import HEADER

Buffer = bytes | bytearray | memoryview

_MAX_FDS: Final = 253  # the kernel's SCM_MAX_FD
_ANCILLARY: Final = socket.CMSG_SPACE(_MAX_FDS * 4)
_BUFFER: Final = 256 << 10
_NOTHING: Final = msgspec.msgpack.encode(None)


class Inbound:
    """The frames that come in, and the descriptors that came with them, in order.

    Bodies are views into one buffer: they are valid until the next `receive`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._fds: deque[int] = deque()

    def receive(self) -> bool:
        """Reads once; False when the other end is closed.

        Raises:
            BlockingIOError: the socket is non-blocking and has nothing.
        """
        self._make_room()
        count, ancillary, _, _ = self._sock.recvmsg_into([self._view[self._end :]], _ANCILLARY)
        if ancillary:
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                    self._fds.extend(fds)
        self._end += count
        return count > 0

    def frames(self) -> Iterator[tuple[int, memoryview, list[int]]]:
        """(kind, body, descriptors) of every complete frame that has come in.

        Raises:
            RemoteProtocolError: descriptors were lost on the way, for want of free ones here.
        """
        while self._end - self._start >= HEADER.size:
            size, kind, fds = HEADER.unpack_from(self._buffer, self._start)
            body = self._start + HEADER.size
            if self._end - body < size:
                return
            self._start = body + size
            yield kind, self._view[body : body + size], self._take(fds) if fds else []

    def _take(self, count: int) -> list[int]:
        if count > len(self._fds):
            raise RemoteProtocolError(
                f"{count} descriptors of large values were sent and {len(self._fds)} came: "
                "too many open files"
            )
        return [self._fds.popleft() for _ in range(count)]

    def close_fds(self) -> None:
        """Closes the descriptors that nobody took."""
        while self._fds:
            os.close(self._fds.popleft())

    def _make_room(self) -> None:
        """Moves an incomplete frame to the front of a buffer that is large enough for it."""
        start, held = self._start, self._end - self._start
        if not held:
            self._start = self._end = 0
            if len(self._buffer) == _BUFFER:
                return
            wanted = _BUFFER
        else:
            size = HEADER.unpack_from(self._buffer, start)[0] + HEADER.size if held >= HEADER.size else 0
            wanted = max(_BUFFER, size)
            if wanted <= len(self._buffer) - start and start < _BUFFER // 2:
                return
        fresh = self._buffer if wanted == len(self._buffer) else bytearray(wanted)
        fresh[:held] = self._view[start : start + held].tobytes()
        self._buffer, self._view, self._start, self._end = fresh, memoryview(fresh), 0, held


def pack(kind: int, body: Buffer = _NOTHING, fds: int = 0) -> bytes:
    """The frame of an encoded body with which so many descriptors go."""
    return HEADER.pack(len(body), kind, fds) + body


def send_all(sock: socket.socket, data: Buffer, fds: Sequence[int] = ()) -> None:
    """Sends a whole frame over a blocking socket, its descriptors with the first bytes."""
    view = memoryview(data)
    for chunk, some in _with_fds(view, fds):
        sent = _send_some(sock, chunk, some)
        if sent < len(chunk):
            sock.sendall(chunk[sent:])


def _with_fds(view: memoryview, fds: Sequence[int]) -> Iterator[tuple[memoryview, Sequence[int]]]:
    """Cuts a frame so that no piece has more descriptors than a message may carry."""
    while len(fds) > _MAX_FDS:
        yield view[:1], fds[:_MAX_FDS]
        view, fds = view[1:], fds[_MAX_FDS:]
    yield view, fds


def _send_some(sock: socket.socket, data: Buffer, fds: Sequence[int]) -> int:
    if not fds:
        return sock.send(data)
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


class Parcel:
    """One frame in an out-queue: its pieces, and what keeps their descriptors open."""

    __slots__ = ("begun", "keep", "pieces")

    def __init__(self, data: Buffer, fds: Sequence[int] = (), keep: object = None) -> None:
        self.pieces = deque(_with_fds(memoryview(data), fds))
        self.keep = keep
        self.begun = False


class Outbound:
    """The frames that go out of a non-blocking socket, in order, as fast as the other end takes them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.queue: deque[Parcel] = deque()

    def put(self, parcel: Parcel) -> None:
        """Queues a frame and sends what can be sent; raises as `flush` does."""
        self.queue.append(parcel)
        self.flush()

    def flush(self) -> bool:
        """Sends what can be sent; True when nothing is left.

        Raises:
            OSError: the other end is gone.
        """
        while self.queue:
            parcel = self.queue[0]
            while parcel.pieces:
                view, fds = parcel.pieces[0]
                try:
                    sent = _send_some(self._sock, view, fds)
                except BlockingIOError:
                    return False
                parcel.begun = True
                if sent < len(view):
                    parcel.pieces[0] = (view[sent:], ())
                else:
                    parcel.pieces.popleft()
            self.queue.popleft()
        return True
