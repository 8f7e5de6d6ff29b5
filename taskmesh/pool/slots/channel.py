"""Frames over a stream socket, with descriptors alongside (SCM_RIGHTS): blocking and non-blocking ends."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from taskmesh.errors import RemoteProtocolError
from taskmesh.pool.slots.messages import HEADER

Buffer = bytes | bytearray | memoryview

_MAX_FDS: Final = 253  # the kernel's SCM_MAX_FD
SMALL_ROOM: Final = 8 << 10
"""Bytes of the buffer of a slot that shares its process: there may be a thousand."""
_ANCILLARY: Final = socket.CMSG_SPACE(_MAX_FDS * 4)
BUFFER: Final = 256 << 10
_FEWER_IN_FLIGHT: Final = 0.01
"""Seconds until a look whether fewer descriptors are in flight: no event tells it."""
_NOTHING: Final = msgspec.msgpack.encode(None)


class Inbound:
    """The frames that come in, and the descriptors that came with them, in order.

    Bodies are views into one buffer: they are valid until the next `receive`.

    Args:
        room: bytes of the buffer, while no frame is larger.
        dispensable: frames count without their descriptors, too, where these were lost on the way.
    """

    def __init__(self, sock: socket.socket, *, dispensable: bool = False, room: int = BUFFER) -> None:
        self._sock = sock
        self._dispensable = dispensable
        self._room = room
        self._buffer = bytearray(room)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._fds: deque[int] = deque()

    def receive(self) -> bool:
        """Read once; False when the other end is closed.

        Raises:
            BlockingIOError: the socket is non-blocking and has nothing.
        """
        self._make_room()
        try:
            count, ancillary, _, _ = self._sock.recvmsg_into([self._view[self._end :]], _ANCILLARY)
        except ConnectionResetError:  # closed before it had read all that we had sent: an end like any other
            return False
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
            RemoteProtocolError: descriptors were lost on the way, because this process has no free ones.
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
            if self._dispensable:
                return []
            raise RemoteProtocolError(
                f"{count} descriptors of large values were sent and {len(self._fds)} came: "
                "too many open files"
            )
        return [self._fds.popleft() for _ in range(count)]

    def close_fds(self) -> None:
        """Close the descriptors that nobody took."""
        while self._fds:
            os.close(self._fds.popleft())

    def _make_room(self) -> None:
        """Move an incomplete frame to the front of a buffer that is large enough for it."""
        start, held = self._start, self._end - self._start
        if not held:
            self._start = self._end = 0
            if len(self._buffer) == self._room:
                return
            wanted = self._room
        else:
            size = HEADER.unpack_from(self._buffer, start)[0] + HEADER.size if held >= HEADER.size else 0
            wanted = max(self._room, size)
            if wanted <= len(self._buffer) - start and start < self._room // 2:
                return
        fresh = self._buffer if wanted == len(self._buffer) else bytearray(wanted)
        fresh[:held] = self._view[start : start + held].tobytes()
        self._buffer, self._view, self._start, self._end = fresh, memoryview(fresh), 0, held


def pack(kind: int, body: Buffer = _NOTHING, fds: int = 0) -> bytes:
    """The frame of an encoded body with which so many descriptors go."""
    return HEADER.pack(len(body), kind, fds) + body


def send_all(sock: socket.socket, data: Buffer, fds: Sequence[int] = ()) -> None:
    """Send a whole frame over a blocking socket, its descriptors with the first bytes."""
    if not fds:
        sock.sendall(data)
        return
    for chunk, some in _with_fds(memoryview(data), fds):
        sent = _send_some(sock, chunk, some)
        while sent < 0:
            select.select([], [], [], _FEWER_IN_FLIGHT)
            sent = _send_some(sock, chunk, some)
        if sent < len(chunk):
            sock.sendall(chunk[sent:])


def _with_fds(view: memoryview, fds: Sequence[int]) -> Iterator[tuple[memoryview, Sequence[int]]]:
    """Cut a frame so that no piece has more descriptors than a message may carry."""
    while len(fds) > _MAX_FDS:
        yield view[:1], fds[:_MAX_FDS]
        view, fds = view[1:], fds[_MAX_FDS:]
    yield view, fds


def _send_some(sock: socket.socket, data: Buffer, fds: Sequence[int]) -> int:
    """Send once; returns how many bytes went, or -1 when too many descriptors are in flight just now."""
    if not fds:
        return sock.send(data)
    try:
        return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:  # a user may have RLIMIT_NOFILE of them in sockets' buffers
            return -1
        raise


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
        self._look_again = 0.0
        self.queue: deque[Parcel] = deque()

    def send(self, data: bytes, fds: Sequence[int] = (), keep: object = None) -> None:
        """Send a frame, or queues what cannot be sent now; raises as `flush` does.

        Args:
            data: the frame. fds: descriptors that go along.
            keep: what keeps them open until they are sent; whoever looks at `queue` finds it there.
        """
        sent = 0
        if not self.queue and not fds:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return
        parcel = Parcel(memoryview(data)[sent:], fds, keep)
        parcel.begun = sent > 0
        self.queue.append(parcel)
        if fds and len(self.queue) == 1:  # otherwise its turn comes when the socket is writable
            self.flush()

    def flush(self) -> bool:
        """Send what can be sent; True when nothing is left.

        Where too many descriptors are in flight it waits, a hundredth of a second at most, so that whoever
        calls again as long as the socket counts as writable does not spin.

        Raises:
            OSError: the other end is gone.
        """
        if self._look_again:
            select.select([], [], [], max(0.0, self._look_again - time.monotonic()))
            self._look_again = 0.0
        while self.queue:
            parcel = self.queue[0]
            while parcel.pieces:
                view, fds = parcel.pieces[0]
                try:
                    sent = _send_some(self._sock, view, fds)
                except BlockingIOError:
                    return False
                if sent < 0:
                    self._look_again = time.monotonic() + _FEWER_IN_FLIGHT
                    return False
                parcel.begun = True
                if sent < len(view):
                    parcel.pieces[0] = (view[sent:], ())
                else:
                    parcel.pieces.popleft()
            self.queue.popleft()
        return True


class OutboundToProcess(Outbound):
    """The frames to a process that may end: others tell its exit, and what is left for it is dropped."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._is_gone = False

    def send(self, data: bytes, fds: Sequence[int] = (), keep: object = None) -> None:
        """Send a frame, or queue what cannot be sent now, unless the process is gone."""
        if not self._is_gone:
            try:
                super().send(data, fds, keep)
            except OSError:
                self._is_gone = True

    def flush(self) -> bool:
        """Send what can be sent; True when nothing is left, and when the process is gone."""
        try:
            return super().flush()
        except OSError:
            self._is_gone = True
            return True

    @property
    def wants_write(self) -> bool:
        """True if the socket has not taken everything yet."""
        return bool(self.queue) and not self._is_gone
