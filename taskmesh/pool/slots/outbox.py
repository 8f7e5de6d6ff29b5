"""A slot's outbox: results that are finished but not yet sent, in memory that the supervisor can read.

Why it exists: a slot sends results in batches, and a batch may be cut off by a task that turns out long (or
never ends). Nothing in the slot can send then, since it has no second thread. So each result is also put
where the supervisor can look.

It is also where a running task sees that it has been cancelled: the slot reads nothing else meanwhile. Behind
it, in the same file, the slot writes where its code is, at STACK_SIGNAL.

Layout, all words 64 bits wide: `epoch`, `first` (serial of the first record), `start` (clock), `watched` (the
slot's: 1 + the serial of the task that looks for its cancellation), `cancelled` (the supervisor's: 1 + the
serial of the task that it has cancelled), then a table
of `_ENTRIES` words, a table of as many clocks, a table of as many checksums, then the records. A record's
word is epoch << 32 | flags | size and is written after the record itself: a reader takes the words of the
epoch that it found in the header and looks at the epoch again when it is done. A processor that keeps stores
in order (x86) needs no more; elsewhere each record has a checksum.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
import zlib
from typing import Final

from taskmesh.shm.files import anonymous_file

OUTBOX_SIZE: Final = 2 << 20
"""Bytes of a slot's outbox: tables and records."""

STACK_SIGNAL: Final = signal.SIGRTMAX
"""It has a slot write the stacks of its threads behind its outbox, whatever its task does, C code too."""

STACK_BYTES: Final = 16 << 10
"""The most that is read of it."""

FAILURE: Final = 1 << 31
"""The record is an encoded `SlotFailure`, not a result."""

BREAK: Final = 1 << 30
"""A new segment of results begins with this record."""

_SIZE_MASK: Final = (1 << 30) - 1
ENTRIES: Final = 1 << 16
"""As many as fit: a pickle has at least four bytes. Memory that is not touched costs nothing."""
_HEADER: Final = 64
_WORDS: Final = _HEADER
_CLOCKS: Final = _WORDS + 8 * ENTRIES
_SUMS: Final = _CLOCKS + 8 * ENTRIES
DATA: Final = _SUMS + 8 * ENTRIES
ROOM: Final = OUTBOX_SIZE - DATA
"""Bytes for records."""

_EPOCHS: Final = 1 << 31
KEEPS_STORE_ORDER: Final = os.uname().machine.lower() in {"x86_64", "amd64", "i686", "i386"}


class Record:
    """One unsent result; `ended` is the time by the slot's clock."""

    __slots__ = ("data", "ended", "flags", "serial")

    def __init__(self, serial: int, flags: int, data: bytes, ended: float) -> None:
        self.serial = serial
        self.flags = flags
        self.data = data
        self.ended = ended


def create_outbox() -> int:
    """Return the descriptor of a new outbox: memory, or an unlinked file where a sandbox refuses that.

    Raises:
        OSError: no descriptor or no room is left, or files may not be so large here.
    """
    fd = anonymous_file("taskmesh-outbox", OUTBOX_SIZE)
    try:
        os.ftruncate(fd, OUTBOX_SIZE)
    except OSError:
        os.close(fd)
        raise
    return fd


class OutboxWriter:
    """The slot's side. The execution loop writes records in place through the public attributes.

    Attributes:
        memory: the mapping.
        words: the table of words.
        clocks: the table of times.
        sums: the table of checksums.
        tag: epoch << 32, a part of each word.
    """

    def __init__(self, fd: int, *, checked: bool = not KEEPS_STORE_ORDER) -> None:
        self.memory = mmap.mmap(fd, OUTBOX_SIZE)
        whole = memoryview(self.memory)
        self._epoch = whole[0:8].cast("Q")
        self._first = whole[8:16].cast("Q")
        self._start = whole[16:24].cast("d")
        self._cancellation = whole[24:40].cast("Q")
        self.words = whole[_WORDS:_CLOCKS].cast("Q")
        self.clocks = whole[_CLOCKS:_SUMS].cast("d")
        self.sums = whole[_SUMS:DATA].cast("Q")
        self.checked = checked
        self.tag = 0
        self._next_epoch = 1
        self.index = 0
        self.offset = DATA

    def reset(self, first: int, now: float) -> None:
        """Forget every record: they have been sent. The next one has the serial `first`."""
        self._epoch[0] = 0
        self._first[0] = first
        self._start[0] = now
        self._epoch[0] = self._next_epoch
        self.tag = self._next_epoch << 32
        self._next_epoch = self._next_epoch % (_EPOCHS - 1) + 1
        self.index = 0
        self.offset = DATA

    def begin(self, first: int, now: float) -> None:
        """Before there is a record: the first one has the serial `first`, and its task begins now."""
        if self._first[0] == first and self._epoch[0]:
            self._start[0] = now
        else:
            self.reset(first, now)

    def append(self, data: bytes, flags: int, now: float) -> bool:
        """Add a record; False when there is no room for it."""
        end = self.offset + len(data)
        if end > OUTBOX_SIZE or self.index >= ENTRIES:
            return False
        self.clocks[self.index] = now  # first: it raises in a forked child, before the child writes anything
        self.memory[self.offset : end] = data
        if self.checked:
            self.sums[self.index] = zlib.crc32(data)
        self.words[self.index] = self.tag | flags | len(data)
        self.index += 1
        self.offset = end
        return True

    def is_cancelled(self, serial: int) -> bool:
        """Note that the running task looks for its cancellation; return True if it has been cancelled."""
        self._cancellation[0] = serial + 1
        return self._cancellation[1] == serial + 1

    def was_cancelled(self, serial: int) -> bool:
        """Return True if the supervisor has marked a task as cancelled."""
        return self._cancellation[1] == serial + 1

    def is_watched(self, serial: int) -> bool:
        """Return True if a task has looked for its cancellation."""
        return self._cancellation[0] == serial + 1

    def close_after_fork(self) -> None:
        """Make every further use raise ValueError: called in a child that a task has forked."""
        header = (self._epoch, self._first, self._start, self._cancellation)
        for view in (*header, self.words, self.clocks, self.sums):
            view.release()


class OutboxReader:
    """The supervisor's side; what it reads stays readable after the slot's death."""

    def __init__(self, fd: int, *, checked: bool = not KEEPS_STORE_ORDER) -> None:
        self._memory = mmap.mmap(fd, OUTBOX_SIZE)
        self._fd = os.dup(fd)
        self._checked = checked

    def cancel(self, serial: int) -> bool:
        """Mark a task as cancelled; False if it has not looked for that yet."""
        with memoryview(self._memory)[24:40].cast("Q") as cancellation:
            cancellation[1] = serial + 1
            return cancellation[0] == serial + 1

    def read(self) -> tuple[float, list[Record]]:
        """Return when the first record's task began, and the records; none while the slot resets it."""
        whole = memoryview(self._memory)
        try:
            return self._read(whole)
        finally:
            whole.release()

    def _read(self, whole: memoryview) -> tuple[float, list[Record]]:
        with whole[:_HEADER].cast("Q") as header, whole[16:24].cast("d") as start:
            epoch, first, began = header[0], header[1], start[0]
            if not epoch:
                return 0.0, []
            with whole[_WORDS:_CLOCKS].cast("Q") as words, whole[_CLOCKS:_SUMS].cast("d") as clocks:
                records = self._records(whole, epoch, first, words, clocks)
            return (began, records) if header[0] == epoch else (0.0, [])

    def _records(
        self, whole: memoryview, epoch: int, first: int, words: memoryview, clocks: memoryview[float]
    ) -> list[Record]:
        records = []
        offset = DATA
        with whole[_SUMS:DATA].cast("Q") as sums:
            for index in range(ENTRIES):
                word = words[index]
                if word >> 32 != epoch:
                    break
                end = offset + (word & _SIZE_MASK)
                data = bytes(whole[offset:end])
                if self._checked and zlib.crc32(data) != sums[index]:
                    break
                records.append(Record(first + index, word & (FAILURE | BREAK), data, clocks[index]))
                offset = end
        return records

    def forget_stack(self) -> None:
        """Make room behind the outbox; the slot's descriptor has its position in common with this one."""
        os.pwrite(self._fd, bytes(STACK_BYTES), OUTBOX_SIZE)
        os.lseek(self._fd, OUTBOX_SIZE, os.SEEK_SET)

    def stack(self) -> str:
        """Return what the slot has written behind the outbox, at STACK_SIGNAL."""
        return os.pread(self._fd, STACK_BYTES, OUTBOX_SIZE).partition(b"\0")[0].decode("utf-8", "replace")

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


def clock() -> float:
    """The clock of records: CLOCK_MONOTONIC, the same in every process of the machine."""
    return time.monotonic()
