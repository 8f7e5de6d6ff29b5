"""A schedule of a soak's pools, and the judge of its firings: none twice, none missed without a cause."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Set
from itertools import pairwise
from pathlib import Path

from tests.chaos.company import Record
from tests.harness.cluster import LEASE
from tests.harness.journal import Journal

PERIOD = 0.5
NAME = "soak_ticks"
LOG = "ticks.log"
RETURN = 5.0 + 2 * LEASE
"""Seconds after a hub's start in which pools have declared the schedule to it."""
MODULE = f"""
import os
from taskmesh import Schedule, current_task, task
from tests.harness.journal import Journal

@task(schedule=Schedule({PERIOD}, overlap="allow"))
def soak_tick():
    me = current_task()
    place = round(me.scheduled_for.timestamp() / {PERIOD})
    Journal({LOG!r}).write("tick", place, me.id, me.attempt, os.getpid())
"""
"""It is no module of the tests': whoever imports it declares the schedule."""


def write_module(folder: Path) -> None:
    """Write the module into the folder in which pools start."""
    (folder / f"{NAME}.py").write_text(MODULE)


def judge_ticks(folder: Path, record: Record) -> list[str]:
    """Return the faults in the firings, in words."""
    pids: dict[int, list[int]] = defaultdict(list)
    for entry in Journal(folder / LOG).entries():
        pids[entry.index].append(int(entry.fields[2]))
    if not pids:
        return ["the schedule has never fired"]
    twice = [place for place, ran in pids.items() if not record.struck.issuperset(ran[:-1])]
    found = [f"ticks that fired twice: {_told(twice)}"] if twice else []
    missed = _missed(set(pids), record)
    return found + ([f"ticks that were missed: {_told(missed)}"] if missed else [])


def _missed(fired: Set[int], record: Record) -> list[int]:
    """Places between the first and the last firing that have none, without a hub's death as a reason."""
    offset = time.time() - time.monotonic()
    away = [  # each death with the next start
        (killed + offset - PERIOD, min(s for s in record.hub_starts if s > killed) + offset + RETURN)
        for killed in record.hub_kills
        if any(start > killed for start in record.hub_starts)
    ]
    gaps = [place for a, b in pairwise(sorted(fired)) for place in range(a + 1, b)]
    return [place for place in gaps if not any(a <= place * PERIOD <= b for a, b in away)]


def _told(places: list[int]) -> str:
    return f"{[place * PERIOD for place in sorted(places)[:5]]} ({len(places)})"
