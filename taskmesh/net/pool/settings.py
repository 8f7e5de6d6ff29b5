"""The pool machine's settings, made of the user's."""

from __future__ import annotations

import os
import secrets
import socket

from taskmesh.config import Config
from taskmesh.core.pool.settings import PoolSettings
from taskmesh.net.identity import PYTHON, cloudpickle_version


def pool_config(config: Config, *, slots: int, name: str = "", wired: bool = False) -> PoolSettings:
    """The pool machine's settings, with a new instance number; `wired`: its hub is another process."""
    host = socket.gethostname()
    instance = secrets.randbits(63)
    return PoolSettings(
        pool=name or f"{host}-{os.getpid()}-{instance & 0xFFFF:04x}",
        instance=instance,
        slots=slots,
        queues=config.pool.queues,
        tags=config.pool.tags,
        python=PYTHON,
        host=host,
        pid=os.getpid(),
        beat=config.hub.beat,
        lease=config.hub.lease,
        hello=min(0.2 if wired else 1.0, config.hub.beat),
        grace=config.pool.grace,
        cloudpickle=cloudpickle_version() if wired else "",
        outlives=wired,
    )
