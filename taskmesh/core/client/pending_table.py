"""What the client machine needs to know of the tasks that its program waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taskmesh.wire.runs import Failed, Run, Spec


class PendingTable(Protocol):
    """What the machine needs of the table of unresolved tasks."""

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Every unresolved task that was drained before, to submit again; runs say `again`."""

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]:
        """Specs by number."""

    def lose_early(self) -> list[Failed]:
        """Takes unresolved at-most-once tasks that were drained before out of the table: each is lost."""
