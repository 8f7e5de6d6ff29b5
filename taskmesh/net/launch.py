"""The launched mesh (`hub="process"`): hub and pool in a child, for callers that keep the GIL busy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict

from taskmesh.config import Config
from taskmesh.errors import HubUnreachable
from taskmesh.net.remote import RemotePort
from taskmesh.ports import OutcomeSink

SECTIONS = ("client", "hub", "pool")
"""What the child needs to know of the configuration."""
DYING = 2.0
"""Seconds that the child has to end when it is told to."""


class LaunchedPort(RemotePort):
    """A SubmitPort that starts its hub, with a pool, as a child process of a session of its own."""

    def __init__(self, sink: OutcomeSink, config: Config) -> None:
        super().__init__(sink, config)
        self._config = config
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float) -> None:
        """Starts the child and dials it.

        Raises:
            HubUnreachable: the child did not come up within `timeout` seconds.
        """
        self._folder = tempfile.mkdtemp(prefix="taskmesh-")
        address = f"ipc://{self._folder}/hub"
        self._addresses = [address]
        self._process = subprocess.Popen(
            command(self._config, address), stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            super().start(timeout)
        except HubUnreachable:
            code = self._end_child()
            if code > 0:
                text = f"the hub process ended with exit code {code}; see what it wrote"
                raise HubUnreachable(text) from None
            raise

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Says goodbye, ends the child, removes its folder."""
        super().close(cancel=cancel, timeout=timeout)
        if os.getpid() == self._pid:
            self._end_child()

    def _end_child(self) -> int:
        """Ends the child if it still runs; returns its exit code."""
        process, self._process = self._process, None
        folder, self._folder = self._folder, ""
        code = 0
        if process is not None:
            process.terminate()
            try:
                code = process.wait(DYING)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        return code

    def forked(self) -> None:
        """In a forked child: closes this port's descriptors; hub process and folder are the parent's."""
        super().forked()
        process, self._process = self._process, None
        self._folder = ""
        if process is not None:
            process.returncode = 0  # it is not this process's child


def command(config: Config, address: str) -> list[str]:
    """The child's command line: an interpreter with our own one's options and module search path."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    settings = {name: asdict(getattr(config, name)) for name in SECTIONS}
    code = (
        f"__import__('sys').path[:] = {sys.path!r}; "
        "from taskmesh.net.launched import serve; "
        f"serve({settings!r}, {address!r}, {os.getpid()})"
    )
    return [sys.executable, *options, "-c", code, "taskmesh:hub"]
