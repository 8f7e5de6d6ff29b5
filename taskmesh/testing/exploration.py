"""Programs under faults: the same code, seed after seed, with dying slots and pools, and lost messages.

The mesh is an inline one: the ledger of the real hub decides what runs again. A task has to come to the same
end however often it is begun, and in whatever order; `explore` looks for a seed with which it does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from taskmesh.core.ids import task_id, text_of
from taskmesh.hosting.inline_slots import AFTER, BEFORE, POOL, InlineSlot
from taskmesh.mesh import Mesh
from taskmesh.messages.runs import LaneRun

T = TypeVar("T")

RATES = (0.1, 0.3, 0.7)
"""Shares of tasks to which something happens, one of them for each seed."""
WEATHER = (0.0, 0.02, 0.15)
"""Shares of messages that are lost, come twice or are late."""
LOST, TWICE, LATE = "was lost", "came twice", "was late"


class SeedFailed(AssertionError):
    """A workload has failed under faults; its cause is the workload's own error, or the check's.

    Attributes:
        seed: it fails with this one.
        faults: descriptions of what had happened, in order.
    """

    def __init__(self, seed: int, faults: Sequence[str], error: BaseException) -> None:
        happened = "\n".join(f"  {fault}" for fault in faults) or "  nothing: it fails without faults"
        super().__init__(
            f"seed {seed}: {type(error).__name__}: {error}\nwhat had happened:\n{happened}\n"
            f"play it again: explore(..., seeds=[{seed}])"
        )
        self.seed = seed
        self.faults = faults


class SeedFate:
    """The fate of one seed. A task is struck once at most: one that always dies is given up.

    Args:
        seed: decides all.

    Attributes:
        faults: descriptions of what has happened.
    """

    def __init__(self, seed: int) -> None:
        self.faults: list[str] = []
        self._chance = random.Random(seed)  # noqa: S311  no secret
        self._rate = self._chance.choice(RATES)
        self._weather = self._chance.choice(WEATHER)
        self._struck: set[tuple[int, int]] = set()

    def choose(self, ready: Sequence[InlineSlot]) -> InlineSlot:
        """Choose the slot whose task is next."""
        return self._chance.choice(ready)

    def of(self, name: str, run: LaneRun) -> str:
        """Return what happens to a task that is about to begin."""
        [seq] = run.seqs
        if (run.client, seq) in self._struck or self._chance.random() >= self._rate:
            return ""
        self._struck.add((run.client, seq))
        what = self._chance.choice((BEFORE, AFTER, AFTER, POOL))
        task = text_of(task_id(run.client, seq))
        self.faults.append(f"{name} {task[-8:]}, attempt {run.attempt - run.returns}: {what}")
        return what

    def carry(self, message: object) -> Sequence[float]:
        """Return after how many seconds a message arrives, each time that it does."""
        chance = self._chance
        if chance.random() >= self._weather:
            return (0.0,)
        what = chance.choice((LOST, TWICE, LATE))
        self.faults.append(f"{type(message).__name__} {what}")
        late = chance.random() * chance.choice((0.01, 0.5, 5.0))
        return {LOST: (), TWICE: (0.0, late), LATE: (late,)}[what]


def explore(
    workload: Callable[[], T],
    *,
    seeds: int | Iterable[int] = 200,
    check: Callable[[T], object] | None = None,
    **settings: Any,
) -> int:
    """Run a workload once for each seed, in an inline mesh whose tasks lose their slots and pools.

    Slots are killed before a task begins, or when it has ended and nobody knows yet; pools die with all their
    slots; messages are lost, late, or come twice. So a task runs once or several times, as on real machines,
    and tasks come in another order.

    Args:
        workload: submits tasks and waits for them. It begins anew each time: it clears what it counts.
        seeds: numbers, or how many from 0 on. `seeds=[17]` plays one again.
        check: is called with what the workload has returned, when all tasks have ended; it raises, or returns
            False, if something is wrong.
        settings: those of the mesh, as of `Mesh.inline`.

    Returns:
        The number of faults that have happened.

    Raises:
        SeedFailed: the workload or the check has failed; the text has the seed, and what had happened.
    """
    count = 0
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        fate = SeedFate(seed)
        try:
            mesh = Mesh.inline(**{"workers": 2, **settings})
            mesh._driver.fate = fate
            with mesh:
                returned = workload()
                mesh.run_all()
            if check is not None and check(returned) is False:
                raise AssertionError(f"check() returns False for {returned!r:.200}")
        except Exception as error:
            raise SeedFailed(seed, fate.faults, error) from error
        count += len(fate.faults)
    return count
