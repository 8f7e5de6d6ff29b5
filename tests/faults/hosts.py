"""Hosts made of network namespaces: each has its own address, names, packet filter and wire to one switch.

Needs root, `ip` (iproute2) and `nft` (nftables).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

NEW_NET, NEW_MOUNTS = 0x40000000, 0x00020000
BIND, PRIVATE = 0x1000, 0x40000 | 0x4000
NAME = "hub.mesh"
"""Name by which hosts call the one that the hub runs on."""


def can_make_hosts() -> bool:
    """Whether this machine lets us have network namespaces and has the programs for it."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("ip", "nft"))


class Host:
    """One of them; programs and links of this process may be put into it.

    Attributes:
        address: of its one interface. names: its own /etc/hosts.
    """

    def __init__(self, name: str, space: str, address: str, names: Path) -> None:
        self.name = name
        self.space = space
        self.address = address
        self.names = names
        self.know(address)

    def enter(self) -> None:
        """Moves this process there, for good: for the child before it becomes a program."""
        libc = ctypes.CDLL(None, use_errno=True)
        space = os.open(f"/run/netns/{self.space}", os.O_RDONLY | os.O_CLOEXEC)
        names = os.fsencode(self.names)
        failed = (
            libc.setns(space, NEW_NET)
            or libc.unshare(NEW_MOUNTS)
            or libc.mount(b"none", b"/", None, PRIVATE, None)
            or libc.mount(names, b"/etc/hosts", None, BIND, None)
        )
        os.close(space)
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.space)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets and threads that this thread makes meanwhile belong to this host."""
        libc = ctypes.CDLL(None, use_errno=True)
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/run/netns/{self.space}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert libc.setns(there, NEW_NET) == 0
            yield
        finally:
            assert libc.setns(own, NEW_NET) == 0
            os.close(own)
            os.close(there)

    def know(self, address: str) -> None:
        """From now on the hub's name stands for this address; the file stays the one that programs see."""
        self.names.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n", encoding="ascii")

    def plug(self, *, into: bool) -> None:
        """Pulls its plug, or puts it back."""
        run("ip", "-n", self.space, "link", "set", "eth0", "up" if into else "down")

    def move_to(self, address: str) -> None:
        """Gives it another address."""
        run("ip", "-n", self.space, "addr", "flush", "dev", "eth0")
        run("ip", "-n", self.space, "addr", "add", f"{address}/24", "dev", "eth0")
        self.address = address

    def drop(self, *directions: str, percent: int = 100) -> None:
        """From now on packets in these directions, "input" or "output", are dropped; none: all pass again."""
        rules = ["add table inet faults", "delete table inet faults", "add table inet faults"]
        chance = "" if percent == 100 else f"numgen random mod 100 < {percent} "
        for way in directions:
            rules.append(f"add chain inet faults {way} {{ type filter hook {way} priority 0; }}")
            rules.append(f"add rule inet faults {way} oifname != lo iifname != lo {chance}drop")
        run("ip", "netns", "exec", self.space, "nft", "-f", "-", text="\n".join(rules) + "\n")


class Lan:
    """A switch with hosts, 10.77.0.2 and upward."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"tm{os.getpid()}"
        self._spaces: list[str] = []
        self._switch = self._new_space("switch")
        run("ip", "-n", self._switch, "link", "add", "lan", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "lan", "up")

    def host(self, name: str) -> Host:
        """Adds one."""
        space = self._new_space(name)
        number = len(self._spaces)
        run(
            *("ip", "-n", space, "link", "add", "eth0", "type", "veth"),
            *("peer", "name", f"port{number}", "netns", self._switch),
        )
        run("ip", "-n", self._switch, "link", "set", f"port{number}", "master", "lan", "up")
        host = Host(name, space, f"10.77.0.{number}", self._folder / f"{name}.hosts")
        host.move_to(host.address)
        host.plug(into=True)
        return host

    def _new_space(self, name: str) -> str:
        space = f"{self._prefix}-{name}"
        run("ip", "netns", "add", space)
        self._spaces.append(space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        return space

    def close(self) -> None:
        """Takes all of it away; nothing may run there any more."""
        for space in reversed(self._spaces):
            run("ip", "netns", "del", space)


def run(*command: str, text: str = "") -> None:
    """Runs a program that is to succeed at once."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
