"""A slot's standard streams: set up when it starts, and put right when a task has closed or moved them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

_HIGH_FD: Final = 1024
Find = Callable[[], Callable[[int, str], None] | None]
"""Returns what takes the prints of the code that calls it; None for the stream."""


class Streams:
    """stdout and stderr of this process.

    Each has a second descriptor out of reach of code that closes "all" of them: the tasks after it print.

    Args:
        stdout, stderr: the ends of the pipes that are to be descriptors 1 and 2; closed here.
    """

    def __init__(self, stdout: int, stderr: int) -> None:
        for fd, number in ((stdout, 1), (stderr, 2)):
            os.dup2(fd, number)
            os.close(fd)
        self._spares = (out_of_reach(os.dup(1)), out_of_reach(os.dup(2)))
        self._pipes = (os.fstat(1).st_ino, os.fstat(2).st_ino)
        self._find: Find | None = None
        sys.stdin = io.TextIOWrapper(open(os.devnull, "rb"), encoding="utf-8")  # noqa: SIM115
        self._open_stdout()
        self._open_stderr()

    def mend(self) -> None:
        """Open anew what the tasks before have closed, or turned to a file of theirs."""
        for number, spare, pipe in zip((1, 2), self._spares, self._pipes, strict=True):
            try:
                if os.fstat(number).st_ino == pipe:
                    continue
            except OSError:
                pass
            with contextlib.suppress(OSError):  # the spare is closed, too: nothing more to be done
                os.dup2(spare, number)
        if getattr(sys.stdout, "closed", False):
            self._open_stdout()
        if getattr(sys.stderr, "closed", False):
            self._open_stderr()

    def call_and_flush(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function; when it returns, what Python and C have printed is in the pipes."""
        try:
            return function(*args, **kwargs)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # what a task has put there may fail as it likes
                    stream.flush()
            _c_library().fflush(None)

    def share(self, find: Find) -> None:
        """Have tasks share the process: what one prints is its log, if `find` returns what takes it."""
        self._find = find
        self._open_stdout()
        self._open_stderr()

    def _open_stdout(self) -> None:
        sys.stdout = sys.__stdout__ = self._opened(1)  # type: ignore[misc]

    def _open_stderr(self) -> None:
        sys.stderr = sys.__stderr__ = self._opened(2)  # type: ignore[misc]

    def _opened(self, fd: int) -> Any:
        return _text(fd) if self._find is None else SharedStream(_text(fd), fd - 1, self._find)


class SharedStream:
    """stdout or stderr where tasks share a process: a task's prints go into its log, if that is asked for.

    Args:
        stream: takes all the rest.
        number: 0 for stdout, 1 for stderr.
        find: see `Find`.
    """

    def __init__(self, stream: Any, number: int, find: Find) -> None:
        self._stream = stream
        self._number = number
        self._find = find

    def write(self, text: str, /) -> int:
        """Write a text into the log of the task that prints, or into the stream."""
        take = self._find()
        if take is None:
            return int(self._stream.write(text))
        take(self._number, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def out_of_reach(fd: int) -> int:
    """Move a descriptor to a high number: code that closes "all" descriptors often stops at 256 or 1000."""
    with contextlib.suppress(OSError, ValueError):
        ceiling = min(os.sysconf("SC_OPEN_MAX"), _HIGH_FD)
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ceiling - 8)
        os.close(fd)
        return high
    return fd


def _text(fd: int) -> io.TextIOWrapper:
    """A line-buffered text stream over stdout or stderr's descriptor."""
    raw = io.FileIO(fd, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
