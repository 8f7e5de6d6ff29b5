"""The settings of a simulated world's processes: short times; small caps in some seeds."""

from __future__ import annotations

import random
from dataclasses import replace

from taskmesh.client.machine.settings import ClientSettings
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.pool.machine.settings import PoolSettings

BEAT = 0.5
LEASE = 3.0
LIMITS = (35, 38)
"""Bytes of a call or result that a hub takes that has a limit: most tasks have less."""
QUEUES = (("default", "a", "b"), ("default", "a"), ("default", "b"), ("default",), ("default", "b"))
TAGS = (("gpu",), (), ("gpu",), (), ("large",))


def pools_of(seed: int) -> int:
    """How many there are in a world."""
    return len(QUEUES) if seed % 7 == 4 else 3


def has_journal(seed: int) -> bool:
    """Return True if the hub of a world has a journal."""
    return seed % 7 in (0, 3)


def has_sinks(seed: int) -> bool:
    """Return True if clients of a world take from sinks."""
    return seed % 11 in (4, 6)


def has_values(seed: int) -> bool:
    """Return True if clients of a world put values into its sinks."""
    return has_sinks(seed) and seed // 11 % 2 == 1


def hub_config(chance: random.Random) -> HubSettings:
    """The hub's."""
    tight, full = chance.random() < 0.2, chance.random() < 0.2
    return HubSettings(
        epoch=1,
        beat=BEAT,
        lease=LEASE,
        links_grace=0.5,
        client_grace=2.0,
        client_silence=6.0,
        # A client that is gone for good takes no results: they are dropped then, and its tasks go on
        result_ttl=12.0 if full else 600.0,
        client_max_bytes=100_000 if full else 1 << 30,
        client_max_tasks=40 if tight else 100_000,
        max_tasks=70 if tight else 100_000,
        spec_bytes=6000 if chance.random() < 0.2 else 1 << 20,
        max_payload=chance.choice(LIMITS) if chance.random() < 0.25 else 0,
        arriving_bytes=chance.choice((0, 100, 3000)),
    )


def pool_config(chance: random.Random, index: int) -> PoolSettings:
    """A pool's; the first serves every queue."""
    return PoolSettings(
        pool=f"pool-{index}",
        instance=index + 1,
        slots=chance.randint(1, 3),
        queues=QUEUES[index],
        tags=TAGS[index],
        hello=0.5,
        beat=BEAT,
        lease=LEASE,
    )


def recycled(config: PoolSettings, seed: int) -> PoolSettings:
    """Return a pool's settings with those of the replacement of its slots, in half of the worlds."""
    chance = random.Random(f"recycled {config.pool} {seed}")
    if seed % 2:
        return config
    return replace(config, max_tasks=chance.choice((0, 1, 2, 7, 40)), stop_first=chance.random() < 0.3)


def client_config(client: int, credit: int) -> ClientSettings:
    """A client's."""
    return ClientSettings(
        client, max_payload=1000, credit=credit, hello=0.5, patience=3 * BEAT, resend=2 * BEAT
    )
