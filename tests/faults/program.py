"""A program of ours as a process: started with captured output, killed, stopped, continued, cut off."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MODULES = str(ROOT)
_PIDFD_GETFD = 438


class Program:
    """One process, in a session of its own, and what it has written.

    Args:
        name: of its output files. line: arguments for the interpreter. environ: over ours.
        prepare: called in the child before the program starts.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        line: Iterable[str],
        environ: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._files = {stream: folder / f"{name}.{stream}" for stream in ("stdout", "stderr")}
        with self._files["stdout"].open("wb") as out, self._files["stderr"].open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *line],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": MODULES, "PYTHONFAULTHANDLER": "1", **(environ or {})},
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509  limits and groups that have to hold from the first instruction
            )
        self.pid = self.process.pid

    # --- what it says -------------------------------------------------------------------------------------

    def text(self, stream: str = "stdout") -> str:
        return self._files[stream].read_text(encoding="utf-8", errors="replace")

    def events(self, stream: str = "stdout") -> list[dict[str, object]]:
        """The JSON lines that it has written."""
        found = []
        for line in self.text(stream).splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found

    def ready(self, timeout: float = 40.0) -> dict[str, object]:
        """Wait until it says that it is ready; return what it says then."""

        def told() -> dict[str, object] | None:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
            return next((event for event in self.events() if event.get("event") == "ready"), None)

        return wait_until(told, timeout, f"{self.name} is ready")

    # --- what is done to it -------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED, 5)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def stop_all(self) -> list[int]:
        """SIGSTOP to it and everything that it has started; returns the processes."""
        self.stop()
        family = [*self.family(), self.pid]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        return family

    def kill(self) -> list[int]:
        """SIGKILL to the process itself, not to what it has started: that is returned."""
        family = self.family()
        self.process.kill()
        self.process.wait(10)
        return family

    def kill_all(self) -> list[int]:
        """SIGKILL to it and everything that it has started, at once; that is returned."""
        family = self.family()
        for pid in [self.pid, *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        return family

    def terminate(self) -> None:
        self.process.terminate()

    def wait(self, timeout: float = 10.0) -> int:
        """Wait for its end; return its exit status."""
        return self.process.wait(timeout)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    # --- what belongs to it -------------------------------------------------------------------------------

    def family(self) -> list[int]:
        """The processes that it has started, directly or not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return []

    def slots(self) -> list[int]:
        """Its slots' processes: the fork server's children that lead a group."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for server in psutil.Process(self.pid).children():
                found += [child.pid for child in server.children() if _leads_group(child.pid)]
        return found

    def rss(self) -> int:
        """Bytes of memory that it has resident."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def reset_connections(self) -> int:
        """Reset every TCP connection of the living process; return how many."""
        return reset_connections(self.pid)

    # --- the end ------------------------------------------------------------------------------------------

    def close(self, *, tell: bool = False) -> None:
        """Kill it and all that belongs to it; with `tell` it first says where each of its threads stands."""
        family = self.family()
        if self.alive and tell:
            self.go_on()
            self.signal(signal.SIGABRT)  # faulthandler writes every thread's stack
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(5)

    def report(self) -> str:
        """What it has written, for a failed test."""
        parts = [
            f"--- {self.name} {stream}:\n{self.text(stream)[-4000:]}"
            for stream in self._files
            if self.text(stream)
        ]
        return "\n".join(parts)


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def reset_connections(pid: int) -> int:
    """Reset every established TCP connection of a living process, and return how many.

    Duplicates its sockets (pidfd_getfd) and disconnects them: the kernel sends RST and throws away what is
    buffered at this end. Needs the right to trace the process, which a parent or root has.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    count = 0
    handle = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                fd = libc.syscall(_PIDFD_GETFD, handle, int(name), 0)
                if fd >= 0:
                    with socket.socket(fileno=fd) as connection:
                        count += _reset(libc, connection)
    finally:
        os.close(handle)
    return count


def can_reset() -> bool:
    """Whether this machine lets a test take a descriptor of its child."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        handle = os.pidfd_open(child.pid)
        fd = ctypes.CDLL(None).syscall(_PIDFD_GETFD, handle, 0, 0)
        os.close(handle)
        if fd >= 0:
            os.close(fd)
    return bool(fd >= 0)


def _reset(libc: ctypes.CDLL, connection: socket.socket) -> bool:
    if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
        return False
    connection.getpeername()  # OSError: not connected
    unspecified = (ctypes.c_char * 16)()  # struct sockaddr with sa_family AF_UNSPEC
    return libc.connect(connection.fileno(), unspecified, 16) == 0
