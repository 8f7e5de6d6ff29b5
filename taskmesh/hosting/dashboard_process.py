"""A dashboard in a child process, of a mesh that is its own hub, and of `taskmesh up --dashboard`.

It asks the hub at its private gateway, and ends when this process does, or when it is told to.
"""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys

from taskmesh.errors import ConfigError, TaskMeshError, missing_extra
from taskmesh.hosting.child_hub import end
from taskmesh.system.clock import monotonic
from taskmesh.system.process import interpreter_command, provided, start_in_session

EXTRA = ("starlette", "uvicorn")
PATIENCE = 20.0
"""Seconds that it may take to listen."""
LONGEST_REPORT = 10_000


def check_extra() -> None:
    """Refuse where the packages of the extra are missing.

    Raises:
        ConfigError: one is.
    """
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(missing_extra("the dashboard", ", ".join(missing), "dashboard"))


class DashboardProcess:
    """A dashboard, started.

    Args:
        gateway: the address of the hub's private gateway.

    Attributes:
        report: the descriptor on which it tells its address, or why it ends.

    Raises:
        ConfigError: the extra is not installed.
        TaskMeshError: the system has no process for it.
    """

    def __init__(self, gateway: str) -> None:
        check_extra()
        self.report, theirs = os.pipe()
        until, self._life = os.pipe()  # it ends when nobody can write there any more
        self._url = ""
        self._pid = os.getpid()
        code = f"from taskmesh.dashboard.program import serve; serve({gateway!r}, {theirs}, {until})"
        line = interpreter_command(code, "taskmesh:dashboard", sys.path)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with provided("no dashboard can be started"):
                self._process = start_in_session(line, [theirs, until])
        except BaseException:
            self.end()
            raise
        finally:
            os.close(theirs)
            os.close(until)

    def url(self, timeout: float = PATIENCE) -> str:
        """Return the address of its page, once it listens.

        Raises:
            TaskMeshError: it does not come up.
        """
        told, until = b"", monotonic() + timeout
        readable = select.poll()
        readable.register(self.report, select.POLLIN)
        while not self._url:
            ready = readable.poll(max(0.0, until - monotonic()) * 1000)
            part = os.read(self.report, LONGEST_REPORT) if ready else b""
            told += part
            if not part:
                why = told.decode(errors="replace").strip() or "see what it wrote"
                raise TaskMeshError(f"the dashboard does not come up: {why}")
            if told.endswith(b"\n"):
                self._url = told.decode().strip()
        return self._url

    def end(self) -> None:
        """End it, if this is the process that has started it."""
        process, self._process = self._process, None
        for fd in (self._life, self.report) if self._life >= 0 else ():
            os.close(fd)
        self._life = self.report = -1
        if process is not None:
            if os.getpid() == self._pid:
                end(process)
            else:
                process.returncode = 0  # it is not this process's child
