"""A hub in a child process (`hub="process"`), for callers that keep the GIL busy: port and main function.

The child runs a hub with a pool, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from taskmesh.client.port.remote_port import RemotePort
from taskmesh.client.port.shell import OpenTasks
from taskmesh.config import Config, load
from taskmesh.errors import HubUnreachable, TaskMeshError
from taskmesh.link.endpoints import Endpoints, check_local, private_folder
from taskmesh.security.keys import HUB
from taskmesh.system.loop import Loop
from taskmesh.system.process import interpreter_command, provided, start_in_session

SECTIONS = ("client", "hub", "pool")
"""Sections of the configuration that the child needs."""
DYING = 2.0
"""Seconds that the child has to end after SIGTERM."""
ADDRESS = "address"
"""The file in the folder in which the child says where it listens for others: it has chosen port 0 itself."""
_LONGEST_REPORT = 10_000


class ChildHubPort(RemotePort):
    """A SubmitPort that starts its hub, with a pool, as a child process in a session of its own."""

    def __init__(self, open_tasks: OpenTasks, config: Config) -> None:
        if not config.mesh.bind:  # nobody shows it a key: it is over ipc, in a private folder
            config = replace(config, mesh=replace(config.mesh, keys=""))
        super().__init__(open_tasks, config, role=HUB)
        if config.mesh.bind:
            check_local(config.mesh.bind, "binding", keys=bool(config.mesh.keys))
        self._config = config
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._report = -1  # on it the child writes why it ends; it is closed when the child ends

    def start(self, timeout: float) -> None:
        """Start the child and dial it.

        Raises:
            HubUnreachable: the child did not come up within `timeout` seconds.
            ConfigError: there is no folder for its sockets.
            TaskMeshError: the system has no process or the like for it.
        """
        self._folder, endpoints = private_folder()
        self._address = endpoints.gateway
        try:
            with provided():
                self._launch(endpoints.gateway)
            super().start(timeout)
            if self._config.mesh.bind:
                self.address = (Path(self._folder) / ADDRESS).read_text(encoding="utf-8")
        except BaseException:
            self.close(cancel=True, timeout=DYING)  # the thread first: it would report the child's end
            raise

    def gateway(self, timeout: float) -> str:
        """Return the address of its hub; see SubmitPort."""
        return self._address

    def _launch(self, gateway: str) -> None:
        self._report, theirs = os.pipe()
        try:
            line = command(self._config, gateway, self._folder, theirs)
            self._process = start_in_session(line, [theirs])
        finally:
            os.close(theirs)

    def _watch_more(self, loop: Loop) -> None:
        loop.watch(self._report, self._on_child_end)

    def _on_child_end(self) -> None:
        """End the loop: the hub is gone, with its tasks, and nobody can answer any more.

        Raises:
            HubUnreachable: always, unless this port has ended the child itself.
        """
        process = self._process
        if self._closing.is_set():
            return
        reason = os.read(self._report, _LONGEST_REPORT).decode(errors="replace") or "see what it wrote"
        code = process.wait(DYING) if process is not None else None
        raise HubUnreachable(f"the hub process of this mesh ended with exit code {code}: {reason}")

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Say goodbye, end the child, remove its folder."""
        try:
            super().close(cancel=cancel, timeout=timeout)
        finally:
            if os.getpid() == self._pid:
                self._end_child()

    def _end_child(self) -> None:
        """End the child and remove its folder, even if Ctrl-C comes once more meanwhile."""
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
        """Close this port's descriptors in a forked child; hub process and folder are the parent's."""
        super().forked()
        self._close_report()
        process, self._process = self._process, None
        self._folder = ""
        if process is not None:
            process.returncode = 0  # it is not this process's child


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a child, kill it when it takes too long or this is interrupted, and reap it."""
    try:
        process.terminate()
        process.wait(DYING)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()  # nothing happens to a process that has been waited for
        process.wait()


def command(config: Config, address: str, folder: str, report: int) -> list[str]:
    """Return the child's command line: an interpreter with our own one's options and module search path.

    Args:
        config: the user's settings.
        address: the gateway's address.
        folder: the folder of its sockets.
        report: the descriptor on which it writes why it ends.
    """
    mesh = config.mesh
    settings = {name: asdict(getattr(config, name)) for name in SECTIONS}
    settings["mesh"] = {"open_timeout": mesh.open_timeout, "bind": mesh.bind, "local_pool": mesh.local_pool}
    if mesh.bind:
        settings["mesh"]["keys"] = mesh.keys
    code = (
        "from taskmesh.hosting.child_hub import serve; "
        f"serve({settings!r}, {address!r}, {folder!r}, {os.getpid()}, {report})"
    )
    return interpreter_command(code, "taskmesh:hub", sys.path)


def serve(
    settings: dict[str, dict[str, object]], address: str, folder: str, parent: int, report: int = -1
) -> None:
    """Run a hub with a pool: the child's main function.

    Args:
        settings: sections of the configuration.
        address: the address of the gateway for the parent.
        folder: the folder of its sockets; removed in the end, because the parent may be gone by then.
        parent: the process that this one ends with.
        report: a descriptor on which the reason of the end is written; it is closed in any case.
    """
    from taskmesh.hosting.local_pool import LocalPool
    from taskmesh.hub.program import run_hub

    if report >= 0:
        os.set_inheritable(report, False)
    config = load(settings, environ={})

    def ready(endpoints: Endpoints) -> None:
        (Path(folder) / ADDRESS).write_text(endpoints.gateway, encoding="utf-8")

    try:
        bind = config.mesh.bind
        run_hub(
            config,
            bind or address,
            ready=ready,
            record=lambda kind, fields: None,
            start_pool=partial(LocalPool, config, name="local") if config.mesh.local_pool else None,
            parent=parent,
            private=address if bind else "",
        )
    except TaskMeshError as error:
        if report >= 0:
            with contextlib.suppress(OSError):  # the parent is gone
                os.write(report, str(error).encode(errors="backslashreplace"))
        sys.exit(f"taskmesh: the hub process of a mesh cannot go on: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
