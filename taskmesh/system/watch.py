"""What the supervisor of slots waits for: descriptors and what to call when one is ready."""

from __future__ import annotations

from collections.abc import Callable

from taskmesh.system.services import READ, WRITE, System


class Watch:
    """A set of descriptors behind one, so that the loop around has a single one to watch.

    Attributes:
        alarm: makes the set ready from any thread; `rung` is called then.
    """

    def __init__(self, system: System, rung: Callable[[], object]) -> None:
        self._poller = system.poller()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._writing: set[int] = set()
        self._rung = rung
        self.alarm = system.alarm()
        self.add(self.alarm.fileno(), self._hush)

    def fileno(self) -> int:
        """The one descriptor: readable when something is ready."""
        return self._poller.fileno()

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        """Calls back when `fd` is readable or closed at the other end (and when writable, see `writing`)."""
        self._callbacks[fd] = callback
        self._poller.watch(fd, READ)

    def remove(self, *fds: int | None) -> None:
        """No longer watches these; harmless for those that are not watched. Before they are closed."""
        for fd in fds:
            if fd is not None and self._callbacks.pop(fd, None) is not None:
                self._writing.discard(fd)
                self._poller.forget(fd)

    def writing(self, fd: int, wanted: bool) -> None:
        """Says whether `fd`, which is watched, is to be watched for writability too."""
        if wanted != (fd in self._writing) and fd in self._callbacks:
            (self._writing.add if wanted else self._writing.discard)(fd)
            self._poller.watch(fd, READ | WRITE if wanted else READ)

    def poll(self, timeout: float) -> None:
        """Calls back for everything that is ready within `timeout` seconds."""
        for fd in self._poller.poll(timeout):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()

    def _hush(self) -> None:
        self.alarm.hush()
        self._rung()

    def close(self) -> None:
        """Closes our own descriptors."""
        self._poller.close()
        self.alarm.close()
