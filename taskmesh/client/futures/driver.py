"""Meshes without threads (`Mesh.inline`): who waits for one does its work meanwhile.

The waits of its client say whose they are to `waiters.interruptible`, which asks here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from taskmesh.errors import TaskMeshError

LONGEST = 7 * 86400.0
"""Virtual seconds after which a wait without a time-out is given up: what it waits for cannot happen."""
OTHERS_S = 0.01
"""Seconds for which another thread is waited for that does the work now."""


class Driver(ABC):
    """The work of one mesh without threads, and its clock."""

    @property
    @abstractmethod
    def now(self) -> float:
        """The virtual time."""

    @abstractmethod
    def step(self, until: float) -> bool:
        """Do what is next, or let the time pass up to it; return False if nothing is left before `until`."""


def driven(driver: Driver, wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Do the work of a mesh without threads until a wait is over.

    Args:
        driver: of the mesh.
        wait: waits the given seconds, and returns True once the wait is over.
        timeout: seconds of virtual time; None for any time.

    Returns:
        False after the time-out.

    Raises:
        TaskMeshError: nothing ends the wait, however much time passes.
    """
    end = driver.now + min(LONGEST, math.inf if timeout is None else timeout)
    while not wait(0.0):
        if driver.step(end):
            continue
        if driver.now < end:
            if wait(OTHERS_S):
                return True
        elif timeout is None:
            raise TaskMeshError(
                f"this wait cannot end: all that an inline mesh had to do is done, and {LONGEST / 86400:.0f} "
                "days of its time have passed. `mesh.advance(seconds)` lets more pass"
            )
        else:
            return wait(0.0)
    return True
