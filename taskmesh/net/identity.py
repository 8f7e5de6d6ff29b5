"""Who this process is, for hellos and status: names, versions, random ids."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time

from taskmesh.config import Config
from taskmesh.core.client import ClientConfig
from taskmesh.core.hub_config import HubConfig
from taskmesh.core.pool_config import PoolConfig

PYTHON = platform.python_version()


def new_client() -> ClientConfig:
    """A client session's settings with a new random id."""
    return ClientConfig(
        client=secrets.randbits(63) | 1, name=f"{socket.gethostname()}:{os.getpid()}", python=PYTHON
    )


def new_epoch() -> int:
    """A hub's epoch: rises from start to start on one machine (milliseconds since 1970)."""
    return time.time_ns() // 1_000_000


def hub_config(config: Config, *, epoch: int) -> HubConfig:
    """The hub machine's settings."""
    hub = config.hub
    return HubConfig(
        epoch=epoch,
        beat=hub.beat,
        lease=hub.lease,
        links_grace=min(1.0, hub.lease / 2),
        result_ttl=hub.result_ttl,
        result_bytes=max(1 << 30, 2 * config.client.max_bytes),  # a cap, and what came after it was reached
        crash_limit=hub.crash_limit,
        max_tasks=hub.max_tasks,
        max_bytes=hub.max_bytes,
        client_max_tasks=max(config.client.max_pending, 1),
        client_max_bytes=max(config.client.max_bytes, 1),
    )


def pool_config(config: Config, *, slots: int, name: str = "") -> PoolConfig:
    """The pool machine's settings, with a new instance number."""
    host = socket.gethostname()
    instance = secrets.randbits(63)
    return PoolConfig(
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
        hello=min(1.0, config.hub.beat),
        grace=config.pool.grace,
    )
