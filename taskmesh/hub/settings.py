"""The hub machine's settings, made of the user's."""

from __future__ import annotations

import time

from taskmesh.config import Config
from taskmesh.errors import ConfigError
from taskmesh.hub.machine.settings import KEPT_BYTES, HubSettings, Versions
from taskmesh.messages.mesh_messages import PICKLE_PROTOCOL
from taskmesh.system.cgroups import memory_limit
from taskmesh.system.process import PYTHON, cloudpickle_version


def new_epoch() -> int:
    """Return a hub's epoch: it rises from start to start on one machine (milliseconds since 1970)."""
    return time.time_ns() // 1_000_000


def hub_settings(config: Config, *, epoch: int, wired: bool = False) -> HubSettings:
    """Return the hub machine's settings.

    Args:
        config: the user's settings.
        epoch: number of this start, see `new_epoch`.
        wired: True if other processes will talk to the hub.

    Raises:
        ConfigError: it may keep more bytes than there is memory for.
    """
    hub, payloads = config.hub, payload_bytes(config)
    calls = payloads // 2
    return HubSettings(
        epoch=epoch,
        first=not wired,
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
        max_payload=max(1, min(config.pool.max_payload, calls // 2)) if wired else 0,
    )


def payload_bytes(config: Config) -> int:
    """Return the bytes of payloads that a hub may keep: what is set, or half of the memory that it may take.

    The other half is for messages on their way in and out, for the interpreter, and for fragmentation.

    Raises:
        ConfigError: more is set than there is memory for.
    """
    memory = memory_limit()
    if config.hub.max_bytes > memory:
        raise ConfigError(
            f"hub.max_bytes = {config.hub.max_bytes:,}, and this process may take {memory:,} bytes: "
            "the hub would be killed. Leave it out, for half of the memory, or raise the limit (of the "
            "container, or its control group)"
        )
    return config.hub.max_bytes or memory // 2
