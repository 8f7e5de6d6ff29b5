"""A scene for a world that is well: a client and the hub die together, and the hub comes back alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskmesh.testing.client_host import ClientHost
from taskmesh.testing.hub_host import HubHost
from taskmesh.testing.network import Weather
from taskmesh.testing.pool_host import PoolHost
from taskmesh.testing.setting import Setting

TASKS = 8
STARTED = 3.0
"""Seconds in which some of them start."""
FOUL = 4.0
"""Seconds of bad weather from the death on."""
GONE = 5.0
"""Seconds after that in which every pool has been told to drop what was bound to the client."""


class World(Protocol):
    """What the scene is played in."""

    setting: Setting
    hub: HubHost
    pools: list[PoolHost]
    clients: list[ClientHost]

    def replace_client(self, client: ClientHost) -> None:
        """A client has crashed: another takes its place."""
        ...


def orphans(world: World, until: Callable[[float], None]) -> None:
    """S13: tasks bound to a client that is gone are dropped by their pools, and run no more.

    Args:
        until: plays the world to a moment.
    """
    setting, hub = world.setting, world.hub
    timetable, chance, audit = setting.timetable, setting.chance, setting.audit
    client = chance.choice(world.clients)
    plans = client.submit(TASKS, bound=True)
    until(timetable.now + STARTED * chance.random())
    audit.faults["crash", "hub with client"] += 1
    hub.kill()
    client.kill()
    client.down_link.reset()
    world.replace_client(client)
    for pool in world.pools:
        if pool.lane is not None:
            pool.lane_closed(pool.lane, signalled=chance.random() < 0.5)
    setting.network.weather = Weather(chance.choice((0.0, 0.1, 0.3)))
    timetable.after(chance.random(), hub.start)
    until(timetable.now + FOUL)
    setting.network.weather = None
    until(timetable.now + GONE)
    audit.orphaned.update((plan.client, plan.seq) for plan in plans)
    for pool in world.pools:
        left = [held for held in pool.machine.feeder.inventory() if held.client == client.client]
        audit.require(not left, "S13: a pool holds what is bound to a client that is gone", pool.name, left)
    unclaimed = len(hub.machine.unclaimed)
    audit.require(not unclaimed, "S13: the hub still counts on a client that is gone", unclaimed)
