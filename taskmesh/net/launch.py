"""The launched mesh (`hub="process"`): hub and pool in a child, for callers that keep the GIL busy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

from taskmesh.config import Config
from taskmesh.errors import HubUnreachable
from taskmesh.net.client.port import provided
from taskmesh.net.client.ports import OutcomeSink
from taskmesh.net.client.remote import RemotePort
from taskmesh.net.private_folder import private_folder
from taskmesh.system.loop import Loop
from taskmesh.system.process import interpreter, started

SECTIONS = ("client", "hub", "pool")
"""What the child needs to know of the configuration."""
DYING = 2.0
"""Seconds that the child has to end when it is told to."""
_LONGEST_REPORT = 10_000


class LaunchedPort(RemotePort):
    """A SubmitPort that starts its hub, with a pool, as a child process of a session of its own."""

    def __init__(self, sink: OutcomeSink, config: Config) -> None:
        super().__init__(
            sink, replace(config, mesh=replace(config.mesh, keys=""))
        )  # over ipc, in a private folder
        self._config = config
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._report = -1  # where the child says why it ends, and whose end is its end

    def start(self, timeout: float) -> None:
        """Starts the child and dials it.

        Raises:
            HubUnreachable: the child did not come up within `timeout` seconds.
            ConfigError: there is no folder for its sockets.
            TaskMeshError: the system has no process or the like for it.
        """
        self._folder, endpoints = private_folder()
        self._addresses = [endpoints.gateway]
        try:
            with provided():
                self._launch(endpoints.gateway)
            super().start(timeout)
        except BaseException:
            self.close(cancel=True, timeout=DYING)  # the thread first: it would tell the child's end
            raise

    def _launch(self, gateway: str) -> None:
        self._report, theirs = os.pipe()
        try:
            line = command(self._config, gateway, self._folder, theirs)
            self._process = started(line, [theirs])
        finally:
            os.close(theirs)

    def _watch_more(self, loop: Loop) -> None:
        loop.watch(self._report, self._child_ended)

    def _child_ended(self) -> None:
        """The hub is gone, with what it had: nobody can answer any more.

        Raises:
            HubUnreachable: always, unless we have ended it ourselves.
        """
        process = self._process
        if self._closing.is_set():
            return
        why = os.read(self._report, _LONGEST_REPORT).decode(errors="replace") or "see what it wrote"
        code = process.wait(DYING) if process is not None else None
        raise HubUnreachable(f"the hub process of this mesh ended with exit code {code}: {why}")

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Says goodbye, ends the child, removes its folder."""
        try:
            super().close(cancel=cancel, timeout=timeout)
        finally:
            if os.getpid() == self._pid:
                self._end_child()

    def _end_child(self) -> None:
        """Ends the child and removes its folder, also when Ctrl-C strikes once more meanwhile."""
        process, self._process = self._process, None
        folder, self._folder = self._folder, ""
        self._close_report()
        try:
            if process is not None:
                end(process)
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _close_report(self) -> None:
        report, self._report = self._report, -1
        if report >= 0:
            os.close(report)

    def forked(self) -> None:
        """In a forked child: closes this port's descriptors; hub process and folder are the parent's."""
        super().forked()
        self._close_report()
        process, self._process = self._process, None
        self._folder = ""
        if process is not None:
            process.returncode = 0  # it is not this process's child


def end(process: subprocess.Popen[bytes]) -> None:
    """Tells a child to end, kills it when it takes too long or we are interrupted, and reaps it."""
    try:
        process.terminate()
        process.wait(DYING)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()  # nothing happens to one that has been waited for
        process.wait()


def command(config: Config, address: str, folder: str, report: int) -> list[str]:
    """The child's command line: an interpreter with our own one's options and module search path.

    Args:
        report: the descriptor to which it writes why it ends.
    """
    config = replace(config, hub=replace(config.hub, store="", store_file=""))  # it ends with its one client
    settings = {name: asdict(getattr(config, name)) for name in SECTIONS}
    settings["mesh"] = {"open_timeout": config.mesh.open_timeout}
    code = (
        "from taskmesh.net.launched import serve; "
        f"serve({settings!r}, {address!r}, {folder!r}, {os.getpid()}, {report})"
    )
    return interpreter(code, "taskmesh:hub", sys.path)
