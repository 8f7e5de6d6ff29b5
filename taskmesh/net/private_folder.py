"""Where the sockets of a hub are that serves one user's program alone."""

from __future__ import annotations

import os
import tempfile

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import IPC, Endpoints


def private_folder() -> tuple[str, Endpoints]:
    """A new folder that only this user can enter, and the endpoints of a hub in it.

    Raises:
        ConfigError: there is none where temporary files go, or its path is of no use for sockets.
    """
    try:
        folder = tempfile.mkdtemp(prefix="taskmesh-")
    except OSError as error:
        raise ConfigError(f"no folder for sockets: {error}: set TMPDIR to one that can be written") from None
    try:
        return folder, Endpoints.of(f"{IPC}{folder}/hub")
    except ConfigError as error:
        os.rmdir(folder)
        raise ConfigError(f"{error}: set TMPDIR to one") from None
