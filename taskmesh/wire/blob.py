"""A large payload: a pickle and its out-of-band buffers, on the heap, in received frames or in a memfd.

Why files: a descriptor passes between the processes of one machine at no cost, whatever the size. Why they
are few: descriptors run out (RLIMIT_NOFILE) long before memory does. Why a reader copies parts below MAP_FROM
instead of mapping them: page faults cost more than the copy (1 MiB: 70 us to read, 250 us to map and scan) if
it goes into memory that was used before. One who keeps all he reads needs fresh memory (600 us): `_Crowd`.
Why files are kept and used again: most of the time that a new one takes goes into its pages (1 MiB: 215 us to
make, fill and drop, 75 us to fill again). The first byte of a file says whether it may be: the only process
that it was sent to sets it when it is through with it.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

Buffer = bytes | bytearray | memoryview
Layout = list[tuple[int, int, int]]

PRIVATE, READONLY, BYTES = 0, 1, 2
"""How a part is given to the one who rebuilds the value: writable, read-only, or as a `bytes` object."""

SMALL: Final = 64 << 10
"""Bytes up to which a payload stays plain `bytes` and a buffer stays inside the pickle."""

MEMFD_FROM: Final = 128 << 10
"""Bytes from which a payload made here goes into a memfd at once."""

MAP_FROM: Final = 16 << 20
"""Bytes from which a part is mapped by its reader instead of copied."""

CROWD_MAP_FROM: Final = 512 << 10
"""The same where many files wait and what is read is kept."""

_DESCRIPTORS: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

MAX_LIVE: Final = min(256, max(16, _DESCRIPTORS // 4))
"""Payload descriptors that this process keeps open at a time; beyond it payloads stay on the heap."""

MAX_MAPPED: Final = min(1024, max(4, _DESCRIPTORS // 8))
"""Mappings at a time up to which parts below MAP_FROM are mapped: Python keeps a descriptor open for each."""

_ALIGN = 64
_HEADER = 64
_IN_USE, _FREE = b"\0", b"\1"
_MAX_SPARES = 16
_MANY = 8
_COPIES = 64
_live: set[int] = set()
_spares: list[_Spare] = []
_spare_bytes = [0]


def keep_spares(capacity: int) -> None:
    """Keeps files of up to `capacity` bytes in all for use by later payloads; 0 closes them all.

    For a process that sends many large payloads: a slot, a client for as long as its mesh is open.
    """
    _spare_bytes[0] = capacity
    _trim_spares()


class _Crowd:
    """Whether whoever reads received files keeps all that he reads: a gatherer of many results does.

    A mapping costs him least then, unless he writes into most of it (1 MiB: 1 to 3 ms more). Whether he keeps
    them is seen from the last mapping but one: while it lives, he does.
    """

    __slots__ = ("_copies", "_latest", "_mappings", "unread")

    def __init__(self) -> None:
        self.unread: set[int] = set()
        self._mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._latest: deque[weakref.ref[mmap.mmap]] = deque(maxlen=2)
        self._copies = 0

    def is_kept(self) -> bool:
        """Many wait to be read, and nothing speaks against their being kept; asked once for each of them."""
        if len(self.unread) < _MANY:
            self._latest.clear()
            return False
        if len(self._mappings) >= MAX_MAPPED:
            return False
        if self._copies:
            self._copies -= 1
            return False
        latest = self._latest
        if len(latest) == latest.maxlen and latest[0]() is None:
            latest.clear()
            self._copies = _COPIES
            return False
        return True

    def mapped(self, mapping: mmap.mmap) -> None:
        """Another file has been mapped."""
        self._mappings.add(mapping)
        self._latest.append(weakref.ref(mapping))


class Blob:
    """Parts of one payload. `parts[0]` is the pickle, the others its out-of-band buffers in order.

    Immutable for all but its maker. Drop the last reference to free it; `close()` is for a sole owner who is
    in a hurry, since another thread may be about to send the descriptor's number.

    Attributes:
        layout: (offset, size, flag) for each part; flags PRIVATE, READONLY, BYTES.
        fd: a descriptor whose file holds the parts at those offsets, or None.
        sends: how often it was given out to be sent to another process; counted by `wire.frames`.
    """

    __slots__ = ("_mapped", "_owner", "_parts", "_received", "_size", "fd", "layout", "sends")

    def __init__(self, parts: list[Buffer] | None, layout: Layout, fd: int | None) -> None:
        self.fd = fd
        self._parts = parts
        self.layout = layout
        self._size = sum(size for _, size, _ in layout)
        self._received = fd is not None
        self._owner = 0 if fd is None else os.getpid()
        self._mapped = False
        self.sends = 0
        if fd is not None:
            _live.add(fd)
            _crowd.unread.add(fd)

    @classmethod
    def from_parts(cls, parts: Sequence[Buffer], flags: Sequence[int] = ()) -> Blob:
        """A Blob over these flat buffers, which must not change any more.

        Args:
            parts: the pickle, then its buffers. flags: one for each buffer; all PRIVATE when empty.
        """
        flags = [READONLY, *(flags or [PRIVATE] * (len(parts) - 1))]
        return cls(list(parts), layout_of([len(part) for part in parts], flags), None)

    @classmethod
    def pack(cls, parts: Sequence[Buffer], flags: Sequence[int], *, memfd: bool = True) -> Blob:
        """A Blob over copies of these flat buffers: in a memfd from MEMFD_FROM on, if one more is allowed."""
        blob = cls.from_parts(parts, flags)
        if memfd and len(blob) >= MEMFD_FROM and len(_live) < MAX_LIVE:
            try:
                blob.to_fd()
                blob._parts = None
                return blob
            except OSError:  # out of descriptors or of shared memory: the heap will do
                pass
        blob._parts = [part if type(part) is bytes else bytes(part) for part in parts]
        return blob

    @classmethod
    def from_fd(cls, fd: int, layout: Layout) -> Blob:
        """A Blob over a received descriptor, which it owns from now on.

        With MAX_LIVE descriptors open the parts are read at once and the descriptor is closed.

        Raises:
            OSError: the file is shorter than the layout says (the descriptor is closed).
        """
        if os.fstat(fd).st_size < _end(layout):
            os.close(fd)
            raise OSError(errno.EINVAL, "a payload's file is shorter than its layout")
        blob = cls(None, layout, fd)
        if len(_live) > MAX_LIVE:
            blob._parts = [_read(fd, offset, size) for offset, size, _ in layout]
            blob.close()
        return blob

    @property
    def parts(self) -> list[Buffer]:
        """The parts, to be read only."""
        if self._parts is None:
            self._parts = self._map(mmap.PROT_READ)
        return self._parts

    def reader_parts(self) -> list[Buffer]:
        """The parts for one who rebuilds the value: PRIVATE ones can be written to, which no file ever shows.

        Writable buffers that the Blob was made over (received frames) are given as they are, so a Blob off a
        socket is rebuilt once.
        """
        if self.fd is None:
            return [_own(part, flag) for part, (_, _, flag) in zip(self.parts, self.layout, strict=True)]
        least = CROWD_MAP_FROM if self._size >= CROWD_MAP_FROM and _crowd.is_kept() else MAP_FROM
        large = [size >= (MAP_FROM if flag == BYTES else least) for _, size, flag in self.layout]
        views = self._private_views() if any(large) else None
        parts: list[Buffer] = []
        for i, (offset, size, flag) in enumerate(self.layout):
            if views is None or not large[i]:
                parts.append((_read_into if flag == PRIVATE else _read)(self.fd, offset, size))
            else:
                parts.append(bytes(views[i]) if flag == BYTES else views[i])
        return parts

    def _private_views(self) -> list[Buffer] | None:
        """The parts mapped; None if that cannot be had."""
        try:
            return self._map(mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError:  # out of descriptors or of mappings: a copy needs neither
            return None

    def _map(self, prot: int) -> list[Buffer]:
        if self.fd is None:
            raise ValueError("this Blob has been closed")
        mapping = mmap.mmap(self.fd, _end(self.layout), flags=mmap.MAP_PRIVATE, prot=prot)
        self._mapped = True
        _crowd.mapped(mapping)
        view = memoryview(mapping)
        return [view[offset : offset + size] for offset, size, _ in self.layout]

    def to_fd(self) -> int:
        """The descriptor of a file with all parts; makes it if there is none. The Blob goes on owning it.

        Raises:
            OSError: no descriptor or no shared memory is left.
        """
        if self.fd is None:
            fd = _take_spare(_end(self.layout)) or _anonymous_file()
            try:
                for (offset, _, _), part in zip(self.layout, self.parts, strict=True):
                    _write(fd, part, offset)
            except BaseException:
                os.close(fd)
                raise
            _live.add(fd)
            self._owner = os.getpid()
            self.fd = fd
        return self.fd

    def close(self) -> None:
        """Closes the descriptor; parts that somebody looks at stay valid."""
        fd, self.fd = self.fd, None
        if fd is None:
            return
        _crowd.unread.discard(fd)
        _live.discard(fd)  # first: the number may be given out again as soon as it is closed
        # A mapping may outlive this object, and a forked child has no say about its parent's files.
        if not self._mapped and self._owner == os.getpid():
            if self._received and not self.sends:
                os.pwrite(fd, _FREE, 0)
            elif not self._received and self.sends <= 1 and _keep_spare(fd, sent=self.sends == 1):
                return
        os.close(fd)

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Blob is a payload already; it cannot be pickled")

    def __repr__(self) -> str:
        return f"<Blob {self._size} bytes in {len(self.layout)} parts>"


_crowd = _Crowd()


def layout_of(sizes: Sequence[int], flags: Sequence[int]) -> Layout:
    """Where parts of these sizes stand in a file: each aligned for any array."""
    layout, offset = [], _HEADER
    for size, flag in zip(sizes, flags, strict=True):
        layout.append((offset, size, flag))
        offset += -(-size // _ALIGN) * _ALIGN
    return layout


def live_descriptors() -> int:
    """How many payload descriptors this process has open."""
    return len(_live)


def discard(descriptors: Iterable[int]) -> None:
    """Closes descriptors that came with a message and that no Blob owns."""
    for fd in descriptors:
        os.close(fd)


def _end(layout: Layout) -> int:
    return max(offset + size for offset, size, _ in layout)


class _Spare:
    """A file of this process that no Blob of its own needs any more."""

    __slots__ = ("fd", "owner", "size")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.owner = os.getpid()


def _keep_spare(fd: int, *, sent: bool) -> bool:
    """Keeps a file for later, if it may be; whoever it was sent to is perhaps still reading."""
    spare = _Spare(fd)
    if spare.size > _spare_bytes[0]:
        return False
    if not sent:
        os.pwrite(fd, _FREE, 0)
    _spares.append(spare)
    _trim_spares()
    return True


def _take_spare(need: int) -> int | None:
    """A file that nobody reads any more, best one that is large enough."""
    free = [
        spare for spare in tuple(_spares) if spare.owner == os.getpid() and os.pread(spare.fd, 1, 0) == _FREE
    ]
    for spare in sorted(free, key=lambda spare: (spare.size < need, spare.size)):
        try:
            _spares.remove(spare)
        except ValueError:  # another thread has taken it
            continue
        os.pwrite(spare.fd, _IN_USE, 0)
        return spare.fd
    return None


def _trim_spares() -> None:
    """Closes the oldest spare files beyond what may be kept."""
    while len(_spares) > _MAX_SPARES or sum(spare.size for spare in tuple(_spares)) > _spare_bytes[0]:
        try:
            os.close(_spares.pop(0).fd)
        except IndexError:  # another thread is at it too
            return


def _own(part: Buffer, flag: int) -> Buffer:
    if flag == BYTES:
        return part if type(part) is bytes else bytes(part)
    if flag == PRIVATE and memoryview(part).readonly:
        return bytearray(part)
    return part


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create") and os.environ.get("TASKMESH_OS") != "portable":
        return os.memfd_create("taskmesh", os.MFD_CLOEXEC)
    memory = "/dev/shm"  # noqa: S108 -- mkstemp opens exclusively, and the name is gone at once
    import tempfile  # 5 ms, and hardly ever needed

    fd, path = tempfile.mkstemp(prefix="taskmesh-", dir=memory if os.path.isdir(memory) else None)
    os.unlink(path)
    return fd


def _write(fd: int, part: Buffer, offset: int) -> None:
    view = memoryview(part)
    while view:  # one call moves at most 2 GiB
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _read(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    return data if len(data) == size else bytes(_read_into(fd, offset, size))


def _read_into(fd: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.preadv(fd, [view], offset)
        if not got:
            raise OSError(errno.EINVAL, "a payload's file became shorter while it was read")
        view, offset = view[got:], offset + got
    return data
