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

from taskmesh.cgroups import memory_limit
from taskmesh.config import Config
from taskmesh.core.client_config import ClientSettings
from taskmesh.core.hub_config import HubSettings
from taskmesh.core.memory import KEPT_BYTES
from taskmesh.core.pool_config import PoolSettings
from taskmesh.core.versions import Versions
from taskmesh.errors import ConfigError
from taskmesh.wire.messages import PICKLE_PROTOCOL

PYTHON = platform.python_version()


def new_client() -> ClientSettings:
    """A client session's settings with a new random id."""
    return ClientSettings(
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


def hub_config(config: Config, *, epoch: int, wired: bool = False) -> HubSettings:
    """The hub machine's settings; `wired`: others than this process will talk to it.

    Raises:
        ConfigError: it may keep more than there is memory for.
    """
    hub, payloads = config.hub, payload_bytes(config)
    calls = payloads // 2
    return HubSettings(
        epoch=epoch,
        beat=hub.beat,
        lease=hub.lease,
        links_grace=min(1.0, hub.lease / 2),
        client_silence=max(60.0, 2 * hub.lease),  # a pool and its tasks may stand still for a lease
        result_ttl=hub.result_ttl,
        result_bytes=payloads * 3 // 16,  # and as much for results that nobody asks for after a restart
        spec_bytes=min(256 << 20, payloads // 16),
        kept_bytes=min(KEPT_BYTES, payloads // 16),
        arriving_bytes=payloads // 8 if wired else 0,
        crash_limit=hub.crash_limit,
        pool_loss_limit=hub.pool_loss_limit,
        max_tasks=hub.max_tasks,
        max_bytes=calls,
        client_max_tasks=max(config.client.max_pending, 1),
        client_max_bytes=max(min(config.client.max_bytes, calls), 1),
        versions=Versions(PYTHON, PICKLE_PROTOCOL, cloudpickle_version() if wired else ""),
        policy=hub.versions,
        max_pools=hub.max_pools,
        max_clients=hub.max_clients,
        key_sessions=hub.key_sessions,
        max_payload=max(1, min(config.pool.max_payload, calls // 2)) if wired else 0,
    )


def payload_bytes(config: Config) -> int:
    """Bytes of payloads that a hub may keep: what is set, or half of the memory that it may take.

    The other half is for what is on its way in and out, for the interpreter, and for what memory is lost to.

    Raises:
        ConfigError: more is set than there is memory for.
    """
    memory = memory_limit()
    if config.hub.max_bytes > memory:
        raise ConfigError(
            f"hub.max_bytes = {config.hub.max_bytes:,}, and this process may take {memory:,} bytes: "
            "the hub would be killed. Cure: leave it out, for half of the memory, or raise the limit (of the "
            "container, or its control group)"
        )
    return config.hub.max_bytes or memory // 2


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
