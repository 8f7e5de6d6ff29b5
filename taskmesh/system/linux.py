"""Linux's memfd, pidfd, eventfd, epoll and prctl (kernel 5.4 or later)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal

from taskmesh.shm.files import anonymous_file
from taskmesh.system.portable import PipeAlarm
from taskmesh.system.services import READ, WRITE, Alarm

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


class EpollPoller:
    """`system.Poller` over one epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: set[int] = set()

    def fileno(self) -> int:
        """The epoll's descriptor."""
        return self._epoll.fileno()

    def watch(self, fd: int, interest: int) -> None:
        """Watches for EPOLLIN, EPOLLOUT or both."""
        mask = (select.EPOLLIN if interest & READ else 0) | (select.EPOLLOUT if interest & WRITE else 0)
        if fd in self._watched:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
            self._watched.add(fd)

    def forget(self, fd: int) -> None:
        """Takes `fd` out of the epoll."""
        if fd in self._watched:
            self._watched.discard(fd)
            self._epoll.unregister(fd)

    def poll(self, timeout: float) -> list[int]:
        """One epoll_wait."""
        return [fd for fd, _ in self._epoll.poll(timeout)]

    def close(self) -> None:
        """Closes the epoll."""
        self._epoll.close()


class EventAlarm:
    """`system.Alarm` over one eventfd."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The eventfd."""
        return self._fd

    def ring(self) -> None:
        """Adds one to the counter."""
        os.eventfd_write(self._fd, 1)

    def hush(self) -> None:
        """Reads the counter down to zero."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Closes the eventfd."""
        os.close(self._fd)


class Linux:
    """`system.System` with everything that Linux has."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def memory(self, size: int) -> int:
        """A memfd, or an unlinked file where a sandbox refuses those."""
        fd = anonymous_file("taskmesh-outbox", size)
        try:
            os.ftruncate(fd, size)
        except OSError:  # files may not be so large here
            os.close(fd)
            raise
        return fd

    def process(self, pid: int) -> int | None:
        """A pidfd, or None when the process is gone or the kernel's sandbox forbids pidfds."""
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None

    def kill_process(self, handle: int | None) -> bool:
        """pidfd_send_signal: never hits a process that got the same pid later."""
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    def die_with(self, parent: int) -> None:
        """prctl(PR_SET_PDEATHSIG), and a look whether the parent had ended before that."""
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    def name_process(self, name: str) -> None:
        """prctl(PR_SET_NAME); the kernel keeps 15 bytes."""
        self._prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))

    def adopt_orphans(self) -> None:
        """prctl(PR_SET_CHILD_SUBREAPER)."""
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def _prctl(self, option: int, argument: object) -> None:
        self._libc.prctl(option, argument, 0, 0, 0)

    def poller(self) -> EpollPoller:
        """An epoll.

        Raises:
            OSError: a sandbox refuses it. Nothing else has a descriptor of its own to be watched by.
        """
        try:
            return EpollPoller()
        except OSError as error:
            raise OSError(error.errno, f"the system refuses epoll: {error.strerror}") from None

    def alarm(self) -> Alarm:
        """An eventfd, or a pipe where a sandbox refuses those."""
        try:
            return EventAlarm()
        except OSError:
            return PipeAlarm()
