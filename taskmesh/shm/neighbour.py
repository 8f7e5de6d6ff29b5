"""Memory files between programs of one machine: a message tells where a file is, and its receiver opens it.

Linux shows the open files of a process to the others of the same user, under /proc. So nothing is sent but a
process id and a descriptor's number. Programs find out by trying whether that works between them: each has a
*probe*, a small memory file with a random token, and its offer says where that is. Who finds the token there
is a neighbour, and not in another container, of another user or on another machine that happens to have such
a process. It leaves the other one's token in its own probe, to say that it has found it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from taskmesh.shm.blob import Blob, Layout
from taskmesh.shm.files import HEADER, anonymous_file

_NAME: Final = "taskmesh"
_LINK: Final = f"/memfd:{_NAME} (deleted)"
_OFFER: Final = struct.Struct("<QQQ16s")
_TOKEN: Final = 16
"""Bytes of a token; a probe holds its own, then that of whom its process has found."""

Reference = tuple[int, int, int, int]
"""The place of a file: process id, descriptor, inode, and the hop of the process that is told."""


class Neighbour:
    """Another program of this machine.

    Args:
        offer: what it has offered.
        own: the token of this process, if it remains to be seen whether the neighbour has found it.

    Attributes:
        pid: its process id.

    Raises:
        OSError: it is none.
    """

    __slots__ = ("_awaited", "_place", "pid", "token")

    def __init__(self, offer: bytes, own: bytes = b"") -> None:
        try:
            self.pid, fd, inode, self.token = _OFFER.unpack(offer)
        except struct.error as error:
            raise OSError(f"an offer that makes no sense: {error}") from None
        self._place = (self.pid, fd, inode)
        self._awaited = own
        if os.stat(f"/proc/{self.pid}").st_uid != os.geteuid():
            raise OSError("a process of another user")
        if self._read(0) != self.token:
            raise OSError("another process")

    def tell(self, blob: Blob) -> Reference | None:
        """The place of a payload's file; None where it has none, or the neighbour cannot open it."""
        if self._awaited:
            try:
                if self._read(_TOKEN) != self._awaited:
                    return None
            except OSError:
                return None
            self._awaited = b""
        found = blob.tell()
        return None if found is None else (os.getpid(), *found)

    def _read(self, offset: int) -> bytes:
        """Bytes of its probe.

        Raises:
            OSError: it cannot be opened.
        """
        fd = _open(*self._place)
        try:
            return os.pread(fd, _TOKEN, offset)
        finally:
            os.close(fd)


class NeighbourProbe:
    """The small file by which others find out if they can open those of this process.

    Attributes:
        offer: where it is; empty if there is none.
    """

    def __init__(self) -> None:
        self.offer = b""
        self._token = os.urandom(_TOKEN)
        self._fd = -1
        try:
            fd = anonymous_file(_NAME, HEADER)
        except OSError:
            return
        if _is_ours(fd) and os.pwrite(fd, self._token, 0) == _TOKEN:
            self._fd = fd
            self.offer = _OFFER.pack(os.getpid(), fd, os.fstat(fd).st_ino, self._token)
        else:
            os.close(fd)

    def meet(self, offer: bytes) -> Neighbour | None:
        """The maker of this offer, if it is a neighbour; it is told of no file before it has found us."""
        return self._met(offer, self._token)

    def meet_back(self, offer: bytes) -> Neighbour | None:
        """The same, where whoever has made the offer has found us."""
        neighbour = self._met(offer, b"")
        if neighbour is not None:
            os.pwrite(self._fd, neighbour.token, _TOKEN)
        return neighbour

    def _met(self, offer: bytes, own: bytes) -> Neighbour | None:
        if not offer or not self.offer:
            return None
        try:
            return Neighbour(offer, own)
        except OSError:
            return None

    def close(self) -> None:
        """Close it; nothing is offered any more."""
        self.offer = b""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def blob_at(reference: Reference, layout: Layout) -> Blob:
    """The payload that a neighbour has told of.

    Raises:
        OSError: it is not there, or shorter than its layout says.
    """
    *place, hop = reference
    if not 0 < hop < HEADER:
        raise OSError("a hop that makes no sense")
    return Blob.from_fd(_open(*place), layout, hop)


def _open(pid: int, fd: int, inode: int) -> int:
    """A descriptor of our own of a memory file of another process.

    Raises:
        OSError: there is none, or it is another one by now.
    """
    path = f"/proc/{pid}/fd/{fd}"
    if os.readlink(path) != _LINK:
        raise OSError(f"{path} is no memory file of taskmesh")
    found = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if os.fstat(found).st_ino != inode or not _is_ours(found):
        os.close(found)
        raise OSError(f"{path} is another file by now")
    return found


def _is_ours(fd: int) -> bool:
    """Return True for a memory file that nobody can shorten: who maps it may rely on its pages."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
