"""Values: the outcomes that tasks of a pool get with their arguments. Each comes once over a lane.

A hub says with later tasks when no task needs one any more. A superseded attempt may still be here, or a
task whose cancellation is on its way: if it starts nevertheless, it lacks an outcome and fails, and its
report does not count. A task that waits for the first failure of several lacks those that have not ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from taskmesh.messages.runs import LaneRun, Value


class Values:
    """Outcomes that the hub has sent, by the client and the counter of the task that gave them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Value] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, client: int, values: Iterable[Value]) -> None:
        for value in values:
            self._held[client, value.seq] = value

    def of(self, client: int, run: LaneRun) -> LaneRun:
        """Return a run for a slot, with every outcome that its tasks need and that is here."""
        seqs = dict.fromkeys(seq for needs in run.needs for seq in needs or ())
        found = [self._held.get((client, seq)) for seq in seqs]
        return replace(run, values=[value for value in found if value is not None])

    def forget(self, tasks: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Drop outcomes that the hub says nobody needs."""
        for client, seqs in tasks:
            for seq in seqs:
                self._held.pop((client, seq), None)

    def keep_only(self, runs: Iterable[LaneRun]) -> None:
        """Drop what the hub sent in its last session and no task here needs: it will not say so again."""
        needed = {(run.client, seq) for run in runs for needs in run.needs for seq in needs or ()}
        self._held = {key: value for key, value in self._held.items() if key in needed}
