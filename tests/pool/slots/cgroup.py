"""Control groups for tests: real limits of memory and processes, where this machine lets us set them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.waiting import wait_until

_MOUNT = Path("/sys/fs/cgroup")


class Cgroup:
    """One control group of cgroup v1 or v2.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int) -> None:
        """Move a process in; its later children belong to the group too."""
        (self.folder / "cgroup.procs").write_text(str(pid), encoding="utf-8")

    def count(self) -> int:
        """How many processes are in it."""
        return len((self.folder / "cgroup.procs").read_text(encoding="utf-8").split())

    def memory(self) -> int:
        """Bytes that are used, files' pages among them."""
        files = (self.folder / "memory.current", self.folder / "memory.usage_in_bytes")
        return int(next(filter(Path.exists, files)).read_text(encoding="utf-8"))

    def kills(self) -> int:
        """The number of kills by the kernel here for lack of memory."""
        file = next(filter(Path.exists, (self.folder / "memory.events", self.folder / "memory.oom_control")))
        words = file.read_text(encoding="utf-8").split()
        return int(words[words.index("oom_kill") + 1])

    def set_pids(self, most: int) -> None:
        """Limit the number of processes."""
        (self.folder / "pids.max").write_text(str(most), encoding="utf-8")

    def set_cpus(self, cpus: float) -> None:
        """Limit the CPU time."""
        quota = str(int(cpus * 100_000))
        version_2 = (self.folder / "cpu.max").exists()
        file, text = ("cpu.max", f"{quota} 100000") if version_2 else ("cpu.cfs_quota_us", quota)
        (self.folder / file).write_text(text, encoding="utf-8")

    def set_memory(self, size: int) -> None:
        """Limit the memory, without swap."""
        for name, value in (
            ("memory.max", size),
            ("memory.swap.max", 0),
            ("memory.limit_in_bytes", size),
            ("memory.memsw.limit_in_bytes", size),
        ):
            file = self.folder / name
            if file.exists():
                file.write_text(str(value), encoding="utf-8")


def is_available(controller: str) -> bool:
    """Whether we may make groups of this controller ("cpu", "memory" or "pids")."""
    return _parent(controller) is not None


@contextmanager
def group_of(controller: str) -> Iterator[Cgroup]:
    """Make a group, and remove it at the end, when no process is left in it."""
    parent = _parent(controller)
    assert parent is not None
    group = Cgroup(parent / f"taskmesh-test-{os.getpid()}")
    group.folder.mkdir()
    try:
        yield group
    finally:
        wait_until(lambda: group.count() == 0, 5)
        group.folder.rmdir()


def _parent(controller: str) -> Path | None:
    """The folder in which groups can be made: our own of cgroup v1, or the top of v1 or v2 as we see it."""
    for candidate in (_MOUNT / controller / _own(controller), _MOUNT / controller, _MOUNT):
        enabled = candidate / "cgroup.subtree_control"
        suits = _MOUNT / controller in (candidate, *candidate.parents) or (
            enabled.exists() and controller in enabled.read_text(encoding="utf-8").split()
        )
        if suits and (candidate / "cgroup.procs").exists() and os.access(candidate, os.W_OK):
            return candidate
    return None


def _own(controller: str) -> str:
    """Our own group below cgroup v1's mount: what is put into a group of it stays within our own limits."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""
