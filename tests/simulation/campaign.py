"""Many seeds at once, over all processors, with a count of what they have shown."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from taskmesh.hub.machine.books.states import TRANSITIONS, Cause, State
from tests.simulation.faults import EXPECTED
from tests.simulation.simulation import Report, SimulationFailure, World

PORTION = 25
"""Seeds that a process plays before it reports."""


@dataclass(slots=True)
class Tally:
    """What some seeds have shown together.

    Attributes:
        seeds: how many were played. failures: seed -> what it broke.
        transitions, faults: how often each happened.
    """

    seeds: int = 0
    tasks: int = 0
    steps: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    transitions: Counter[tuple[State, Cause]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Counts one seed."""
        self.seeds += 1
        self.tasks += report.tasks
        self.steps += report.steps
        self.transitions.update(report.transitions)
        self.faults.update(report.faults)

    def merge(self, other: Tally) -> None:
        """Counts the seeds of another tally too."""
        self.seeds += other.seeds
        self.tasks += other.tasks
        self.steps += other.steps
        self.failures.update(other.failures)
        self.transitions.update(other.transitions)
        self.faults.update(other.faults)

    def rare(self, least: int) -> list[str]:
        """Transitions and faults that happened less than `least` times: what was not really tried."""
        missing = [
            f"transition {state.name} -{cause.name}-> {after.name}: {self.transitions[state, cause]}"
            for (state, cause), after in TRANSITIONS.items()
            if self.transitions[state, cause] < least
        ]
        return missing + [
            f"fault {kind} of {role}: {self.faults[kind, role]}"
            for kind, role in EXPECTED
            if self.faults[kind, role] < least
        ]


def play(seeds: range) -> Tally:
    """Plays seeds one after the other in this process."""
    tally = Tally()
    for seed in seeds:
        try:
            tally.add(World(seed).run())
        except SimulationFailure as failure:
            tally.seeds += 1
            tally.failures[seed] = str(failure)
    return tally


def play_all(first: int, count: int, *, processes: int = 0) -> Iterator[Tally]:
    """Plays `count` seeds from `first` on; yields the tally of each portion as it comes.

    Args:
        processes: how many at once; 0 for one on each processor.
    """
    portions = [
        range(start, min(start + PORTION, first + count)) for start in range(first, first + count, PORTION)
    ]
    workers = min(processes or len(os.sched_getaffinity(0)), len(portions))
    if workers <= 1:
        yield from map(play, portions)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(play, portions)
