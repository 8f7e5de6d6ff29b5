"""The client machine's settings, made of the user's."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace

from taskmesh.client.machine.settings import ClientSettings
from taskmesh.config import Config
from taskmesh.system.process import PYTHON, cloudpickle_version


def client_settings(
    config: Config, *, wired: bool = True, slot: str = "", operator: bool = False
) -> ClientSettings:
    """Return a client session's settings, with a new random id.

    Args:
        config: the user's settings.
        wired: True if its hub is another process.
        slot: pool and process of the slot in which this runs, for a task that submits tasks.
        operator: True for a command that asks and steers.
    """
    settings = ClientSettings(
        client=secrets.randbits(63) | 1, name=f"{socket.gethostname()}:{os.getpid()}", python=PYTHON
    )
    if not wired:
        return settings
    return replace(
        settings,
        slot=slot,
        operator=operator,
        cloudpickle=cloudpickle_version(),
        max_payload=config.pool.max_payload,
    )
