"""Ways in which a user's program ends: nothing that it has started is there two seconds later."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.program import ROOT, exists, heeding_interrupts
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault

SCRIPT = """
import signal, sys
from taskmesh import Mesh
from tests.faults.workload import misbehave, ordinary, wait_for

log, gate, how, hub = sys.argv[1:]
with Mesh(workers=4, hub=hub) as mesh:
    mesh.submit(misbehave, log, 0, "leave_child").result(30)
    mesh.submit(misbehave, log, 1, "hold_gil", 60.0)
    mesh.submit(wait_for, log, 2, gate)
    mesh.submit(misbehave, log, 3, "ignore_signals").result(30)
    futures = [mesh.submit(ordinary, log, 10 + i, b"", 30.0) for i in range(500)]
    print("ready", flush=True)
    if how == "exception":
        sys.stdin.readline()
        raise LookupError("meant")
    if how == "exit":
        sys.stdin.readline()
        sys.exit(4)
    futures[0].result()
"""
LEFT_AT_MOST = 2.0


class Terminal:
    """A program at a terminal of its own, whose foreground group it is."""

    def __init__(self, line: list[str], folder: Path) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self._master, slave = pty.openpty()
        with heeding_interrupts():
            self.process = subprocess.Popen(
                [sys.executable, *line],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "TEST_PROGRAM_OF_TASKMESH": self.mark,
                    "PYTHON_COLORS": "0",  # Python 3.13 and later paint tracebacks
                },
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  what a terminal does
            )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.shown = ""

    def shows(self, text: str) -> bool:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self.shown += data.decode(errors="replace")
        return text in self.shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def processes(self) -> list[int]:
        """Every live process that the program has started, directly or not, and itself."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self.mark.encode() in Path(f"/proc/{name}/environ").read_bytes() and exists(int(name)):
                    found.append(int(name))
        return found

    def close(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)
        os.close(self._master)


@pytest.fixture
def terminal(hub: str, how: str, tmp_path: Path, gates) -> Iterator[Terminal]:
    """A program that has come as far as its tasks run; `how` it will end, where its `hub` is."""
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    terminal = Terminal([str(script), str(tmp_path / "log"), gates().path, how, hub], tmp_path)
    try:
        wait_until(lambda: terminal.shows("ready") or terminal.process.poll() is not None, 30)
        assert terminal.process.poll() is None, terminal.shown
        assert len(terminal.processes()) > 6
        yield terminal
    finally:
        terminal.close()


def _gone(terminal: Terminal) -> float:
    """Seconds until nothing of the program is left."""
    began = time.monotonic()
    wait_until(lambda: terminal.process.poll() is not None and not terminal.processes(), 10)
    return time.monotonic() - began


@pytest.mark.parametrize(("hub", "how"), [("thread", "wait"), ("process", "wait")])
def test_ctrl_c_at_a_terminal(terminal):
    terminal.type("\x03")

    assert _gone(terminal) < LEFT_AT_MOST
    assert terminal.process.returncode == -signal.SIGINT
    assert terminal.shows("KeyboardInterrupt")
    assert terminal.shown.count("Traceback") == 1, "the caller's; slots are not interrupted"


@pytest.mark.parametrize(("hub", "how"), [("thread", "wait")])
def test_ctrl_c_twice_at_a_terminal(terminal):
    terminal.type("\x03")
    terminal.type("\x03")

    assert _gone(terminal) < LEFT_AT_MOST


@pytest.mark.parametrize(
    ("hub", "how", "status", "words"),
    [
        ("thread", "exception", 1, "LookupError: meant"),
        ("process", "exception", 1, "LookupError: meant"),
        ("thread", "exit", 4, ""),
    ],
)
def test_exception_in_the_with_block(terminal, how, status, words):
    terminal.type("\n")

    assert _gone(terminal) < LEFT_AT_MOST
    assert terminal.process.returncode == status
    assert terminal.shows(words)


@pytest.mark.parametrize(
    ("hub", "how", "number"),
    [
        ("thread", "wait", signal.SIGKILL),
        ("process", "wait", signal.SIGKILL),
        ("thread", "wait", signal.SIGTERM),
    ],
)
def test_killed_by_a_signal(terminal, number):
    os.kill(terminal.process.pid, number)

    assert _gone(terminal) < LEFT_AT_MOST
    assert terminal.process.returncode == -number
