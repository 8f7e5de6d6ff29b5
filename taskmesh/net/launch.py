"""The launched mesh (`hub="process"`): hub and pool in a child process over ipc, for callers that keep the GIL busy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

from taskmesh.config import Config
from taskmesh.errors import HubUnreachable
from taskmesh.net.remote import RemotePort
from taskmesh.ports import OutcomeSink


class LaunchedPort(RemotePort):
    """A SubmitPort that starts its hub, with a pool, as a child process of its own session."""

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
        settings = {"bind": address, "parent": os.getpid(), "config": settings_of(self._config)}
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "taskmesh.net.launched", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            super().start(timeout)
        except HubUnreachable:
            code = self._process.poll()
            self.close(cancel=True, timeout=1.0)
            if code is not None:
                raise HubUnreachable(
                    f"the hub process ended with exit code {code}; see its output above"
                ) from None
            raise

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Says goodbye, ends the child, removes its folder."""
        super().close(cancel=cancel, timeout=timeout)
        if os.getpid() != self._pid:
            return
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


def settings_of(config: Config) -> dict[str, dict[str, object]]:
    """The sections that the child needs, as plain data."""
    return {
        name: {key: list(value) if isinstance(value, tuple) else value for key, value in fields_of(section)}
        for name, section in (("client", config.client), ("hub", config.hub), ("pool", config.pool))
    }


def fields_of(section: object) -> list[tuple[str, object]]:
    """The fields of a frozen section and their values."""
    return [(name, getattr(section, name)) for name in type(section).__dataclass_fields__]  # type: ignore[attr-defined]
