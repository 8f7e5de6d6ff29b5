"""POSIX alone: unlinked files, pipes, `selectors`. Deaths are told by sockets' ends and the parent's id."""

from __future__ import annotations

import contextlib
import os
import selectors

from taskmesh.shm.files import unlinked_file
from taskmesh.system.services import READ, WRITE


class SelectorPoller:
    """`system.Poller` over the platform's best selector that has a descriptor of its own (epoll, kqueue)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def fileno(self) -> int:
        """The selector's descriptor."""
        fd: int = self._selector.fileno()  # epoll, kqueue and /dev/poll have one
        return fd

    def watch(self, fd: int, interest: int) -> None:
        """Registers or changes `fd`."""
        events = (selectors.EVENT_READ if interest & READ else 0) | (
            selectors.EVENT_WRITE if interest & WRITE else 0
        )
        if fd in self._selector.get_map():
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)

    def forget(self, fd: int) -> None:
        """Unregisters `fd`."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float) -> list[int]:
        """One select()."""
        return [key.fd for key, _ in self._selector.select(timeout)]

    def close(self) -> None:
        """Closes the selector."""
        self._selector.close()


class PipeAlarm:
    """`system.Alarm` over a pipe."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """The pipe's reading end."""
        return self._reader

    def ring(self) -> None:
        """Writes a byte; a full pipe rings already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def hush(self) -> None:
        """Empties the pipe."""
        try:
            while len(os.read(self._reader, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Closes both ends."""
        os.close(self._reader)
        os.close(self._writer)


class Portable:
    """`system.System` for any POSIX system."""

    def memory(self, size: int) -> int:
        """An unlinked temporary file, in memory where /dev/shm is."""
        return unlinked_file(size)

    def process(self, pid: int) -> int | None:
        """Always None: deaths are told by the fork server's waitpid alone."""
        return None

    def kill_process(self, handle: int | None) -> bool:
        """Always False: the fork server kills by process id."""
        return False

    def die_with(self, parent: int) -> None:
        """Only looks whether the parent has ended: the supervisor kills what the fork server leaves."""
        if os.getppid() != parent:
            os._exit(1)  # noqa: TID251  a forked child whose fork server is gone has nothing to clean up

    def name_process(self, name: str) -> None:
        """Has no portable way."""

    def adopt_orphans(self) -> None:
        """Has no portable way: init reaps them."""

    def poller(self) -> SelectorPoller:
        """A selector."""
        return SelectorPoller()

    def alarm(self) -> PipeAlarm:
        """A pipe."""
        return PipeAlarm()
