"""Charges: the retries, crashes and time that tasks have used up, for the hub that comes after this one.

A hub's memory ends with it: budgets, numbers of attempts and the time since a task was accepted would begin
anew with the next hub. The client outlives it and keeps them, for those few tasks that have used up anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple, replace

from taskmesh.wire.messages import Deliver
from taskmesh.wire.runs import Charged, Progress, Run, Spec

UNKNOWN = Charged([])


class Charges:
    """Charges of one client's tasks, by counter, until their outcome is there.

    Attributes:
        charged: Budgets that tasks have used up.
        since: Times when a hub first accepted tasks that may expire.
        expiring: Numbers of the specs of such tasks.
    """

    def __init__(self) -> None:
        self.charged: dict[int, Charged] = {}
        self.since: dict[int, float] = {}
        self.expiring: set[int] = set()

    # --- in -----------------------------------------------------------------------------------------------

    def submitted(self, specs: Sequence[tuple[int, Spec]]) -> None:
        """Tasks of these specs are submitted from now on."""
        self.expiring.update([number for number, spec in specs if spec.expires > 0])

    def accepted(self, runs: list[Run], now: float) -> None:
        """A hub has accepted these tasks; the time counts for those that may expire."""
        for run in runs:
            if run.spec in self.expiring:
                for seq in run.seqs:
                    self.since.setdefault(seq, now)

    def told(self, charged: list[Charged]) -> None:
        """The hub tells what tasks have used up by now."""
        for one in charged:
            for seq in one.seqs:
                self.charged[seq] = most_of(self.charged.get(seq, UNKNOWN), one)

    def running(self, progress: list[Progress]) -> None:
        """Executions have begun."""
        for news in progress:
            known = self.charged.get(news.seq, UNKNOWN)
            if news.attempt > known.begun:
                self.charged[news.seq] = replace(known, begun=news.attempt)

    def delivered(self, deliver: Deliver) -> None:
        """These tasks have ended."""
        for run in deliver.done:
            self.ended(run.seqs)
        if deliver.failed:
            self.ended([failure.seq for failure in deliver.failed])

    def ended(self, seqs: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for known in (self.charged, self.since):
            if known:
                for seq in known.keys() & set(seqs):
                    del known[seq]

    # --- out ----------------------------------------------------------------------------------------------

    def message(self, runs: list[Run], now: float) -> list[Charged]:
        """Returns what these tasks have used up, tasks with equal charges together."""
        found: dict[tuple[float, ...], list[int]] = {}
        known = self.charged.keys() | self.since.keys()
        asked = [known.intersection(run.seqs) for run in runs] if known else []
        for seq in sorted(set().union(*asked)):
            charged, since = self.charged.get(seq, UNKNOWN), self.since.get(seq, now)
            fields = (*astuple(charged)[1:-1], now - since)
            if any(fields):
                found.setdefault(fields, []).append(seq)
        return [Charged(seqs, *fields) for fields, seqs in found.items()]  # type: ignore[arg-type]


def most_of(known: Charged, told: Charged) -> Charged:
    """Returns the larger charges of a task, since messages may overtake each other.

    Losses are those told last: a pool that was thought to have died may be back.
    """
    pairs = zip(astuple(known)[1:], astuple(told)[1:], strict=True)
    return replace(Charged([], *map(max, pairs)), losses=told.losses)
