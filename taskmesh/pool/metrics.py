"""Metrics and probes of a pool, for the side port."""

from __future__ import annotations

from collections.abc import Callable

from taskmesh.http.metrics import Family
from taskmesh.pool.machine.machine import PoolMachine


def drain_view(machine: PoolMachine) -> dict[str, object]:
    """Return the progress of a drain: the pool's state, and the tasks that it still has."""
    return {
        "pool": machine.config.pool,
        "state": machine.state,
        "running": running(machine),
        "waiting": machine.scheduler.waiting(),
        "reported": machine.reported,
    }


def running(machine: PoolMachine) -> int:
    return sum(slot.running() is not None for slot in machine.slots.values())


def slots_up(machine: PoolMachine) -> int:
    return sum(slot.is_up for slot in machine.slots.values())


def readiness(machine: PoolMachine) -> tuple[bool, str]:
    """Return True if it takes work, and a text with its state or the reason why not."""
    if machine.state == "draining":
        return False, "draining"
    return (True, machine.state) if machine.session else (False, "no session with the hub")


def startup(machine: PoolMachine) -> tuple[bool, str]:
    """Return True if it has come up, and a text: a slot is up, or it has a session with the hub."""
    return (True, "started") if machine.session or slots_up(machine) else (False, "no slot is up yet")


def pool_families(machine: PoolMachine) -> list[Family]:
    figures = {
        "tasks_running": ("Tasks that run in this pool's slots.", running(machine)),
        "worker_slots": ("Slots of this pool.", len(machine.slots)),
        "worker_slots_up": ("Slots whose process is there.", slots_up(machine)),
        "worker_waiting": ("Tasks in this pool that have no slot yet.", machine.scheduler.waiting()),
        "worker_connected": ("Whether it has a session with the hub.", bool(machine.session)),
        "worker_draining": ("Whether it is about to leave.", machine.state == "draining"),
        "worker_reported": ("Whether its hub has all of its results.", machine.reported),
    }
    labels = {"pool": machine.config.pool}
    return [Family(f"taskmesh_{name}", text, [(labels, value)]) for name, (text, value) in figures.items()]


def pool_answers(machine: PoolMachine, drain: Callable[[], None]) -> dict[str, Callable[[], object]]:
    """Return the answers to a pool's requests, each called in the loop's thread.

    Args:
        machine: the pool's machine.
        drain: begins a drain; to begin it again changes nothing.
    """

    def begin_drain() -> object:
        drain()
        return drain_view(machine)

    return {
        "GET /readyz": lambda: readiness(machine),
        "GET /startupz": lambda: startup(machine),
        "GET /metrics": lambda: pool_families(machine),
        "POST /drain": begin_drain,
        "GET /drain": lambda: drain_view(machine),
    }
