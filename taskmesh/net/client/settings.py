"""The client machine's settings."""

from __future__ import annotations

import os
import secrets
import socket

from taskmesh.core.client.settings import ClientSettings
from taskmesh.net.identity import PYTHON


def new_client() -> ClientSettings:
    """A client session's settings with a new random id."""
    return ClientSettings(
        client=secrets.randbits(63) | 1, name=f"{socket.gethostname()}:{os.getpid()}", python=PYTHON
    )
