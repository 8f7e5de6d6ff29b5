"""A real redis-server of a test's own, on an ephemeral port of 127.0.0.1 or a socket in the file system."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_ports
from tests.harness.requirement import require
from tests.harness.waiting import wait_until


def redis_client() -> Any:
    """The package redis, or a skip."""
    try:
        import redis
    except ImportError:
        return require(None, "the Python package redis: `make test` installs it")
    return redis


class RedisServer:
    """One server, which may be killed, stopped and started again on the same port with what it has saved."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        program = shutil.which("redis-server")
        require(program, "redis-server: apt install redis-server")
        self.folder = folder / "redis"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)
        self.path = self.folder / "socket"
        self.password = password
        self._line = [
            str(program),
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
        ]
        self._line += ["--unixsocket", str(self.path), "--save", "", "--appendonly", "no", *options]
        if password:
            (self.folder / "conf").write_text(f"requirepass {password}\n")
            self._line.insert(1, str(self.folder / "conf"))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def full_url(self) -> str:
        """With the password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._line, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._answers, 10, "redis-server answers")

    def _answers(self) -> bool:
        redis = redis_client()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False

    def client(self) -> Any:
        """Somebody else's way to it."""
        redis = redis_client()
        return redis.Redis(port=self.port, password=self.password or None, socket_timeout=5, protocol=2)

    def stored(self) -> list[bytes]:
        """What the mesh has there."""
        with self.client() as client:
            return sorted(client.scan_iter("taskmesh:*"))

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


def serving(folder: Path, *options: str, password: str = "") -> Iterator[RedisServer]:
    """For fixtures: a server of one test."""
    redis_client()
    server = RedisServer(folder, *options, password=password)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def server(tmp_path: Path, processes: None) -> Iterator[RedisServer]:
    """A Redis server."""
    yield from serving(tmp_path)


@pytest.fixture
def locked(tmp_path: Path, processes: None) -> Iterator[RedisServer]:
    """One that asks for a password."""
    yield from serving(tmp_path, password="right-and-secret")  # noqa: S106
