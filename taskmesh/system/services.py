"""What the pool needs of the operating system beyond POSIX, as a Protocol with two implementations.

`TASKMESH_OS=portable` chooses the one without memfd, pidfd, eventfd and prctl, for systems that lack them and
for testing on those that do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

READ, WRITE = 1, 2
"""What a poller watches a descriptor for."""


class Poller(Protocol):
    """Waits for many descriptors; itself one descriptor that is readable when one of them is ready."""

    def fileno(self) -> int:
        """The descriptor to watch for reading in another loop."""
        ...

    def watch(self, fd: int, interest: int) -> None:
        """Watches `fd` for READ, WRITE or both, in place of what it was watched for before."""
        ...

    def forget(self, fd: int) -> None:
        """No longer watches `fd`; harmless when it was not watched."""
        ...

    def poll(self, timeout: float) -> Iterable[int]:
        """The descriptors that are ready, or closed at the other end, within `timeout` seconds."""
        ...

    def close(self) -> None:
        """Closes the poller's own descriptor."""
        ...


class Alarm(Protocol):
    """A descriptor that any thread can make readable."""

    def fileno(self) -> int:
        """The descriptor to watch for reading."""
        ...

    def ring(self) -> None:
        """Makes it readable."""
        ...

    def hush(self) -> None:
        """Takes every ring so far back."""
        ...

    def close(self) -> None:
        """Closes the descriptors."""
        ...


class System(Protocol):
    """One operating system's way to memory, processes and waiting."""

    def memory(self, size: int) -> int:
        """A descriptor of `size` bytes of shared memory, zero-filled, that no file system path names."""
        ...

    def process(self, pid: int) -> int | None:
        """A descriptor that is readable once process `pid` has ended; None where there is no such thing."""
        ...

    def kill_process(self, handle: int | None) -> bool:
        """SIGKILLs the process of a descriptor given by `process`; False when that cannot be done."""
        ...

    def die_with(self, parent: int) -> None:
        """The calling process is SIGKILLed when its parent `parent` ends, or at once if it has ended."""
        ...

    def name_process(self, name: str) -> None:
        """The calling process's name in `ps` and `top`, as far as the system has such a thing."""
        ...

    def adopt_orphans(self) -> None:
        """Orphaned descendants of the calling process become its children, so that it can reap them."""
        ...

    def poller(self) -> Poller:
        """A new poller."""
        ...

    def alarm(self) -> Alarm:
        """A new alarm."""
        ...
