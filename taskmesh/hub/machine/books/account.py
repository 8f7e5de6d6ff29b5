"""The ledger's account of one client: what is on its way, and what is over."""

from __future__ import annotations

from collections.abc import Collection

from taskmesh.hub.machine.books.interval_set import COST, IntervalSet
from taskmesh.hub.machine.books.states import TaskRecord

SCATTERED = 64 << 20
"""Bytes that a client's finished numbers may take at least: no program's lie so far apart."""
PORTION = 5_000
"""Tasks that are ended or looked for in one step: some 25 ms of work, and others get their turn."""


class Account:
    """The ledger's account of one client: its unfinished tasks, their bytes, and the counters of the others.

    Attributes:
        tasks: those that it waits for, by counter; a second one under a `key=` has the first one's record.
        finished: counters of tasks that are over, and of such as never come.
        size: bytes of all that it has here; held: of outcomes that its tasks need, code: of specs that it has
            brought, which are both part of it.
        whole: what it waits for of an earlier hub's time is all here.
        name: what it calls itself. user: whose key it showed, empty without keys.
        owner: the user whose its tasks are, and what they name; of tasks that a task has submitted its user.
    """

    __slots__ = ("code", "finished", "held", "name", "owner", "size", "tasks", "user", "whole")

    def __init__(self) -> None:
        self.name = ""
        self.user = ""
        self.owner = ""
        self.tasks: dict[int, TaskRecord] = {}
        self.finished = IntervalSet()
        self.size = 0
        self.held = 0
        self.code = 0
        self.whole = False

    @property
    def is_used(self) -> bool:
        """True while anything of the client is here. What it has brought others may use longer."""
        return bool(self.tasks) or self.size > self.code

    def is_over(self, seq: int) -> bool:
        """Of a task that is not on its way: whether nobody can come for it any more."""
        return self.whole or seq in self.finished

    def is_scattered(self, most: int) -> bool:
        """Return True if the counters take more than `most` bytes."""
        return COST * len(self.finished.blocks) > max(most, SCATTERED)

    def forget_finished(self) -> None:
        """Forget the finished tasks: what the client submits again runs again."""
        self.finished = IntervalSet()

    def reopen(self, seqs: Collection[int]) -> None:
        """These may be accepted again, though they have ended."""
        for seq in seqs:
            self.finished.discard(seq)

    def never(self, seqs: list[int], most: int) -> None:
        """Mark counters that will never be submitted as finished, so that the set stays dense."""
        for at in range(0, len(seqs), PORTION):
            if not self.is_scattered(most):
                self.finished.add_all(seqs[at : at + PORTION])
