"""What sinks promise, checked as it happens.

- a task with a sink ends for its client only after a consumer has acknowledged its outcome
- an outcome that a hub has taken as acknowledged is not delivered again by that hub
- a hub takes an outcome as acknowledged once, after it was delivered, and a program has acknowledged it
- no consumer's program is given again what it has acknowledged, nor what a hub has told another one to be
  acknowledged, but for a moment in which a link is cut
- where all is well, and consumers take everything, sinks are empty in the end
- values that a client puts into a sink go there in their order
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taskmesh.client.sink import SinkOutcome
from taskmesh.core.state_machine import require
from taskmesh.messages.mesh_messages import SinkDeliver
from taskmesh.messages.runs import DoneRun, Failed
from tests.simulation.workload import Plan

Task = tuple[int, int]
Line = tuple[int, str, int]
"""A consumer's client, its sink and generation: what it holds is of one hub."""
Ending = tuple[int, int, int, str]
"""A client's task, the attempt, and how that has ended."""
MOMENT = 2.0
"""Seconds for which a consumer may not know that others have acknowledged what it has in hand."""
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
        self._confirmed: dict[tuple[int, Task], float] = {}
        self._hubs: dict[Line, int] = {}

    def delivered(self, epoch: int, client: int, message: SinkDeliver) -> None:
        """A hub sends outcomes to a consumer, perhaps once more."""
        self._hubs[client, message.sink, message.generation] = epoch
        for ending in _endings([*message.done, *message.failed]):
            require(
                (epoch, ending) not in self._settled,
                "an outcome was delivered after it was acknowledged",
                ending,
            )
            self._delivered.add((epoch, ending))

    def settled(self, epoch: int, outcome: DoneRun | Failed) -> None:
        """A hub has taken outcomes as acknowledged."""
        for ending in _endings([outcome]):
            require(
                (epoch, ending) in self._delivered, "an outcome was acknowledged and never delivered", ending
            )
            require((epoch, ending) not in self._settled, "an outcome was acknowledged twice", ending)
            require(ending[:2] in self.acknowledged, "no program has acknowledged an outcome", ending)
            self._settled.add((epoch, ending))

    def forgotten(self, epoch: int, client: int) -> None:
        """A hub knows nothing of a client any more: its tasks' attempts may count from 1 again.

        What consumers hold of it they may still acknowledge.
        """
        over = {each for each in self._settled if each[0] == epoch and each[1][0] == client}
        self._delivered -= over
        self._settled -= over
        for known in [known for known in self._confirmed if known[0] == epoch and known[1][0] == client]:
            del self._confirmed[known]
        for line in [line for line in self._newest if line[:2] == (epoch, client)]:
            del self._newest[line]

    def put(self, epoch: int, plans: Sequence[Plan]) -> None:
        """Successes go into a sink, of which values have not run anywhere."""
        for plan in plans:
            if plan.is_value:
                line = epoch, plan.client, plan.kind.spec.sink
                require(plan.seq > self._newest.get(line, 0), "a value went into its sink out of order", plan)
                self._newest[line] = plan.seq
                plan.successes += 1

    def confirmed(self, epoch: int, tasks: Iterable[Task], now: float) -> None:
        """A hub tells a consumer that it has taken in what that has acknowledged."""
        for task in tasks:
            self._confirmed.setdefault((epoch, task), now)

    def taken(self, plan: Plan, outcome: SinkOutcome, before: set[Task], *, line: Line, now: float) -> None:
        """A program is given an outcome of a hub; it has acknowledged those before itself.

        That hub is the one that delivered it. The client may still know the one before: consumers begin anew
        as soon as they hear that they are not known, which is before their client is welcomed. What only
        consumers have heard of the hub before is given out again.
        """
        since = now - self._confirmed.get((self._hubs[line], outcome.task), now)
        require(
            since < MOMENT, "an outcome was given out long after another had acknowledged it", plan, since
        )
        require(outcome.task not in before, "an outcome was given again after it was acknowledged", plan)
        value = outcome._value
        if value is not None and value.failed is None:
            require(value.payload == plan.result, "a sink gave another task's result", plan)

    def ended(self, plan: Plan, kind: str) -> None:
        """The client of a task with a sink hears how it has ended."""
        known = (plan.client, plan.seq) in self.acknowledged or kind in PAST_THE_SINK
        require(known, "a task ended before its outcome was acknowledged", plan, kind)


def _endings(outcomes: Sequence[DoneRun | Failed]) -> Iterator[Ending]:
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            yield outcome.client, outcome.seq, outcome.attempt, outcome.kind
        else:
            for seq in outcome.seqs:
                yield outcome.client, seq, outcome.attempt, "done"
