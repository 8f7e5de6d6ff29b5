"""What the side port's questions mean to the machines in a program's loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from taskmesh.core.events import DrainRequested
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.http.metrics import Family
from taskmesh.http.pool_metrics import drain_view, pool_families, readiness, startup
from taskmesh.net.pool.shell import PoolShell


def both(hub: Callable[[], list[Family]], pool: PoolMachine) -> Callable[[], list[Family]]:
    """The figures of a hub and of the pool in its process."""
    return lambda: [*hub(), *pool_families(pool)]


def pool_answers(pool: PoolShell, grace: float) -> dict[str, Callable[[], object]]:
    """What the side port asks a pool; called in the loop's thread."""
    machine = pool.machine

    def drain() -> object:
        pool.events.append(DrainRequested(grace))
        pool.turn(time.monotonic())
        return drain_view(machine)

    return {
        "ready": lambda: readiness(machine),
        "startup": lambda: startup(machine),
        "metrics": lambda: pool_families(machine),
        "drain": drain,
        "drain_state": lambda: drain_view(machine),
    }
