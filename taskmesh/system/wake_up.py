"""How one thread wakes another that waits for a descriptor."""

from __future__ import annotations

import contextlib
import os


class _End:
    """A descriptor that is closed when the last who uses it lets go of it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


def _eventfd() -> int | None:
    if not hasattr(os, "eventfd") or os.environ.get("TASKMESH_OS") == "portable":
        return None
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:
        return None


class WakeUp:
    """An eventfd (a pipe where there is none, or a sandbox refuses it) that wakes whoever waits for it.

    Who rings holds the end that is written: closed meanwhile, its number cannot be another file's already.
    """

    def __init__(self) -> None:
        self._read_end: _End | None
        self._write_end: _End | None
        counter = _eventfd()
        if counter is not None:
            self._read_end = self._write_end = _End(counter)
        else:
            self._read_end, self._write_end = map(_End, os.pipe())
            os.set_blocking(self._read_end.fd, False)
            os.set_blocking(self._write_end.fd, False)
        self.fd = self._read_end.fd

    def ring(self) -> None:
        """Wakes who waits; from any thread, harmless at any time."""
        end = self._write_end
        if end is not None:
            try:  # noqa: SIM105  suppress() takes longer than the call
                os.write(end.fd, b"\1\0\0\0\0\0\0\0")
            except OSError:  # a pipe that is full: it is rung already
                pass

    def heard(self) -> None:
        """Takes the signal in."""
        end = self._read_end
        if end is not None:
            try:  # noqa: SIM105  suppress() takes longer than the call
                os.read(end.fd, 4096)
            except OSError:  # it was not rung, or somebody else has taken that in
                pass

    def close(self) -> None:
        """Closes the descriptors; so does letting go of the last reference."""
        self.fd = -1
        self._read_end = self._write_end = None
