"""A pool near the limit of its container's memory kills its largest slot before the kernel kills all.

Kubelets have the kernel kill every process of a container when one takes too much (memory.oom.group). Then
nobody knows which task took it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol

from taskmesh.system.cgroups import LONGEST_DEATH
from taskmesh.system.session import memory_of_groups

SHARE: Final = 0.05
"""Share of the limit that is to stay free: memory that tasks take between two looks must fit in."""
LEAST, MOST = 32 << 20, 512 << 20
"""Bounds of the bytes that are to stay free; of a small container it is an eighth."""
FASTEST: Final = float(4 << 30)
"""Bytes a second that tasks are expected to take, at most."""
SHORTEST, LONGEST = 0.01, 0.5
"""Seconds between two looks."""
STEPS: Final = 16
"""Parts of the reserve. Another must be gone before slots that were spared are measured again: to measure all
processes of a machine takes milliseconds."""


class Memory(Protocol):
    """The memory that the pool's container may take: `taskmesh.system.cgroups.LimitedMemory`."""

    def least_left(self) -> tuple[int, int]:
        """Return the bytes that are left, and the limit."""
        ...


class PoolMemoryLimit:
    """A timer of the pool's loop: it checks how much memory is left, and kills the largest slot if need be.

    Args:
        memory: the container's.
        running: returns the slots that run tasks, by the ids of their processes, which lead process groups.
        kill: kills a slot for lack of memory, with a text that says why.
        taken: returns the bytes that the processes of each group take, by their ids.
    """

    def __init__(
        self,
        memory: Memory,
        running: Callable[[], dict[int, int]],
        kill: Callable[[int, str], None],
        taken: Callable[[dict[int, int]], dict[int, dict[int, int]]] = memory_of_groups,
    ) -> None:
        self.deadline = 0.0
        self._memory = memory
        self._running = running
        self._kill = kill
        self._taken = taken
        self._spared_at = 1 << 62  # bytes that were left when no slot was to blame
        self._dying: list[int] = []
        self._dying_until = 0.0

    def turn(self, now: float) -> None:
        left, limit = self._memory.least_left()
        reserve = reserve_of(limit)
        if left >= reserve:
            self._spared_at = 1 << 62
        elif left < self._spared_at - reserve // STEPS and not self._is_dying(now):
            self._kill_largest(left, limit, now)
        self.deadline = now + min(LONGEST, max(SHORTEST, (left - reserve) / FASTEST))

    def _is_dying(self, now: float) -> bool:
        """Return True for as long as processes killed last hold memory and may still be dying."""
        self._dying = [pid for pid in self._dying if os.path.exists(f"/proc/{pid}")]
        return bool(self._dying) and now < self._dying_until

    def _kill_largest(self, left: int, limit: int, now: float) -> None:
        """Kill the largest slot, unless it takes less than is left: then others fill the memory."""
        running = self._running()
        groups = self._taken(running)
        sizes = {leader: sum(processes.values()) for leader, processes in groups.items()}
        largest = max(sizes, key=sizes.__getitem__, default=0)
        if not largest or sizes[largest] < left:
            self._spared_at = left
            return
        self._spared_at = 1 << 62
        self._dying, self._dying_until = list(groups[largest]), now + LONGEST_DEATH
        self._kill(
            running[largest],
            "its pool killed it before the kernel kills the whole container: "
            f"{left >> 20:,} MiB of {limit >> 20:,} MiB were left, and this slot took most, "
            f"{sizes[largest] >> 20:,} MiB. Raise the memory limit, run fewer tasks at once "
            "(pool.concurrency), or have the task take less",
        )


def reserve_of(limit: int) -> int:
    """Return the bytes of a limit that are to stay free."""
    return min(max(int(SHARE * limit), LEAST), limit // 8, MOST)
