"""Failures: their kinds, and the part of chance in the delay of a retry."""

from __future__ import annotations

from taskmesh.core.ids import SEQ_MASK

CRASHES = frozenset({"crash", "oom"})
"""Kinds after which the slot is gone: they are counted against `hub.crash_limit`."""
REFUSALS = frozenset({"function", "signature"})
"""Kinds after which another pool may have more luck: the task has not begun."""
RETRIED = frozenset({"exception", "timeout", "hard_timeout"})
"""Kinds that the task's own retries are for."""
POOLS_DIED = (
    "pools died while they ran this task, the last one with nothing else. It probably needs more memory than "
    "a pool has, and the kernel then kills the whole pool. Give workers more memory, or raise "
    "hub.pool_loss_limit"
)


def jitter_of(task: int, times: int) -> float:
    """A number in [0, 1) that depends on the task and the retry only (splitmix64)."""
    z = (task ^ (task >> 64) ^ (times * 0x9E3779B97F4A7C15)) & SEQ_MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & SEQ_MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & SEQ_MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)
