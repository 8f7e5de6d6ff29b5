"""Children: what a task has submitted and keeps on its way, also while no attempt of it runs.

A child of a task with `resume=True` has a key that names its parent, and a promise has its own. So another
attempt of the parent finds them again: on their way by the key, as any second waiter does, or over, since the
parent keeps their outcomes until its own end. At that end nobody asks for its children any more; those that
are detached go on.

They are lost with the hub: what a parent submits again at the next one runs again. Outcomes are not, if the
journal has the parent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from taskmesh.core.hub.account import PORTION, Account
from taskmesh.core.hub.journal import Journal
from taskmesh.core.hub.ledger import Ledger
from taskmesh.core.hub.result_cache import Key, Outcome, would_come_again
from taskmesh.core.hub.states import Links, State, TaskRecord
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, text_of
from taskmesh.core.link import size_of, size_of_failure
from taskmesh.wire.journal import CHILD, JournalChild
from taskmesh.wire.runs import Failed


class KeptOutcome:
    """The outcome of a child, kept until its parent ends.

    Attributes:
        outcome: a run of one task, or a bad end.
        account: the account that its bytes are counted in.
        size: its bytes.
        is_written: the journal has it.
    """

    __slots__ = ("account", "is_written", "outcome", "size")

    def __init__(self, outcome: Outcome, account: Account) -> None:
        self.outcome = outcome
        self.account = account
        self.is_written = False
        self.size = size_of_failure(outcome) if isinstance(outcome, Failed) else size_of(outcome)


class Children:
    """The children of tasks on their way.

    Args:
        ledger: the records.
        client_bytes: bytes of outcomes that the hub may hold for one client.
        most_bytes: bytes that it may hold for all.
        journal: where outcomes are written down, if there is one.

    Attributes:
        released: children whose parent has ended; they are to end as well, in portions.
    """

    def __init__(
        self, ledger: Ledger, client_bytes: int, most_bytes: int, journal: Journal | None = None
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._client_bytes = client_bytes
        self._most_bytes = most_bytes
        self.released: deque[TaskRecord] = deque()

    def outcome(self, parent: int, key: Key) -> Outcome | None:
        """Return the outcome of a child that has ended, if its parent keeps it."""
        record = self._ledger.tasks.get(parent)
        links = record.links if record is not None else None
        kept = links.children.get(key) if links is not None and links.children is not None else None
        return kept.outcome if kept is not None else None

    def add_all(self, parent: int, records: Iterable[TaskRecord], *, is_child: bool) -> None:
        """Keep tasks with a key on their way until their parent ends, unless that is not on its way itself.

        Args:
            parent: the id under which its pool has the parent.
            records: of the tasks or promises.
            is_child: nobody but another attempt of the parent will ask for them.
        """
        owner = self._ledger.tasks.get(parent)
        if owner is None:
            return
        for record in records:
            extra = record.extra
            if owner is record or extra is None or extra.key is None:
                continue
            links = owner.link()
            if links.children is None:
                links.children = {}
            links.children[extra.key] = None
            if extra.parents is None:
                extra.parents = set()
            extra.parents.add(owner.id)
            extra.is_child |= is_child

    def ended(self, record: TaskRecord, outcome: Outcome | None) -> None:
        """Have a record's parents keep its outcome, as it is about to be dropped.

        An outcome for which there is no room is computed again, should another attempt of the parent ask.
        """
        extra = record.extra
        if extra is None or not extra.parents:
            return
        for parent in extra.parents:
            owner = self._ledger.tasks[parent]
            children = owner.link().children
            if children is None:
                continue
            kept = self._keep(owner, outcome) if outcome is not None and extra.is_child else None
            if kept is not None:
                children[extra.key] = kept
                self._write(owner, extra.key, kept)
            else:
                children.pop(extra.key, None)
        extra.parents = None

    def _keep(self, owner: TaskRecord, outcome: Outcome) -> KeptOutcome | None:
        """Return an outcome as its parent keeps it; None if another attempt may end otherwise, or no room."""
        if isinstance(outcome, Failed) and not would_come_again(outcome):
            return None
        kept = KeptOutcome(outcome, self._ledger.account(owner.id >> SEQ_BITS))
        of_client, of_all = kept.account.held + kept.size, self._ledger.held + kept.size
        if of_client > self._client_bytes or of_all > self._most_bytes:
            return None
        self._ledger.hold(kept.account, kept.size)
        return kept

    def _write(self, owner: TaskRecord, key: Key, kept: KeptOutcome) -> None:
        """Have an outcome written, if another hub will have the parent."""
        parent = owner.id >> SEQ_BITS, owner.id & SEQ_MASK
        if self._journal is not None and self._journal.has(*parent):
            kept.is_written, outcome = True, kept.outcome
            done, failed = (None, outcome) if isinstance(outcome, Failed) else (outcome, None)
            entry = JournalChild(parent, *key, done, failed)
            self._journal.put_named(CHILD, (text_of(owner.id), *key), entry)

    def rewrite(self) -> None:
        """Have all outcomes written again."""
        for owner in self._ledger.tasks.values():
            links = owner.links
            for key, kept in (links.children or {}).items() if links is not None else ():
                if kept is not None:
                    self._write(owner, key, kept)

    def restore(self, entries: Iterable[JournalChild]) -> None:
        """Take in the outcomes of a journal, whose parents have been entered."""
        for entry in entries:
            parent, key = entry.parent[0] << SEQ_BITS | entry.parent[1], (entry.name, entry.key)
            owner, outcome = self._ledger.tasks.get(parent), entry.done or entry.failed
            kept = self._keep(owner, outcome) if owner is not None and outcome is not None else None
            if owner is None or kept is None:
                self._drop(parent, key)
                continue
            links = owner.link()
            if links.children is None:
                links.children = {}
            links.children[key] = kept
            kept.is_written = True

    def _drop(self, parent: int, key: Key) -> None:
        if self._journal is not None:
            self._journal.put_named(CHILD, (text_of(parent), *key), None)

    def over(self, parent: TaskRecord, links: Links) -> None:
        """A record is about to be dropped: nobody asks for its children any more."""
        children, links.children = links.children, None
        for key, kept in children.items() if children else ():
            if kept is not None:
                self._ledger.hold(kept.account, -kept.size)
                if kept.is_written:
                    self._drop(parent.id, key)
                continue
            child = self._ledger.by_key(*key)
            if child is not None:
                child.extra.parents.discard(parent.id)
                self.released.append(child)

    def take_released(self) -> list[TaskRecord]:
        """Take a portion of the released: those that nobody waits for, and that are still on their way."""
        taken: list[TaskRecord] = []
        for _ in range(min(PORTION, len(self.released))):
            record = self.released.popleft()
            extra = record.extra
            is_gone = extra.is_child or (extra.abandoned and not extra.waiters)
            wanted = extra.parents or record.spec.spec.detach or not is_gone
            if record.state <= State.RUNNING and not wanted:
                taken.append(record)
        return taken
