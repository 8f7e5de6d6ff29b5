"""Tasks of a journal that depend on others which are not in it: only their client can bring these.

What is not durable is lost with its hub, and comes again with its client. A task that depends on it waits
for that, outside the ledger; if its client does not come back in time, its upstream counts as unknown. Until
then what pools know of the tasks is kept for them. If the client comes back without the task, it is over: the
client has its outcome, or has given it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from msgspec.structs import replace

from taskmesh.core.hub.dependencies import UNKNOWN_TASK, Dependencies
from taskmesh.core.hub.journal import edges_of, without
from taskmesh.core.hub.ledger import Ledger
from taskmesh.core.hub.spec_entry import SpecEntry
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.wire.journal import JournalChunk
from taskmesh.wire.runs import Run, Value

LEASES = 2
"""Leases for which they wait: clients are back by then, and what pools have reported is kept for three."""


class Absent(NamedTuple):
    """A task that was set aside.

    Attributes:
        chunk: what it was accepted with.
        run: the task alone.
        spec: its spec.
    """

    chunk: JournalChunk
    run: Run
    spec: SpecEntry


class SetAside:
    """The tasks that wait for what they depend on to come.

    Args:
        ledger: the tasks that are here.
        dependencies: the outcomes that are.

    Attributes:
        tasks: by id, in the order in which they are to be entered.
    """

    def __init__(self, ledger: Ledger, dependencies: Dependencies) -> None:
        self.tasks: dict[int, Absent] = {}
        self._ledger = ledger
        self._dependencies = dependencies
        self._until = 0.0

    def wait_from(self, now: float, lease: float) -> None:
        self._until = now + LEASES * lease

    def are_due(self, now: float) -> bool:
        return bool(self.tasks) and now >= self._until

    def split(self, chunk: JournalChunk, run: Run, spec: SpecEntry) -> Run:
        """Set those tasks of a run aside whose upstream is not here; return the run without them."""
        if not (run.needs or run.after):
            return run
        own: set[int] = set()
        left_out: set[int] = set()
        over = self._ledger.account(chunk.client).finished
        for seq, needs, after in edges_of(run):
            upstream = (needs | after) - own
            if seq in over or all(self._is_known(chunk.client, other, other in needs) for other in upstream):
                own.add(seq)
            else:
                left_out.add(seq)
        for seq in run.seqs if left_out else ():
            if seq in left_out:
                alone = without(run, set(run.seqs) - {seq})
                self.tasks[chunk.client << SEQ_BITS | seq] = Absent(chunk, alone, spec)
        return without(run, left_out) if left_out else run

    def _is_known(self, client: int, seq: int, needed: bool) -> bool:
        task = client << SEQ_BITS | seq
        return task in self._ledger.tasks or self._dependencies.has(task, needed=needed)

    def came(self, client: int, seqs: Iterable[int] | None) -> list[int]:
        """Forget tasks of a client that it has brought, or given up; return those that were set aside.

        Args:
            client: the client.
            seqs: counters of its tasks; None for all.
        """
        base = client << SEQ_BITS
        if seqs is None:
            seqs = [seq_of(task) for task in self.tasks if client_of(task) == client]
        return [seq for seq in seqs if self.tasks.pop(base | seq, None) is not None]

    def take_overdue(self, present: Set[int]) -> Iterator[Absent]:
        """Yield tasks of absent clients, in their order; the upstream that they lack is known to be unknown.

        Args:
            present: clients whose tasks wait on: they bring them, or say that they do not.
        """
        absent = [(task, one) for task, one in self.tasks.items() if one.chunk.client not in present]
        for task, one in absent:
            del self.tasks[task]
            client = one.chunk.client
            unknown = [
                Value(seq, failed=replace(UNKNOWN_TASK, client=client, seq=seq))
                for _, needs, after in edges_of(one.run)
                for seq in sorted(needs | after)
                if not self._is_known(client, seq, seq in needs)
            ]
            self._dependencies.bring(client, unknown)
            yield one
