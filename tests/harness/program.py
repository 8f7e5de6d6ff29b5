"""A program of ours as a process: started with captured output, killed, stopped, cut off, ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tests.harness import leaks
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEPT = (leaks.MARK,)
READY_S = 40.0
END_S = 15.0
_PIDFD_GETFD = 438


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a program: ours without settings of taskmesh, and with the checkout on the path."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TASKMESH_") or name in KEPT
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "COLUMNS": "200", **(more or {})}


def command(*arguments: str) -> list[str]:
    """The command line of `taskmesh ARGUMENTS`."""
    return [sys.executable, "-m", "taskmesh", *arguments]


def timed_lines(log: str) -> list[tuple[datetime, str]]:
    """Return the lines of a program's log for people: the time that each begins with, and what it says."""
    found = []
    for line in log.splitlines():
        name, time, said = line.split(" ", 2)
        assert name == "taskmesh:", line
        found.append((datetime.fromisoformat(time), said))
    return found


def outcome_of(
    line: Sequence[str],
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 30,
) -> subprocess.CompletedProcess[str]:
    """The result of a command line that ends by itself."""
    return subprocess.run(
        line,
        cwd=folder,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def check_printed(
    text: str,
    folder: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 50,
    python: str = sys.executable,
) -> list[str]:
    """Run a program of a page: it ends well, and prints what its comments behind `print(...)` say.

    Args:
        text: the program.
        folder: where it lies and runs.
        options: of the interpreter.
        env: the environment besides ours.
        timeout: seconds that it may take.
        python: the interpreter.

    Returns:
        The lines that it has printed.
    """
    told = re.findall(r"^ *print\(.*\) +# (.+)$", text, re.MULTILINE)
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    done = outcome_of([python, *options, str(program)], folder, env, timeout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == told
    return told


@contextlib.contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Programs started in this block hear SIGINT and SIGHUP, also where we ignore them ourselves."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    former_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former_hangup)
        signal.signal(signal.SIGINT, former)


class Program:
    """One process, in a session of its own, and what it has written.

    Args:
        name: of its output files. line: arguments for the interpreter. env: over ours.
        prepare: called in the child before the program starts. python: the interpreter.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        line: Iterable[str],
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err, heeding_interrupts():
            self.process = subprocess.Popen(
                [python, *line],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=environment(env),
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509  limits and groups that have to hold from the first instruction
            )
        self.pid = self.process.pid

    # --- what it says -------------------------------------------------------------------------------------

    def text(self, stream: str = "stdout") -> str:
        file = self.out if stream == "stdout" else self.err
        return file.read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return self.text("stderr")

    def events(self, stream: str = "stdout") -> list[dict[str, Any]]:
        """The JSON lines that it has written."""
        found = []
        for line in self.text(stream).splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found

    def ready(self, timeout: float = READY_S) -> dict[str, Any]:
        """Wait for its first line, which says that it is ready; return that line as JSON."""

        def line() -> str:
            ended = self.process.poll()
            first, newline, _ = self.text().partition("\n")
            assert newline or ended is None, f"{self.name} ended with {ended}:\n{self.errors}"
            return first if newline else ""

        found: dict[str, Any] = json.loads(wait_until(line, timeout, f"ready line of {self.name}"))
        assert found.get("event") == "ready", found
        return found

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
        self.process.wait(END_S)
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

    def wait(self, timeout: float = END_S) -> int:
        """Wait for its end; return its exit code."""
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

    def end(self) -> None:
        """End it by SIGTERM, whatever state it is in."""
        if self.alive:
            self.go_on()
            self.terminate()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                for pid in self.slots():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGABRT)  # faulthandler writes every thread's stack
                self.close(tell=True)
                raise AssertionError(f"it does not end:\n{self.report()}") from None

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
            for stream in ("stdout", "stderr")
            if self.text(stream)
        ]
        return "\n".join(parts)


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def exists(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
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
    """Return True if this machine lets a test take a descriptor of its child."""
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
