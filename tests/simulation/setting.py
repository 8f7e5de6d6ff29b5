"""What all processes of a simulated world share."""

from __future__ import annotations

import math
import random
import re

from taskmesh.pool.machine.slots import RELOAD
from tests.simulation.audit import Audit
from tests.simulation.fairness import Fairness
from tests.simulation.network import Network
from tests.simulation.timetable import Timetable
from tests.simulation.workload import Workload

_BYTES = re.compile(r"""b'[^']*'|b"[^"]*\"""")
"""Payloads, which say nothing in a trace."""
LATE = 0.003
"""Seconds that a loop that has much to do is late, at most."""


class Setting:
    """What all processes share: time, chance, network, plans and the checks of what is promised.

    Attributes:
        parents: share of the tasks that take time which submit tasks of their own, and wait for them.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.timetable = Timetable()
        self.network = Network(self.chance, self.timetable)
        self.workload = Workload(self.chance)
        self.audit = Audit(self.workload)
        self.fairness = Fairness()
        self.trace: list[str] | None = None
        self.calm = False
        self.parents = (0.0, 0.05, 0.6)[seed % 3]
        self._lateness = random.Random(~seed)
        self._ages = random.Random(f"ages {seed}")
        self._ageing = seed // 2 % 2
        self._busy = seed % 2

    def late(self) -> float:
        """Returns how late the loop of a hub or pool is, in seconds; in half of the worlds it never is."""
        if not self._busy or self._lateness.random() < 0.5:
            return 0.0
        return LATE * self._lateness.random()

    def age(self) -> float:
        """Return the seconds after which a slot is due to be replaced; in half of the worlds none ever is."""
        return self._ages.choice((0.05, 0.5, 2.0, 6.0, math.inf)) if self._ageing else math.inf

    def reason(self) -> str:
        """Return why a slot is replaced."""
        return self._ages.choice((RELOAD, "age", "memory"))

    def note(self, who: str, what: object) -> None:
        """Writes a line of the trace, when there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.timetable.now:9.4f} {who:12} {_BYTES.sub('..', str(what))}")
