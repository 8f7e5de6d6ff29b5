"""The schedule of a soak, and the judge of its firings: none twice, none missed without a cause."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Set
from itertools import pairwise
from pathlib import Path

from taskmesh import current_task
from tests.chaos.company import Record
from tests.harness.cluster import LEASE
from tests.harness.journal import Journal

PERIOD = 0.5
LOG = "ticks.log"
RETURN = 5.0 + 2 * LEASE
"""Seconds after a hub's start in which the client that nobody kills has declared the schedule to it."""


def soak_tick() -> None:
    """Note the firing, in the folder in which pools start."""
    me = current_task()
    tick = me.scheduled_for
    assert tick is not None
    place = round(tick.timestamp() / PERIOD)
    Journal(LOG).write("tick", place, me.id, me.attempt, os.getpid())


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
