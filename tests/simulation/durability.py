"""The promises of a journal, checked as things happen.

- no hub says that a task is accepted before it is written
- the next hub knows every accepted task, or how it has ended
- a task that was written to be over, or how it has ended, is not run again
- one of whose end somebody else than its client has heard is not run again by any hub: all hear the same
- a task that was accepted runs, or has a reason not to, whoever is dead
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from taskmesh.core.actions import WriteJournal
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.core.state_machine import require
from taskmesh.hub.journal.entries import decode
from taskmesh.hub.machine.books.journal import is_durable
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.messages.journal_entries import (
    ENDS,
    OUTCOME,
    Ends,
    Entry,
    JournalChunk,
    JournalKept,
    key_of,
    parts_of,
)
from taskmesh.messages.mesh_messages import Submit
from taskmesh.messages.runs import LaneRun
from tests.simulation.memory_journal import MemoryDisk

if TYPE_CHECKING:
    from taskmesh.hub.machine.machine import HubMachine
    from tests.simulation.workload import Plan

Task = tuple[int, int]


class Durability:
    """The tasks of one hub's journal.

    Attributes:
        accepted: tasks of which clients have heard that they are accepted.
        ended: tasks of which clients have heard how they have ended, or that they have given up.
        excused: tasks that a loss of power has taken, those of clients that have left or were forgotten, and
            those whose outcome was kept for as long as they had asked for.
    """

    def __init__(self) -> None:
        self.accepted: set[Task] = set()
        self.ended: set[Task] = set()
        self.excused: set[Task] = set()
        self._written: dict[Task, int] = {}
        self._brought: dict[Task, int] = {}  # those that run again, by the Submit that has brought them
        self._submits: dict[int, dict[int, list[Task]]] = defaultdict(dict)
        self._said: set[Task] = set()
        self._settled: set[Task] = set()
        self._again: set[Task] = set()
        self._seen: set[Task] = set()
        self._dropped: set[Task] = set()
        self._kept: dict[str, tuple[float, list[Task]]] = {}
        self._public: set[Task] = set()

    def began(self) -> None:
        """A hub starts: numbers begin anew."""
        self._written.clear()
        self._brought.clear()
        self._submits.clear()

    def submitted(self, client: int, submit: Submit) -> None:
        """A client says this; a hub that does not take it now is told again, under the same number."""
        self._submits[client][submit.number] = [(client, seq) for run in submit.runs for seq in run.seqs]

    def started_over(self, client: int, first: int) -> None:
        """A client says that its Submits begin with this one.

        It ignores what it is told of those before, and submits their tasks again under new numbers. The hub
        counts them as passed, those that it has never taken in as well: it had asked for what they lacked.
        """
        submits = self._submits[client]
        for passed in [number for number in submits if number < first]:
            del submits[passed]

    def handed(self, action: WriteJournal) -> None:
        """A hub has these changes written."""
        for key, entry in action.changes.items():
            if entry is None:
                self.excused.update(self._kept.pop(key, (0.0, []))[1])
            tasks = _tasks_of(entry)
            self._seen.update(tasks)
            for task in tasks if not action.is_whole else ():
                self._written.setdefault(task, action.number)
            if isinstance(entry, JournalKept):
                self._kept[key] = (entry.until, entry.tasks)

    def acknowledged(self, client: int, number: int, confirmed: int) -> None:
        """A hub tells a client that its Submits are accepted up to this one.

        Args:
            client: the client.
            number: the last Submit.
            confirmed: the number of the last changes that are written.
        """
        submits = self._submits[client]
        for taken in [taken for taken in submits if taken <= number]:
            self._said.update(submits[taken])
            for task in submits.pop(taken):
                written = self._written.get(task, 0) if taken >= self._brought.get(task, 0) else 0
                require(written <= confirmed, "accepted before it is written", task, written, confirmed)

    def lost(self) -> None:
        """A hub dies whose memory alone had its journal; what it has said last may be on its way still."""
        self.excused |= self.accepted | self._said
        self._public.clear()

    def heard(self, plans: Iterable[Plan]) -> None:
        """A client hears that these are accepted."""
        self.accepted.update((plan.client, plan.seq) for plan in plans if may_outlive(plan))

    def gone(self, client: int) -> None:
        """Nobody waits for the tasks of a client any more, nor for their outcomes.

        Should it come back after all, those whose outcomes it does not have run once more.
        """
        self.excused.update(task for task in self.accepted if task[0] == client)
        self._dropped.update(task for task in self._seen if task[0] == client)
        self._settled -= self._dropped - self.ended

    def lost_power(self, before: Mapping[bytes, bytes], disk: MemoryDisk) -> None:
        """The disk has lost what was not synced: nobody promises the tasks of that."""
        lost = [key for key, data in before.items() if disk.entries.get(key) != data]  # numbers come again
        self.excused.update(task for key in lost for task in _written_under(key, before[key]))
        if disk.entries != before:  # what was deleted may be back as well
            self._public.clear()

    def reloaded(self, hub: HubMachine, entries: Mapping[str, Entry]) -> set[Task]:
        """A hub has read its journal; return the tasks that it runs once more, for nobody."""
        state = hub.state
        parts = [parts_of(key) for key in entries]
        self._settled = set()
        left: set[Task] = set()
        for (_, number), entry in zip(parts, entries.values(), strict=True):
            if isinstance(entry, JournalChunk):
                ends = entries.get(key_of(ENDS, number))
                over = frozenset(ends.seqs) if isinstance(ends, Ends) else frozenset()
                left.update((entry.client, seq) for run in entry.runs for seq in run.seqs if seq not in over)
                runs = [run for run in entry.runs if not state.specs[run.spec].spec.keep]
                self._settled.update(
                    (entry.client, seq) for run in runs for seq in over.intersection(run.seqs)
                )
        self._settled -= left & self._again  # over in an earlier chunk, and then it was brought again
        self._settled.update((client_of(task), seq_of(task)) for kind, task in parts if kind == OUTCOME)
        self._settled -= self._dropped - self.ended
        late = {
            chunk.client << SEQ_BITS | seq
            for chunk in chain.from_iterable(hub.state.awaited.late.values())
            for run in chunk.runs
            for seq in run.seqs
            if seq not in state.ledger.account(chunk.client).finished
        }
        here = late.union(task for task, _ in tasks_by_id(state.ledger))
        forgotten = {task for until, tasks in self._kept.values() if until <= state.wall for task in tasks}
        for client, seq in sorted(self.accepted - self.ended - self.excused - forgotten):
            task = client << SEQ_BITS | seq
            session = state.clients.get(client)
            waits = session is not None and session.unacknowledged({seq})
            waits = waits or state.sinks.unacknowledged(client, {seq})  # it has expired meanwhile
            known = task in here or waits or state.result_cache.of_task(task, state.now)
            require(bool(known), "accepted, and the next hub does not know it", (client, seq))
        return {task for task in self.ended if task[0] << SEQ_BITS | task[1] in here}

    def reopened(self, tasks: set[Task], submit: int) -> None:
        """These run again, since others need their results; a hub takes them in with this Submit."""
        self._again |= tasks
        self._settled -= tasks
        for task in tasks:
            self._written.pop(task, None)
            self._brought[task] = submit

    def told_others(self, plans: Iterable[Plan]) -> None:
        """A hub tells somebody else than their clients how these have ended."""
        self._public.update((plan.client, plan.seq) for plan in plans if may_outlive(plan))

    def pushed(self, run: LaneRun) -> None:
        """A hub sends these to a pool."""
        public = self._public - self._again - self._dropped - self.excused if self._public else self._public
        known = [seq for seq in run.seqs if (run.client, seq) in public]
        require(not known, "runs again, and others have heard how it has ended", run.client, known)
        again = [seq for seq in run.seqs if (run.client, seq) in self._settled]
        require(not again, "runs again, and its outcome was written", run.client, again)


def may_outlive(plan: Plan) -> bool:
    """Return True if a journal has this task."""
    return is_durable(plan.kind.spec)


def _tasks_of(entry: Entry | None) -> list[Task]:
    if not isinstance(entry, JournalChunk):
        return []
    return [(entry.client, seq) for run in entry.runs for seq in run.seqs]


def _written_under(key: bytes, data: bytes) -> list[Task]:
    entry = decode(key.decode(), data)
    return entry.tasks if isinstance(entry, JournalKept) else _tasks_of(entry)
