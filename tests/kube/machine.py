"""What a cluster could leave on a machine: settings, interfaces, processes, control groups, mounts."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

SYS, CONTROLLERS = Path("/proc/sys"), Path("/sys/fs/cgroup")
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


def network_namespaces() -> str:
    """Those that have a name."""
    line = ["ip", "netns"]
    return subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout
