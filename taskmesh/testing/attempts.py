"""S20: which attempt people are told that a task has had, held against the executions that have begun."""

from __future__ import annotations

import re
from collections import defaultdict

from taskmesh.core.invariants import require
from taskmesh.testing.workload import Plan
from taskmesh.wire.messages import DoneRun, Failed, LaneRun, Progress

Key = tuple[int, int]
_NUMBER = re.compile(r"attempt (\d+) on")
NOWHERE = frozenset({"cancelled", "expired", "lost", "result"})
"""Ends that a task may have without an attempt of its own."""


class Attempts:
    """The numbers that people are shown: the n-th execution that has begun, or may have, is attempt n.

    A hub that comes after another knows of earlier ones what pools tell it; so only the first must know all.
    """

    def __init__(self) -> None:
        self.calm = False
        self._sent: dict[Key, set[int]] = defaultdict(set)
        self._begun: dict[Key, set[int]] = defaultdict(set)
        self._fences: dict[Key, set[int]] = defaultdict(set)

    def pushed(self, run: LaneRun, epoch: int) -> None:
        """A hub sends these: what has begun before counts, and where nothing goes wrong nothing else does."""
        shown = run.attempt - run.returns
        for seq in run.seqs:
            key = run.client, seq
            before = sum(fence < run.attempt for fence in self._fences[key])
            if epoch == 1:
                require(shown > before, "S20: an execution that had begun is not counted", key, shown, before)
            if self.calm:
                require(shown <= before + 1, "S20: counts what has not begun", key, shown, before)
            self._sent[key].add(shown)

    def began(self, plan: Plan, attempt: int, returns: int) -> None:
        """A slot starts a task; this is what `current_task().attempt` says there."""
        key, shown = (plan.client, plan.seq), attempt - returns
        require(shown in self._sent[key], "S20: no attempt of this number was sent", key, shown)
        self._begun[key].add(shown)
        self._fences[key].add(attempt)

    def succeeded(self, run: DoneRun, plan: Plan) -> None:
        """A client is told of a success; of a key's tasks it may be another's."""
        key, shown = (plan.client, plan.seq), run.attempt - run.returns
        require(bool(plan.key) or shown in self._begun[key], "S20: no such attempt has begun", key, shown)

    def failed(self, failure: Failed, plan: Plan) -> None:
        """A client is told of a bad end, and of the attempts before."""
        key, shown = (plan.client, plan.seq), failure.attempt
        if plan.key:
            return
        begun, told = self._begun[key], f"{failure.kind} of attempt {shown}"
        for line in failure.history:
            found = _NUMBER.match(line)
            number = int(found[1]) if found else 0
            require(number in self._sent[key] and number <= shown, "S20: history", key, told, failure.history)
        if failure.kind not in NOWHERE:
            require(shown in begun, "S20: no such attempt has begun", key, told, begun)
        require(shown <= max(self._sent[key], default=0), "S20: more than were sent", key, told)
        if self.calm and failure.kind in {"cancelled", "expired"}:
            require(shown == len(begun), "S20: not the number of those that have begun", key, told, begun)

    def told(self, progress: Progress) -> None:
        """A client is told what runs."""
        key, shown = (progress.client, progress.seq), progress.attempt
        require(shown in self._sent[key], "S20: no such attempt was sent", key, shown)

    def check_sure(self, plan: Plan) -> None:
        """Where nothing has gone wrong nothing was counted that has not begun."""
        key = plan.client, plan.seq
        require(len(self._sent[key]) == plan.runs, "S20: counts what has not begun", plan, self._sent[key])
