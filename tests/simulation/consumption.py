"""What sinks promise, checked as it happens.

K1  a task with a sink ends for its client only after a consumer has acknowledged its outcome
K2  an outcome that a hub has taken as acknowledged is not delivered again by that hub
K3  a hub takes an outcome as acknowledged once, after it was delivered, and a program has acknowledged it
K4  no consumer's program is given again what it has acknowledged
K5  where all is well, and consumers take everything, sinks are empty in the end
K6  values that a client puts into a sink go there in their order
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskmesh.client.sink import SinkOutcome
from taskmesh.core.state_machine import require
from taskmesh.wire.messages import SinkDeliver
from taskmesh.wire.runs import DoneRun, Failed
from tests.simulation.workload import Plan

Task = tuple[int, int]
Ending = tuple[int, int, int, str]
"""A client's task, the attempt, and how that has ended."""
PAST_THE_SINK = frozenset({"cancelled", "lost", "result", "dependency"})
"""Ends that a client hears directly, since it, or the hub that takes its Submit, decides so."""


class Consumption:
    """The outcomes that have gone through sinks.

    Attributes:
        acknowledged: tasks whose outcomes some consumer's program has acknowledged.
        all_is_well: every client takes all that there is, and acknowledges it at once.
    """

    def __init__(self) -> None:
        self.all_is_well = False
        self.acknowledged: set[Task] = set()
        self._delivered: set[tuple[int, Ending]] = set()
        self._settled: set[tuple[int, Ending]] = set()
        self._newest: dict[tuple[int, int, str], int] = {}

    def delivered(self, epoch: int, message: SinkDeliver) -> None:
        """K2: a hub sends outcomes to a consumer, perhaps once more."""
        for ending in _endings([*message.done, *message.failed]):
            require((epoch, ending) not in self._settled, "K2: delivered after it was acknowledged", ending)
            self._delivered.add((epoch, ending))

    def settled(self, epoch: int, outcome: DoneRun | Failed) -> None:
        """K3: a hub has taken outcomes as acknowledged."""
        for ending in _endings([outcome]):
            require((epoch, ending) in self._delivered, "K3: acknowledged and never delivered", ending)
            require((epoch, ending) not in self._settled, "K3: acknowledged twice", ending)
            require(ending[:2] in self.acknowledged, "K3: no program has acknowledged it", ending)
            self._settled.add((epoch, ending))

    def forgotten(self, epoch: int, client: int) -> None:
        """A hub knows nothing of a client any more: its tasks' attempts may count from 1 again.

        What consumers hold of it they may still acknowledge.
        """
        over = {each for each in self._settled if each[0] == epoch and each[1][0] == client}
        self._delivered -= over
        self._settled -= over
        for line in [line for line in self._newest if line[:2] == (epoch, client)]:
            del self._newest[line]

    def put(self, epoch: int, plans: Sequence[Plan]) -> None:
        """K6: successes go into a sink, of which values have not run anywhere."""
        for plan in plans:
            if plan.is_value:
                line = epoch, plan.client, plan.kind.spec.sink
                require(plan.seq > self._newest.get(line, 0), "K6: not in its order", plan)
                self._newest[line] = plan.seq
                plan.successes += 1

    def taken(self, plan: Plan, outcome: SinkOutcome, before: set[Task]) -> None:
        """K4, S12: a program is given an outcome; it has acknowledged those before itself."""
        require(outcome.task not in before, "K4: given again after it was acknowledged", plan)
        value = outcome._value
        if value is not None and value.failed is None:
            require(value.payload == plan.result, "S12: another task's result", plan)

    def ended(self, plan: Plan, kind: str) -> None:
        """K1: the client of a task with a sink hears how it has ended."""
        known = (plan.client, plan.seq) in self.acknowledged or kind in PAST_THE_SINK
        require(known, "K1: ended before its outcome was acknowledged", plan, kind)


def _endings(outcomes: Sequence[DoneRun | Failed]) -> Iterator[Ending]:
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            yield outcome.client, outcome.seq, outcome.attempt, outcome.kind
        else:
            for seq in outcome.seqs:
                yield outcome.client, seq, outcome.attempt, "done"
