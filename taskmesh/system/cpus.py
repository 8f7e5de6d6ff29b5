"""How many CPUs this process may keep busy: what it may run on, and what a container's limits leave of it."""

from __future__ import annotations

import math
import os

from taskmesh.system.cgroups import Group, groups_of


def usable_cpus() -> float:
    """How many CPUs this process may keep busy: those it may run on, and the quotas of its control groups."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # there is no such thing here, or a sandbox refuses it
        allowed = os.cpu_count() or 1
    return min(allowed, *map(_quota, groups_of("cpu")), math.inf)


def _quota(group: Group) -> float:
    """Microseconds of CPU time ("max" or -1: any), in a period of so many; infinite where there is none."""
    if group.unified:
        quota, _, period = group.read("cpu.max").partition(" ")
    else:
        quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
    is_limit = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if is_limit else math.inf
