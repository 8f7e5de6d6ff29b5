"""Files in memory: large payloads pass in them between the processes of one machine, and they are used again.

Most of the time that a new file takes goes into its pages (2 MiB: 1,130 us to make, fill and drop, 210 us to
fill again), most of the rest into the kernel's ways: a file that is used again stays mapped where it is
filled (2 MiB: 70 to 170 us) and where it is read (120 us in place of 370). Nobody but this module sees that
memory: what is read is a copy. The first byte of a file says whether it may be used again: only the process
that it was sent to sets it, when it is through with it, mappings included. The second says whether a process
that may pass the file on has it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
from typing import Final

import msgspec

from taskmesh.errors import TaskTimeout

Buffer = bytes | bytearray | memoryview

HEADER: Final = 64
"""Bytes at the beginning of a file that are not the payload's: two marks, and room that aligns it."""

SPARE_BYTES: Final = 200 << 20
"""Bytes that a process keeps which sends large payloads to others of its machine, such as three of 64 MiB."""

KEPT_S: Final = 5.0
"""Seconds that a file is kept without being used."""

DESCRIPTORS: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""Descriptors that this process may have."""

_MEMORY: Final = "/dev/shm"  # noqa: S108 -- mkstemp opens exclusively, and the name is gone at once
_REFUSED: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS)  # what sandboxes answer
_NOT_THERE: Final = (errno.ENOSPC, errno.EPERM, errno.EACCES, errno.EROFS)  # no place for our file

_IN_USE, _FREE = b"\0", b"\1"
_RELEASED, _HELD = b"\0", b"\1"
_MAX_KEPT = max(4, min(64, DESCRIPTORS // 32))  # of spare files, and of those that stay mapped
_LARGEST_MAPPED = 16 << 20  # of files that stay mapped: to drop more pages would hold the GIL long
_FAULT = 64 << 10  # bytes that are mapped together when the first of them is read
_LARGEST_KEPT = 0x1FF0000  # below the most that glibc goes by; nobody touches it, so it takes nothing
_keeps_freed: list[bool] = []
_STEP = 8 << 20  # bytes copied at a time: other threads need the GIL too
_WASTE = 4
_LITTLE = 1 << 20
_spares: list[_Spare] = []
_mapped: dict[tuple[int, int], Mapping] = {}  # files that stay mapped, the latest last
_viewed: set[int] = set()  # files that readers have mapped, by descriptor
_spare_bytes = [0]
_filled: dict[int, int] = {}  # bytes of files that were filled here and are in use, by descriptor
_forks = [0]


def keep_spares(capacity: int) -> None:
    """Keep files of up to `capacity` bytes in all for use by later payloads; 0 closes them all.

    As many as are in use at a time are kept if that is more: where large payloads come one after the other,
    the next takes the file of one that is done, and after the last of them the memory is given back; what has
    not been used for KEPT_S, too. As many bytes stay mapped. For a process that gives slots large payloads,
    or gets them from tasks, and calls `close_idle` now and then.
    """
    _spare_bytes[0] = capacity
    _trim_spares()
    if not capacity:
        _mapped.clear()


def close_idle(now: float) -> bool:
    """Close the spare files, and unmap files, that nothing has used since a call KEPT_S or longer ago.

    Args:
        now: seconds of a clock that does not go back.

    Returns:
        Whether others are left.
    """
    for spare in tuple(_spares):
        if spare.seen is None:
            spare.seen = now
        elif now - spare.seen >= KEPT_S:
            try:
                _spares.remove(spare)
            except ValueError:  # another thread has taken it
                continue
            spare.close()
    for identity, mapped in tuple(_mapped.items()):
        if mapped.seen is None:
            mapped.seen = now
        elif now - mapped.seen >= KEPT_S:
            _mapped.pop(identity, None)
    return bool(_spares or _mapped)


def count_viewed() -> int:
    """Return how many files somebody looks at through a mapping of their own."""
    return len(_viewed)


class Mapping(mmap.mmap):
    """Memory that shows what is in a file.

    Attributes:
        file: What a reader looks at: the file is not used again before the mapping is gone.
        seen: Time since which one that stays has not been used, as far as `close_idle` knows.
    """

    file: File
    seen: float | None = None


class File(msgspec.Struct, gc=False, eq=False):
    """A payload's file; with the last reference, mappings included, it is closed or kept for another payload.

    The garbage collector does not see it, so as not to end it before the finalizers of a cycle have run: they
    may look at a mapping yet.

    Attributes:
        fd: its descriptor. sends: how often it was sent to another process.
        forks: of this process when it came or was taken; a forked child has no say about its parent's files,
            and may go on looking at what it has of them.
        identity: device and inode; a process that has closed all its descriptors may have another file there.
        memory: where it is mapped, up to where it has pages: to touch others can fail with a signal, where a
            call fails with an error.
        size: when it came from another process; 0 of others.
        relayed: it was received by a process that may send it on.
    """

    fd: int
    sends: int
    forks: int
    identity: tuple[int, int] | None
    memory: Mapping | None = None
    size: int = 0
    relayed: bool = False

    @classmethod
    def to_read(cls, fd: int, least: int, *, relayed: bool = False) -> File:
        """A file that was received.

        Raises:
            OSError: it is shorter than `least` bytes (the descriptor is closed).
        """
        status = os.fstat(fd)
        if status.st_size < least:
            os.close(fd)
            raise OSError(errno.EINVAL, "a payload's file is shorter than its layout")
        file = cls(fd, 0, _forks[0], (status.st_dev, status.st_ino), size=status.st_size)
        if relayed:
            file.relayed = True
            os.pwrite(fd, _HELD, 1)
        return file

    @classmethod
    def to_fill(cls, size: int) -> File:
        """A file for a payload of this size: one that nobody reads any more, or a new one.

        Raises:
            OSError: no descriptor is left.
        """
        spare = _take_spare(size)
        if spare is None:
            fd = anonymous_file("taskmesh", size)
            file = cls(fd, 0, _forks[0], _identity(fd))
        else:
            file = spare.take()
        _filled[file.fd] = size
        return file

    def __del__(self) -> None:
        _filled.pop(self.fd, None)  # first: the number may be given out again as soon as it is closed
        _viewed.discard(self.fd)
        if _identity(self.fd) != self.identity:
            return
        if self.forks == _forks[0]:
            if self.size:
                self._release()
            elif self.sends <= 1 and _keep_spare(self):
                return
            elif self.identity is not None:
                _mapped.pop(self.identity, None)
        os.close(self.fd)
        _trim_spares()

    def _release(self) -> None:
        """Say that this process is through with it, unless it has sent it to several."""
        if self.relayed and self.sends <= 1:
            os.pwrite(self.fd, _RELEASED, 1)
        if not self.sends:
            os.pwrite(self.fd, _FREE, 0)

    def map(self, size: int, prot: int) -> Mapping:
        """Its first `size` bytes as memory of our own: what is written there no file ever shows.

        Raises:
            OSError: no descriptor, or no mapping, is left.
        """
        mapping = Mapping(self.fd, size, flags=mmap.MAP_PRIVATE, prot=prot)
        mapping.file = self
        _viewed.add(self.fd)
        return mapping

    def write(self, part: Buffer, offset: int) -> None:
        """Write all of it at this offset.

        Raises:
            OSError: no shared memory is left.
        """
        view = memoryview(part)
        memory = self.memory
        if memory is not None and offset + len(view) <= len(memory):
            for start in range(0, len(view), _STEP):
                step = view[start : start + _STEP]
                memory[offset + start : offset + start + len(step)] = step
            return
        try:
            while view:  # one call moves at most 2 GiB
                written = os.pwrite(self.fd, view, offset)
                view, offset = view[written:], offset + written
        except BaseException:
            self.forks = -1  # memory is short: it is not kept
            raise

    def read(self, offset: int, size: int) -> bytes:
        """A copy of these bytes.

        Raises:
            OSError: the file ends before them.
        """
        memory = self._memory_to(offset + size)
        if memory is not None:
            return memory[offset : offset + size]
        data = os.pread(self.fd, size, offset)
        return data if len(data) == size else bytes(self.read_into(offset, size))

    def read_into(self, offset: int, size: int) -> bytearray:
        """A copy of these bytes that can be written to.

        Raises:
            OSError: the file ends before them.
        """
        memory = self._memory_to(offset + size)
        if memory is not None:
            return bytearray(memoryview(memory)[offset : offset + size])
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = os.preadv(self.fd, [view], offset)
            if not got:
                raise OSError(errno.EINVAL, "a payload's file became shorter while it was read")
            view, offset = view[got:], offset + got
        return data

    def _memory_to(self, end: int) -> Mapping | None:
        """Its memory if these bytes of it are to be had there, and it is worth it."""
        if self.memory is None and 0 < self.size <= _LARGEST_MAPPED and self.identity is not None:
            self.memory = _memory_of(self.fd, self.identity, self.size)
        memory = self.memory
        return memory if memory is not None and end <= len(memory) else None


def fresh_memory(size: int) -> memoryview:
    """So many bytes to be filled, in large pages where there are such: 64 MiB take 6 ms in place of 32."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def keep_freed_memory() -> None:
    """Has glibc use freed memory again, up to 64 MiB: it gives nearly all back to the kernel otherwise.

    How much it keeps goes by the largest block that was ever freed. What comes in small pieces would cost new
    pages each time: for 20 MB hub and pool took 2.7 ms of a core for each megabyte in place of 1.5.
    """
    if not _keeps_freed:
        _keeps_freed.append(True)
        bytes(_LARGEST_KEPT)


def _identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of what a descriptor's number stands for, None when for nothing."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def anonymous_file(name: str, size: int) -> int:
    """A new file for `size` bytes that no path names: in memory, or where a sandbox refuses that, unlinked.

    Raises:
        OSError: no descriptor, or no room, is left.
    """
    if hasattr(os, "memfd_create"):
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        else:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # who maps it may rely on its pages
            return fd
    return unlinked_file(size)


def unlinked_file(size: int) -> int:
    """A new file for `size` bytes without a name any more: in memory where there is room, else on disk.

    Its room is taken at once: to touch mapped memory that has none ends a process, and containers often have
    64 MiB in /dev/shm.

    Raises:
        OSError: no descriptor, or no room, is left.
    """
    import tempfile  # 5 ms, and hardly ever needed

    if os.path.isdir(_MEMORY):
        try:
            return _with_room(*tempfile.mkstemp(prefix="taskmesh-", dir=_MEMORY), size)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
    return _with_room(*tempfile.mkstemp(prefix="taskmesh-"), size)


def _with_room(fd: int, path: str, size: int) -> int:
    """A file that has just been made, without its name and with its room."""
    try:
        os.unlink(path)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


# --- files that are kept ------------------------------------------------------------------------------------


def _memory_of(fd: int, identity: tuple[int, int], size: int) -> Mapping | None:
    """A file's first `size` bytes as memory, which stays; None if that cannot be had, or enough is mapped."""
    mapped = _mapped.get(identity)
    if mapped is None or len(mapped) < size:
        others = [len(one) for one in tuple(_mapped.values())]
        if len(others) >= _MAX_KEPT or sum(others) + size > _most_kept():
            return None
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return None
            mapped = Mapping(fd, size)
        except TaskTimeout:  # is an OSError, and strikes anywhere
            raise
        except OSError:  # no memfd; or out of descriptors or of mappings
            return None
        for start in range(0, size, _STEP):  # pages that are read first are mapped together: 170 us, not 860
            mapped[start : start + _STEP : _FAULT]
        _mapped[identity] = mapped
    mapped.seen = None
    return mapped


class _Spare:
    """A file of this process that no payload of its own needs any more."""

    __slots__ = ("_identity", "fd", "seen", "size")

    def __init__(self, file: File) -> None:
        self.fd = file.fd
        self.size = os.fstat(file.fd).st_size
        self.seen: float | None = None
        self._identity = file.identity

    def serves(self, need: int) -> bool:
        """Return True if nobody reads it any more, and that many bytes leave not too much of it idle."""
        try:
            return (
                self.size <= max(_WASTE * need, _LITTLE)
                and os.pread(self.fd, 2, 0) == _FREE + _RELEASED
                and self._identity == _identity(self.fd)
            )
        except OSError:  # another thread has just closed it
            return False

    def take(self) -> File:
        """The file, for another payload; it serves, so that it is ours and still the one that it was."""
        os.pwrite(self.fd, _IN_USE + _RELEASED, 0)
        try:
            memory = self._identity and _memory_of(self.fd, self._identity, self.size)
        except BaseException:
            self.close()
            raise
        return File(self.fd, 0, _forks[0], self._identity, memory or None)

    def close(self) -> None:
        """Close it; readers that still have it mapped keep none of its pages."""
        try:
            if self.size <= _LARGEST_MAPPED and self.serves(self.size):
                mmap.mmap(self.fd, self.size).madvise(mmap.MADV_REMOVE)
        except TaskTimeout:
            raise
        except OSError:  # a file on disk, or a sandbox: its pages go with the last mapping
            pass
        finally:
            if self._identity is not None:
                _mapped.pop(self._identity, None)
            self.close_descriptor()

    def close_descriptor(self) -> None:
        if self._identity == _identity(self.fd):
            os.close(self.fd)


def _keep_spare(file: File) -> bool:
    """Keep a file for later, if it may be; whoever it was sent to is perhaps still reading."""
    if not _spare_bytes[0]:
        return False
    if not file.sends:
        os.pwrite(file.fd, _FREE, 0)
    _spares.append(_Spare(file))
    _trim_spares()
    return True


def _take_spare(need: int) -> _Spare | None:
    """A file that nobody reads any more, best one that is large enough.

    Of several the oldest: another CPU's cache has forgotten what was read there (2 MiB: 165 us to fill, the
    latest 300).
    """
    for spare in sorted(_spares, key=lambda spare: (spare.size < need, spare.size)):
        if not spare.serves(need):
            continue
        try:
            _spares.remove(spare)
        except ValueError:  # another thread has taken it
            continue
        return spare
    return None


def _most_kept() -> int:
    """Bytes of spare files that may be kept, and that may stay mapped."""
    return _spare_bytes[0] and max(_spare_bytes[0], sum(tuple(_filled.values())))


def _trim_spares() -> None:
    """Close the oldest spare files beyond what may be kept."""
    most = _most_kept()
    while len(_spares) > _MAX_KEPT or sum(spare.size for spare in tuple(_spares)) > most:
        try:
            _spares.pop(0).close()
        except IndexError:  # another thread is at it too
            return


def _count_fork() -> None:
    _forks[0] += 1


def _forget_parent() -> None:
    """In a forked child: close its copies of descriptors, and leave their files' pages to the parent."""
    _count_fork()
    for spare in _spares:
        spare.close_descriptor()
    del _spares[:]
    keep_spares(0)


# Twice: other hooks before a fork may take their time, in which threads go on receiving.
os.register_at_fork(before=_count_fork, after_in_parent=_count_fork, after_in_child=_forget_parent)
