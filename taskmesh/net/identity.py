"""Who this process is, for hellos and status: names, versions, random ids."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import secrets
import socket
import time
from pathlib import Path

from taskmesh.config import Config
from taskmesh.core.client_config import ClientConfig
from taskmesh.core.hub_config import HubConfig
from taskmesh.core.pool_config import PoolConfig
from taskmesh.core.versions import Versions
from taskmesh.wire.messages import PICKLE_PROTOCOL

PYTHON = platform.python_version()


def new_client() -> ClientConfig:
    """A client session's settings with a new random id."""
    return ClientConfig(
        client=secrets.randbits(63) | 1, name=f"{socket.gethostname()}:{os.getpid()}", python=PYTHON
    )


def new_epoch() -> int:
    """A hub's epoch: rises from start to start on one machine (milliseconds since 1970)."""
    return time.time_ns() // 1_000_000


@functools.cache
def cloudpickle_version() -> str:
    """The version of the cloudpickle that is installed, read from its source: loading it is slow."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", Path(spec.origin).read_text(encoding="utf-8"))
        return found.group(1) if found else ""
    return ""


def hub_config(config: Config, *, epoch: int, wired: bool = False) -> HubConfig:
    """The hub machine's settings; `wired`: others than this process will talk to it."""
    hub = config.hub
    return HubConfig(
        epoch=epoch,
        beat=hub.beat,
        lease=hub.lease,
        links_grace=min(1.0, hub.lease / 2),
        client_silence=max(60.0, 2 * hub.lease),  # a pool and its tasks may stand still for a lease
        result_ttl=hub.result_ttl,
        result_bytes=max(1 << 30, 2 * config.client.max_bytes),  # a cap, and what came after it was reached
        crash_limit=hub.crash_limit,
        max_tasks=hub.max_tasks,
        max_bytes=hub.max_bytes,
        client_max_tasks=max(config.client.max_pending, 1),
        client_max_bytes=max(config.client.max_bytes, 1),
        versions=Versions(PYTHON, PICKLE_PROTOCOL, cloudpickle_version() if wired else ""),
        policy=hub.versions,
        max_pools=hub.max_pools,
        max_clients=hub.max_clients,
        key_sessions=hub.key_sessions,
        max_payload=config.pool.max_payload if wired else 0,
    )


def pool_config(config: Config, *, slots: int, name: str = "", wired: bool = False) -> PoolConfig:
    """The pool machine's settings, with a new instance number; `wired`: its hub is another process."""
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
        hello=min(0.2 if wired else 1.0, config.hub.beat),
        grace=config.pool.grace,
        cloudpickle=cloudpickle_version() if wired else "",
    )
