"""A large payload: a pickle and its out-of-band buffers, on the heap, in received frames or in a memfd."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

PRIVATE, READONLY, BYTES = 0, 1, 2
"""How a part is given to the one who rebuilds the value: writable, read-only, or as a `bytes` object."""

SMALL: Final = 64 << 10
"""Bytes up to which a payload stays plain `bytes` and a buffer stays inside the pickle."""

MEMFD_FROM: Final = 128 << 10
"""Bytes from which a payload made here goes into a memfd at once."""

MAX_LIVE: Final = 256
"""Payload descriptors that this process keeps open at a time; beyond it payloads stay on the heap."""

_ALIGN = 64
_live: set[int] = set()


class Blob:
    """Parts of one payload. `parts[0]` is the pickle, the others its out-of-band buffers in order.

    Attributes:
        layout: (offset, size, flag) for each part; flags PRIVATE, READONLY, BYTES.
        fd: a descriptor whose file holds the parts at those offsets, or None.
    """

    __slots__ = ("_parts", "_size", "fd", "layout")

    def __init__(self, parts: list[Buffer] | None, layout: list[tuple[int, int, int]], fd: int | None) -> None:
        self._parts = parts
        self.layout = layout
        self.fd = fd
        self._size = sum(size for _, size, _ in layout)
        if fd is not None:
            _live.add(fd)

    @classmethod
    def from_parts(cls, parts: Sequence[Buffer], flags: Sequence[int] = ()) -> Blob:
        """A Blob over these buffers, which must not change any more; flags for parts[1:], all PRIVATE if empty."""
        sizes = [memoryview(part).nbytes for part in parts]
        return cls(list(parts), layout_of(sizes, [PRIVATE, *(flags or [PRIVATE] * (len(sizes) - 1))]), None)

    @classmethod
    def from_fd(cls, fd: int, layout: Iterable[tuple[int, int, int]]) -> Blob:
        """A Blob over a received descriptor, which it owns from now on."""
        return cls(None, [tuple(entry) for entry in layout], fd)  # type: ignore[misc]

    @property
    def parts(self) -> list[Buffer]:
        """The parts as read-only views."""
        if self._parts is None:
            self._parts = self._map(mmap.PROT_READ)
        return self._parts

    def _map(self, prot: int) -> list[Buffer]:
        assert self.fd is not None
        end = max(offset + size for offset, size, _ in self.layout)
        view = memoryview(mmap.mmap(self.fd, end, flags=mmap.MAP_PRIVATE, prot=prot))
        return [view[offset : offset + size] for offset, size, _ in self.layout]

    def fresh_parts(self) -> list[Buffer]:
        """The parts for one reader alone, who may write into the PRIVATE ones without being seen by anyone."""
        if self.fd is not None:
            parts = self._map(mmap.PROT_READ | mmap.PROT_WRITE)
        else:
            parts = list(self.parts)
        for i, (_, _, flag) in enumerate(self.layout):
            if i and flag == BYTES:
                parts[i] = bytes(parts[i])
            elif i and flag == PRIVATE and memoryview(parts[i]).readonly:
                parts[i] = bytearray(parts[i])
        return parts

    def to_fd(self) -> int:
        """The descriptor; makes the file if there is none. The Blob keeps owning it."""
        if self.fd is None:
            fd = _anonymous_file()
            for (offset, _, _), part in zip(self.layout, self.parts, strict=True):
                _write_all(fd, part, offset)
            self.fd = fd
            _live.add(fd)
        return self.fd

    def close(self) -> None:
        """Closes the descriptor; parts that somebody still looks at stay valid."""
        fd, self.fd = self.fd, None
        if fd is not None:
            _live.discard(fd)  # first: the number may be given out again as soon as it is closed
            os.close(fd)

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Blob {self._size} bytes in {len(self.layout)} parts>"


def layout_of(sizes: Sequence[int], flags: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where parts of these sizes stand in a file: each aligned for any array."""
    layout, offset = [], 0
    for size, flag in zip(sizes, flags, strict=True):
        layout.append((offset, size, flag))
        offset += -(-size // _ALIGN) * _ALIGN
    return layout


def live_descriptors() -> int:
    """How many payload descriptors this process has open."""
    return len(_live)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create") and os.environ.get("TASKMESH_OS") != "portable":
        return os.memfd_create("taskmesh", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    os.unlink(path)
    return fd


def _write_all(fd: int, part: Buffer, offset: int) -> None:
    view = memoryview(part).cast("B")
    while len(view):
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
