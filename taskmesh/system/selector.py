"""Descriptors with callbacks, behind one descriptor for the loop around them."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable

from taskmesh.system.wakeup import Wakeup


class CallbackSelector:
    """Calls back for each descriptor that is ready; itself one descriptor that another loop can poll.

    Attributes:
        wakeup: makes the selector ready, from any thread.
        on_wakeup: called after `wakeup` was set.

    Raises:
        OSError: a sandbox refuses epoll, or no descriptor is left.
    """

    def __init__(self) -> None:
        try:
            self._epoll = select.epoll()
        except OSError as error:
            raise OSError(error.errno, f"the system refuses epoll: {error.strerror}") from None
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._writing: set[int] = set()
        self.on_wakeup: Callable[[], object] = lambda: None
        self.wakeup = Wakeup()
        self.add(self.wakeup.fd, self._wake)

    def fileno(self) -> int:
        """Return the one descriptor: it is readable when something is ready."""
        return self._epoll.fileno()

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back when `fd` is readable or closed by its peer, and when writable, see `set_writing`."""
        if fd not in self._callbacks:
            self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, *fds: int | None) -> None:
        """Forget descriptors, before they are closed; harmless for those that were not added."""
        for fd in fds:
            if fd is not None and self._callbacks.pop(fd, None) is not None:
                self._writing.discard(fd)
                with contextlib.suppress(OSError):  # it is closed already
                    self._epoll.unregister(fd)

    def set_writing(self, fd: int, wanted: bool) -> None:
        """Set whether a descriptor that was added is polled for writing, too."""
        if wanted != (fd in self._writing) and fd in self._callbacks:
            (self._writing.add if wanted else self._writing.discard)(fd)
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def poll(self, timeout: float) -> None:
        """Call back for everything that is ready within `timeout` seconds."""
        for fd, _ in self._epoll.poll(timeout):
            callback = self._callbacks.get(fd)  # an earlier callback may have removed it
            if callback is not None:
                callback()

    def _wake(self) -> None:
        self.wakeup.clear()
        self.on_wakeup()

    def close(self) -> None:
        self._epoll.close()
        self.wakeup.close()
