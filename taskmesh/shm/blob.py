"""A large payload: a pickle and its out-of-band buffers, on the heap, in received frames or in a memfd.

A part that came in several frames stays in these pieces: they are enough to pass it on or to put it into a
file, and rebuilding the value copies them into memory of its own.

Why files: a descriptor passes between the processes of one machine at no cost, whatever the size. Why they
are few: descriptors run out (RLIMIT_NOFILE) long before memory does. Why a reader maps large parts: whoever
gathers results needs fresh memory for copies (1 MiB: 600 us, and 250 to map and scan). Why a slot copies its
arguments: their file serves the next payload sooner, and the copy's memory the next copy (70 us).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from taskmesh.errors import TaskTimeout
from taskmesh.shm.files import DESCRIPTORS, HEADER, Buffer, File, count_viewed, fresh_memory

Layout = list[tuple[int, int, int]]

PRIVATE, READONLY, BYTES = 0, 1, 2
"""Forms of a part for the one who rebuilds the value: writable, read-only, or a `bytes` object."""

SMALL: Final = 64 << 10
"""Bytes up to which a payload stays plain `bytes` and a buffer stays inside the pickle."""

MEMFD_FROM: Final = 128 << 10
"""Bytes from which a payload made here goes into a memfd at once."""

MAP_FROM: Final = 512 << 10
"""Bytes from which a part is mapped by its reader instead of copied."""

ARGUMENT_MAP_FROM: Final = 16 << 20
"""The same in a slot."""

FRESH_FROM: Final = 32 << 20
"""Bytes from which malloc gives memory that was used before to nobody."""

MAX_LIVE: Final = min(256, max(16, DESCRIPTORS // 4))
"""Payload descriptors that this process keeps open at a time; beyond it payloads stay on the heap."""

MAX_MAPPED: Final = min(512, max(4, DESCRIPTORS // 16))
"""Mappings at a time, beyond which parts are copied: each keeps two descriptors open."""

_ALIGN = 64
_live: set[int] = set()
_room = [MAX_LIVE]
_map_from = [MAP_FROM]


class Blob:
    """Parts of one payload. `parts[0]` is the pickle, the others its out-of-band buffers in order.

    Immutable for all but its maker. Drop the last reference to free it; only a sole owner may `close()` it,
    since another thread may be about to send the descriptor's number.

    Attributes:
        layout: (offset, size, flag) for each part; flags PRIVATE, READONLY, BYTES.
        sends: how often it was given out to be sent to another process; counted by `messages.frames`.
    """

    __slots__ = ("_file", "_parts", "_pieces", "_size", "layout", "sends")

    def __init__(self, parts: list[Buffer] | None, layout: Layout) -> None:
        self._parts = parts
        self._pieces: list[list[Buffer]] | None = None
        self.layout = layout
        self._size = sum(size for _, size, _ in layout)
        self._file: File | None = None
        self.sends = 0

    @classmethod
    def from_parts(cls, parts: Sequence[Buffer], flags: Sequence[int] = ()) -> Blob:
        """A Blob over these flat buffers, which must not change any more.

        Args:
            parts: the pickle, then its buffers. flags: one for each buffer; all PRIVATE when empty.
        """
        flags = [READONLY, *(flags or [PRIVATE] * (len(parts) - 1))]
        return cls(list(parts), layout_of([len(part) for part in parts], flags))

    @classmethod
    def from_pieces(cls, pieces: list[list[Buffer]], flags: Sequence[int]) -> Blob:
        """A Blob over the pieces of each part; flags as for `from_parts`."""
        if all(len(part) == 1 for part in pieces):
            return cls.from_parts([part[0] for part in pieces], flags)
        sizes = [sum(map(len, part)) for part in pieces]
        blob = cls(None, layout_of(sizes, [READONLY, *flags]))
        blob._pieces = pieces
        return blob

    @classmethod
    def pack(cls, parts: Sequence[Buffer], flags: Sequence[int], *, memfd: bool = True) -> Blob:
        """A Blob over copies of these flat buffers: in a memfd from MEMFD_FROM on, if one more is allowed."""
        blob = cls.from_parts(parts, flags)
        if memfd and len(blob) >= MEMFD_FROM and len(_live) < _room[0]:
            try:
                blob.to_fd()
                blob._parts = None
                return blob
            except TaskTimeout:  # is an OSError, and strikes anywhere
                raise
            except OSError:  # out of descriptors or of shared memory: the heap will do
                pass
        blob._parts = [part if type(part) is bytes else bytes(part) for part in parts]
        return blob

    @classmethod
    def from_fd(cls, fd: int, layout: Layout, *, relayed: bool = False) -> Blob:
        """A Blob over a received descriptor, which it owns from now on.

        With as many descriptors open as may be the parts are read at once and the descriptor is closed.

        Args:
            fd: the descriptor. layout: of the parts in its file.
            relayed: this process may send the file on.

        Raises:
            OSError: the file is shorter than the layout says (the descriptor is closed).
        """
        blob, file = cls(None, layout), File.to_read(fd, _end(layout), relayed=relayed)
        if len(_live) < _room[0]:
            blob._hold(file)
        else:
            blob._parts = [file.read(offset, size) for offset, size, _ in layout]
        return blob

    @property
    def fd(self) -> int | None:
        """A descriptor whose file holds the parts at the layout's offsets, or None."""
        return None if self._file is None else self._file.fd

    def _hold(self, file: File) -> None:
        _live.add(file.fd)
        self._file = file

    @property
    def parts(self) -> list[Buffer]:
        """The parts, to be read only."""
        if self._parts is None:
            pieces = self._pieces
            self._parts = [*self._map(mmap.PROT_READ)] if pieces is None else list(map(_joined, pieces))
            self._pieces = None
        return self._parts

    @property
    def pieces(self) -> list[list[Buffer]]:
        """The parts, each in the pieces that it is in, to be read only."""
        pieces = self._pieces
        return [[part] for part in self.parts] if pieces is None else pieces

    @property
    def head(self) -> Buffer:
        pieces = self._pieces
        return self.parts[0] if pieces is None else _joined(pieces[0])

    def with_head(self, head: Buffer) -> Blob:
        """A Blob with another first part; the others are not copied."""
        return Blob.from_pieces([[head], *self.pieces[1:]], [flag for _, _, flag in self.layout[1:]])

    def reader_parts(self) -> list[Buffer]:
        """The parts for one who rebuilds the value: PRIVATE ones can be written to, which no file ever shows.

        Writable buffers that the Blob was made over (received frames) are given as they are, so a Blob off a
        socket is rebuilt once.
        """
        file, pieces = self._file, self._pieces
        if file is None and pieces is not None:
            return [_own_of(part, flag) for part, (_, _, flag) in zip(pieces, self.layout, strict=True)]
        if file is None:
            return [_own(part, flag) for part, (_, _, flag) in zip(self.parts, self.layout, strict=True)]
        mapped = [flag != BYTES and size >= _map_from[0] for _, size, flag in self.layout]
        views = self._private_views() if any(mapped) else None
        parts: list[Buffer] = []
        for i, (offset, size, flag) in enumerate(self.layout):
            if views is not None and mapped[i]:
                parts.append(views[i] if flag == PRIVATE else views[i].toreadonly())
            else:
                parts.append((file.read_into if flag == PRIVATE else file.read)(offset, size))
        return parts

    def _private_views(self) -> list[memoryview] | None:
        """The parts mapped; None if that cannot be had."""
        if count_viewed() >= MAX_MAPPED:
            return None
        try:
            return self._map(mmap.PROT_READ | mmap.PROT_WRITE)
        except TaskTimeout:
            raise
        except OSError:  # out of descriptors or of mappings: a copy needs neither
            return None

    def _map(self, prot: int) -> list[memoryview]:
        if self._file is None:
            raise ValueError("this Blob has been closed")
        view = memoryview(self._file.map(_end(self.layout), prot))
        return [view[offset : offset + size] for offset, size, _ in self.layout]

    def to_fd(self) -> int:
        """The descriptor of a file with all parts; makes it if there is none. The Blob goes on owning it.

        Raises:
            OSError: no descriptor or no shared memory is left.
        """
        file = self._file
        if file is None:
            file = File.to_fill(_end(self.layout))
            for (offset, _, _), part in zip(self.layout, self.pieces, strict=True):
                at = offset
                for piece in part:
                    file.write(piece, at)
                    at += len(piece)
            self._hold(file)
        return file.fd

    def close(self) -> None:
        """Give the file up; parts that somebody looks at stay valid."""
        file, self._file = self._file, None
        if file is not None:
            _live.discard(file.fd)  # first: the number may be given out again as soon as it is closed
            file.sends = self.sends

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Blob is a payload already; it cannot be pickled")

    def __repr__(self) -> str:
        return f"<Blob {self._size} bytes in {len(self.layout)} parts>"


def layout_of(sizes: Sequence[int], flags: Sequence[int]) -> Layout:
    """Return the offsets of parts of these sizes in a file, each aligned for any array."""
    layout, offset = [], HEADER
    for size, flag in zip(sizes, flags, strict=True):
        layout.append((offset, size, flag))
        offset += -(-size // _ALIGN) * _ALIGN
    return layout


def keep_open(most: int) -> None:
    """Keep no more than so many files open, and further payloads on the heap: descriptors run short."""
    _room[0] = min(MAX_LIVE, most)


def copy_arguments() -> None:
    """Copy parts below ARGUMENT_MAP_FROM, as a slot does: its task's file is free before the task runs."""
    _map_from[0] = ARGUMENT_MAP_FROM


def discard(descriptors: Iterable[int]) -> None:
    """Close descriptors that came with a message and that no Blob owns."""
    for fd in descriptors:
        os.close(fd)


def _end(layout: Layout) -> int:
    return max(offset + size for offset, size, _ in layout)


def _own(part: Buffer, flag: int) -> Buffer:
    if flag == BYTES:
        return part if type(part) is bytes else bytes(part)
    if flag == PRIVATE and memoryview(part).readonly:
        return bytearray(part)
    return part


def _own_of(pieces: list[Buffer], flag: int) -> Buffer:
    """A part of these pieces for one who rebuilds the value: copied once."""
    if len(pieces) == 1:
        return _own(pieces[0], flag)
    size = sum(map(len, pieces))
    if flag != PRIVATE or size < FRESH_FROM:
        return (b"" if flag != PRIVATE else bytearray()).join(pieces)
    whole = fresh_memory(size)
    at = 0
    for piece in pieces:
        whole[at : at + len(piece)] = piece
        at += len(piece)
    return whole


def _joined(pieces: list[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
