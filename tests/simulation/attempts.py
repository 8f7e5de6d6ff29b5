"""Attempt numbers: those that people are told are compared with the executions that have begun."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from taskmesh.core.state_machine import require
from taskmesh.hub.machine.books.failures import POOLS_DIED
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Failed, LaneRun, Progress
from tests.simulation.workload import Plan

Key = tuple[int, int]
K = TypeVar("K")
_NUMBER = re.compile(r"attempt (\d+) on")
NOWHERE = frozenset({"cancelled", "expired", "lost", "result", "dependency"})
"""Ends that a task may have without an attempt of its own."""


class Attempts:
    """The numbers that people are shown: the n-th execution that has begun, or may have, is attempt n.

    A hub knows what it has sent itself, and what pools list that they hold: its numbers go on from there. It
    does not know what has ended with another hub, and counts anew.

    Attributes:
        calm: nothing goes wrong.
        over: tasks whose clients had their outcomes, which their journal has lost, or did not have in time:
            they run once more, as if for the first time.
    """

    def __init__(self) -> None:
        self.calm = False
        self.over: set[Key] = set()
        self._own: dict[tuple[Key, int, str], list[tuple[int, int]]] = defaultdict(list)
        self._known: dict[tuple[int, Key], int] = {}
        self._ahead: dict[Key, int] = {}  # of those that were over
        self._at: dict[str, dict[tuple[Key, int], int]] = defaultdict(dict)
        self._introduced: dict[tuple[str, bytes], dict[tuple[Key, int], int]] = {}
        self._sent: dict[Key, set[int]] = defaultdict(set)
        self._begun: dict[Key, set[int]] = defaultdict(set)
        self._fences: dict[Key, set[int]] = defaultdict(set)

    def pushed(self, run: LaneRun, epoch: int, pool: str) -> None:
        """A hub sends these: what has begun before counts, and where nothing goes wrong nothing else does.

        Args:
            pool: to this process.
        """
        shown = run.attempt - run.returns
        for seq in run.seqs:
            key = run.client, seq
            before = sum(fence < run.attempt for fence in self._fences[key])
            known = self._known.get((epoch, key), 0)
            require(
                shown > known or key in self.over,
                "an execution that had begun is not counted",
                key,
                shown,
                known,
            )
            if self.calm:
                sure = shown <= self._ahead.get(key, 0) + before + 1
                require(sure, "a number counts what has not begun", key, shown, before)
            self._sent[key].add(shown)
            self._at[pool].pop((key, run.attempt), None)  # another hub's of this number may have begun there
            self._own[key, run.attempt, pool].append((epoch, shown))

    def began(self, plan: Plan, attempt: int, returns: int, pool: str) -> None:
        """A slot of a pool's process starts a task; this is what `current_task().attempt` says there."""
        key, shown = (plan.client, plan.seq), attempt - returns
        require(shown in self._sent[key], "started under a number that was not sent", key, shown)
        self._begun[key].add(shown)
        self._fences[key].add(attempt)
        self._at[pool][key, attempt] = shown
        for epoch, number in self._own[key, attempt, pool]:
            if number == shown:
                _raise(self._known, (epoch, key), shown)

    def introduced(self, pool: str, hello: m.Hello) -> None:
        """A pool's process says Hello: it tells what has begun in it so far."""
        self._introduced.setdefault((pool, msgspec.msgpack.encode(hello)), dict(self._at[pool]))

    def joined(self, epoch: int, pool: str, hello: m.Hello) -> None:
        """A hub has taken in what a pool's process holds; its Hello may be old, and the hub another one's."""
        at = self._introduced.get((pool, msgspec.msgpack.encode(hello)), {})
        held = {((one.client, seq), one.attempt) for one in hello.inventory for seq in one.seqs}
        for key, attempt in held & at.keys():
            _raise(self._known, (epoch, key), at[key, attempt])

    def asked(self, epoch: int, keys: Iterable[Key]) -> None:
        """A hub that has no such tasks is asked for them: it counts anew."""
        for key in keys:
            self._known[epoch, key] = 0

    def reopened(self, epoch: int, key: Key, rerun: int) -> None:
        """A hub is asked for a task that has ended: its numbers go on from the one that its client says.

        Tasks that come together have one number, the largest.
        """
        self._known[epoch, key] = rerun
        self._ahead[key] = rerun
        self._fences[key].clear()

    def forgotten(self, epoch: int, client: int) -> None:
        """A hub has no session of a client (any more): it counts its tasks' executions anew."""
        for at in [at for at in self._known if at[0] == epoch and at[1][0] == client]:
            self._known[at] = 0

    def succeeded(self, run: DoneRun, plan: Plan) -> None:
        """A client is told of a success; of a key's tasks it may be another's."""
        key, shown = (plan.client, plan.seq), run.attempt - run.returns
        require(
            bool(plan.key) or shown in self._begun[key],
            "succeeded in an attempt that has not begun",
            key,
            shown,
        )

    def failed(self, failure: Failed, plan: Plan) -> None:
        """A client is told of a bad end, and of the attempts before."""
        key, shown = (plan.client, plan.seq), failure.attempt
        if plan.key:
            return
        begun, told = self._begun[key], f"{failure.kind} of attempt {shown}"
        for line in failure.history:
            found = _NUMBER.match(line)
            number = int(found[1]) if found else 0
            require(
                number in self._sent[key] and number <= shown,
                "history names an attempt that was not sent",
                key,
                told,
                failure.history,
            )
        if failure.kind not in NOWHERE and POOLS_DIED not in failure.text:  # it may have begun there
            require(shown in begun, "failed in an attempt that has not begun", key, told, begun)
        require(
            shown <= max(self._sent[key], default=0), "failed after more attempts than were sent", key, told
        )
        if self.calm and failure.kind in {"cancelled", "expired"}:
            require(shown == len(begun), "ended under another number than have begun", key, told, begun)

    def running(self, progress: Progress) -> None:
        """A client is told what runs."""
        key, shown = (progress.client, progress.seq), progress.attempt
        require(shown in self._sent[key], "said to run in an attempt that was not sent", key, shown)

    def check_sure(self, plan: Plan) -> None:
        """Where nothing has gone wrong nothing was counted that has not begun."""
        key = plan.client, plan.seq
        require(
            len(self._sent[key]) == plan.runs,
            "more attempts were sent than have begun",
            plan,
            self._sent[key],
        )


def _raise(numbers: dict[K, int], key: K, number: int) -> None:
    numbers[key] = max(number, numbers.get(key, 0))
