"""What a cluster could leave on a machine: settings, interfaces, processes, control groups, mounts."""

import contextlib
import functools
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tests.harness.waiting import wait_until

SYS, CONTROLLERS = Path("/proc/sys"), Path("/sys/fs/cgroup")
OLD = 600
"""Seconds after which a pod's network that nobody is in counts as left behind."""
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
"""Kernel settings that the kubelet changes for the whole machine."""


@dataclass(frozen=True)
class Machine:
    """What everybody on the machine sees, at one moment."""

    settings: dict[str, str]
    interfaces: frozenset[str]
    rules: str

    @classmethod
    def now(cls) -> Self:
        """Looks."""
        settings = {name: (SYS / name).read_text() for name in SETTINGS}
        return cls(settings, frozenset(psutil.net_if_addrs()), rules())

    def restore(self) -> None:
        """Sets the settings as they were."""
        for name, value in self.settings.items():
            (SYS / name).write_text(value)


def rules() -> str:
    """The packet filter's rules, where there is a program that shows them."""
    shown = [
        subprocess.run(program, capture_output=True, text=True, timeout=10, check=False).stdout
        for program in (["nft", "list", "ruleset"], ["iptables-save"])
        if shutil.which(program[0])
    ]
    return "\n".join(line for line in "\n".join(shown).splitlines() if not line.startswith((":", "#")))


def processes(folder: Path) -> Iterator[str]:
    """The command lines of what runs in a folder, or names it."""
    for process in psutil.process_iter():
        try:
            line, where = " ".join(process.cmdline()), process.cwd()
        except psutil.Error:
            continue
        if str(folder) in line + where:
            yield line


def groups(name: str) -> list[Path]:
    """Control groups of a name."""
    return list(CONTROLLERS.glob(f"*/{name}*"))


def mounts(folder: Path) -> list[str]:
    """What is mounted in a folder, the innermost first."""
    found = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((each for each in found if each.startswith(str(folder))), reverse=True)


def unmount(folder: Path) -> None:
    """Unmounts whatever is mounted in a folder."""
    for mount in mounts(folder):
        subprocess.run(f"umount --lazy {mount}".split(), check=False, capture_output=True, timeout=10)


def remove_groups(name: str) -> None:
    """Removes control groups and those below them; their processes must be ending."""
    for top in groups(name):
        for group in sorted((top, *top.rglob("*")), reverse=True):
            if group.is_dir():
                wait_until(functools.partial(_removed, group), 10, f"{group} is empty")


def _removed(group: Path) -> bool:
    """Whether a control group is gone; it cannot go while a process is in it."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def network_namespaces() -> list[str]:
    """Those that have a name."""
    return [line.split()[0] for line in _told("ip netns").splitlines()]


def remove_network(name: str) -> None:
    """Removes a network namespace, and with it the interfaces in it."""
    subprocess.run(f"ip netns delete {name}".split(), check=False, timeout=10)


def sweep(prefix: str) -> None:
    """Takes away what runs that were killed have left: those of PREFIX-PID whose process is gone."""
    for name in network_namespaces():
        owner = name.removeprefix(f"{prefix}-")
        if owner == name or not owner.isdigit() or psutil.pid_exists(int(owner)):
            continue
        left = [psutil.Process(int(pid)) for pid in _told(f"ip netns pids {name}").split()]
        folders = {each.cwd() for each in left}
        held = [file for top in groups(name) for file in top.rglob("cgroup.procs")]
        left += [psutil.Process(int(pid)) for file in held for pid in file.read_text().split()]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, 10)
        for folder in folders - {"/"}:
            unmount(Path(folder))
        remove_groups(name)
        remove_network(name)
    for name in network_namespaces():  # of pods, whose cluster was killed
        old = time.time() - Path("/run/netns", name).stat().st_mtime > OLD
        if name.startswith("cni-") and old and not _told(f"ip netns pids {name}"):
            remove_network(name)


def _told(line: str) -> str:
    return subprocess.run(line.split(), capture_output=True, text=True, timeout=10, check=True).stdout
