"""A soak: workflows of all kinds, a kill each ten seconds, and the slopes of what everybody holds.

One pool's supervisor and one client live from the begin to the end, and no hub is killed in the second half:
a slope needs a long life.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import linear_regression

import psutil

from tests.chaos.episode import Episode
from tests.chaos.strikes import Kills
from tests.chaos.ticks import judge_ticks
from tests.chaos.workflow_program import RESIDENT, ROUNDS
from tests.chaos.workflows import AT_ONCE, RATE
from tests.harness.journal import Journal
from tests.harness.program import Program
from tests.harness.spans import most_at_a_time, most_in

BETWEEN = 10.0
POOL = "pool-0"
"""The pool of which nobody kills the supervisor."""
RESULT_TTL = 20.0
"""Seconds for which a hub keeps the outcomes of killed clients: else it had more of them to the end."""
SLOTS = 6
"""Most slots that there are: each may have been sent one limited task before it begins."""
EVERY = 1.0
WARM_UP = 1 / 3
"""Of a life, in which caches fill."""
MEMORY = 1.0
"""MB a million tasks."""
NOISE = 2.0
"""MB by which a process that stays the same may differ: allocators give memory back when they like."""
THINGS = 2.0
"""Descriptors, or threads, likewise: peers come and go."""
TOGETHER = 10
"""Samples of which the least counts: what tasks hold for a moment comes and goes, what leaks stays."""
OF_A_SLOT = 7
"""Descriptors: a pool has more slots for a while when tasks wait for their children."""
FEWEST = 4
"""Least samples from which on a slope says something."""
ENOUGH = 0.1
"""Million tasks, likewise."""


@dataclass(frozen=True)
class Sample:
    """The holdings of a process at a moment: MB of its own, descriptors but those of its slots, threads."""

    when: float
    memory: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, program: Program) -> Sample:
        process = psutil.Process(program.pid)
        with process.oneshot():
            memory = process.memory_info()
            own = (memory.rss - memory.shared) / (1 << 20)
            descriptors = process.num_fds() - OF_A_SLOT * len(program.slots())
            return cls(time.monotonic(), own, descriptors, process.num_threads())


class Soak(Episode):
    """One long episode."""

    program = "tests.chaos.workflow_program"

    def __init__(self, folder: Path, seed: int, seconds: float, say: Callable[[str], object]) -> None:
        super().__init__(folder, seed, seconds, harsh=True, say=say)
        self._company.spared = frozenset((POOL, RESIDENT))
        self._company.cluster.programs.env["TASKMESH_HUB__RESULT_TTL"] = str(RESULT_TTL)
        self._kills = Kills(self._company, self._operators, self._chance)
        self._samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        self._sampled = 0.0
        self._calm = 0.0  # from here on there is always a hub: without one, a pool has fewer sockets

    def _be_struck(self) -> None:
        begin = time.monotonic()
        end = begin + self._seconds
        self._calm = begin + self._seconds / 2 + BETWEEN
        self._pass(BETWEEN, end)
        while time.monotonic() < end:
            if time.monotonic() > begin + self._seconds / 2:
                self._kills.spare_hub()
            self._tell(self._kills.strike())
            self._pass(BETWEEN, end)

    def _tend(self) -> None:
        super()._tend()
        if time.monotonic() < self._sampled + EVERY:
            return
        self._sampled = time.monotonic()
        company = self._company
        pairs = (
            ("hub", company.hub),
            (POOL, company.pools.get(POOL)),
            (RESIDENT, company.clients.get(RESIDENT)),
        )
        for name, program in pairs:
            if program is not None and program.alive:
                self._samples[name, program.pid].append(Sample.of(program))

    def _judge(self) -> None:
        super()._judge()
        company = self._company
        problems = company.record.problems
        problems += judge_ticks(company.folder, company.record)
        problems += judge_limits(Journal(company.folder / "spans.log"))
        count = task_counter(
            Journal(company.folder / ROUNDS), map(Journal, company.folder.glob("*-executions.log"))
        )
        lives: dict[str, list[Sample]] = {}
        for (name, _), samples in self._samples.items():
            lives[name] = max(lives.get(name, []), samples, key=len)
        for name, samples in lives.items():
            warm = samples[int(len(samples) * WARM_UP) :]
            for words, right in slopes([sample for sample in warm if sample.when >= self._calm], count):
                self._tell(f"{name}: {words}")
                if not right:
                    problems.append(f"{name} grows: {words}")


def task_counter(rounds: Journal, executions: Iterable[Journal]) -> Callable[[float], float]:
    """A function that gives the millions of tasks that had run at a moment."""
    counts = [(entry.when, int(entry.fields[0])) for entry in rounds.entries()]
    counts += [(entry.when, 1) for log in executions for entry in log.entries() if entry.kind == "start"]
    counts.sort()
    moments = [when for when, _ in counts]
    totals = [0, *accumulate(count for _, count in counts)]
    return lambda when: totals[bisect_right(moments, when)] / 1e6


def slopes(samples: list[Sample], count: Callable[[float], float]) -> Iterator[tuple[str, bool]]:
    """Yield what has become of each thing, by least squares, in words, and whether that is right."""
    groups = [samples[i : i + TOGETHER] for i in range(0, len(samples) - TOGETHER + 1, TOGETHER)]
    tasks = [count(group[0].when) for group in groups]
    if len(groups) < FEWEST or (done := tasks[-1] - tasks[0]) < ENOUGH:
        return
    for thing, free in (("memory", NOISE), ("descriptors", THINGS), ("threads", THINGS)):
        values = [min(float(getattr(sample, thing)) for sample in group) for group in groups]
        slope = linear_regression(tasks, values).slope
        most = free + MEMORY * done * (thing == "memory")
        ends = f"{thing} {values[0]:.1f} to {values[-1]:.1f}"
        yield f"{ends}, {slope:+.2f} a million tasks, of {done:.2f} million", slope * done <= most


def judge_limits(spans: Journal) -> list[str]:
    """Return the faults in the starts and spans of limited tasks, in words."""
    begins: dict[str, list[float]] = defaultdict(list)
    open_spans: dict[tuple[str, ...], float] = {}
    ended: list[tuple[float, float]] = []
    for entry in spans.entries():
        names = entry.fields[0].split("+")
        if entry.kind == "begin":
            for name in names:
                begins[name].append(entry.when)
            open_spans[entry.fields] = entry.when
        elif "concurrency" in names:
            ended.append((open_spans.pop(entry.fields), entry.when))
    found = []
    if not begins["rate"] or not ended:
        found.append("no limited task has run")
    if (starts := most_in(begins["rate"], 1.0)) > RATE + SLOTS:
        found.append(f"{starts} starts in a second with a limit of {RATE}")
    if (most := most_at_a_time(ended)) > AT_ONCE:
        found.append(f"{most} tasks at a time with a limit of {AT_ONCE}")
    return found
