"""The journal's book: which tasks are written down, and what is to be written next.

A chunk is what one Submit brought. It is written before the client hears that its tasks are accepted, and
goes when the last of them is over: its client has the outcome, or has given the task up. Which tasks of a
chunk are over is written now and then; a hub that dies before that has another one run them again. The
outcome of one that is over stays for as long as there is a task that depends on it. One that has ended while
its client was away is not over; its outcome is written as well. So is one that others hear of than its own
client, or of which a consumer has acknowledged the outcome: nobody hears of that before it is written.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec.structs import replace

from taskmesh.core.hub.journal_entries import JournalEntries
from taskmesh.core.hub.spec_entry import SpecEntry
from taskmesh.core.ids import SEQ_BITS
from taskmesh.wire.journal import (
    CHUNK,
    ENDS,
    OUTCOME,
    SPEC,
    VALUE,
    Ends,
    JournalChunk,
    JournalOutcome,
    key_of,
)
from taskmesh.wire.runs import CALL, PROMISE, DoneRun, Failed, Run, Spec, Value

DURABLE_KINDS = frozenset({CALL, PROMISE})
"""A chunk of a map is its client's to put together, and schedules fire anew."""


class ChunkBook:
    """One chunk.

    Attributes:
        number: its place in the journal.
        entry: as it is written.
        seqs: its tasks, rising; those of a client's loop follow one another, and take no memory here.
        specs: the numbers of their specs.
        edges: the tasks that each of them depends on, for those that do.
        over: its tasks that are over.
    """

    __slots__ = ("_members", "edges", "entry", "number", "over", "seqs", "specs")

    def __init__(self, number: int, entry: JournalChunk) -> None:
        runs = entry.runs
        self.number = number
        self.entry = entry
        seqs = sorted(seq for run in runs for seq in run.seqs)
        whole = range(seqs[0], seqs[-1] + 1)
        follow = len(whole) == len(seqs) and seqs == list(whole)
        self.seqs: Sequence[int] = whole if follow else seqs
        self._members: range | frozenset[int] = whole if follow else frozenset(seqs)
        self.specs = {run.spec for run in runs}
        edged = (run for run in runs if run.needs or run.after)
        self.edges = {seq: needs | after for run in edged for seq, needs, after in edges_of(run)}
        self.over: set[int] = set()

    def __contains__(self, seq: int) -> bool:
        return seq in self._members and seq not in self.over

    @property
    def is_over(self) -> bool:
        return len(self.over) == len(self._members)

    def ends(self) -> Ends:
        return Ends(sorted(self.over))


class ClientBook:
    """The chunks of one client.

    Attributes:
        chunks: by their first task.
        strays: chunks that have a task between two of another one, by each of their tasks.
        needed: how many tasks that are not over depend on a task.
        values: of these, the outcomes that are written down.
        outcomes: of tasks that have ended and are not over, as far as they are written down, each with the
            number of the changes that have it.
    """

    __slots__ = ("_firsts", "chunks", "needed", "outcomes", "strays", "values")

    def __init__(self) -> None:
        self.chunks: dict[int, ChunkBook] = {}
        self.strays: dict[int, ChunkBook] = {}
        self.needed: Counter[int] = Counter()
        self.values: dict[int, Value] = {}
        self.outcomes: dict[int, tuple[JournalOutcome, int]] = {}
        self._firsts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.chunks or self.strays)

    def add(self, chunk: ChunkBook) -> None:
        for edges in chunk.edges.values():
            self.needed.update(edges)
        first, last = chunk.seqs[0], chunk.seqs[-1]
        at = bisect_right(self._firsts, last)
        before = self.chunks[self._firsts[at - 1]] if at else None
        if before is not None and before.seqs[-1] >= first:
            self.strays.update(dict.fromkeys(chunk.seqs, chunk))
            return
        self.chunks[first] = chunk
        insort(self._firsts, first)

    def find(self, seq: int) -> ChunkBook | None:
        """Return the chunk of a task that is written down and not over."""
        chunk = self.strays.get(seq)
        if chunk is None or seq not in chunk:
            at = bisect_right(self._firsts, seq)
            chunk = self.chunks[self._firsts[at - 1]] if at else None
        return chunk if chunk is not None and seq in chunk else None

    def let_go(self, chunk: ChunkBook, seq: int) -> list[int]:
        """A task is over; return the tasks whose outcomes nobody needs any more."""
        chunk.over.add(seq)
        unused = []
        for upstream in chunk.edges.get(seq, ()):
            self.needed[upstream] -= 1
            if not self.needed[upstream]:
                del self.needed[upstream]
                if upstream in self.values:
                    del self.values[upstream]
                    unused.append(upstream)
        return unused

    def drop(self, chunk: ChunkBook) -> None:
        """Forget a chunk of which nothing is left."""
        first = chunk.seqs[0]
        if self.chunks.get(first) is chunk:
            del self.chunks[first]
            del self._firsts[bisect_right(self._firsts, first) - 1]
            return
        for seq in chunk.seqs:  # one that had ended and came again is in a later chunk as well
            if self.strays.get(seq) is chunk:
                del self.strays[seq]


class Journal(JournalEntries):
    """The book of one hub: of what is written of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1
        self._clients: dict[int, ClientBook] = {}
        self._specs: dict[int, Spec] = {}
        self._uses: Counter[int] = Counter()  # of specs, by chunks
        self._touched: dict[int, ChunkBook] = {}
        self._unused: dict[str, None] = {}  # entries that are to go once their tasks are known to be over

    def __len__(self) -> int:
        strays = {chunk.number for book in self._clients.values() for chunk in book.strays.values()}
        return len(strays) + sum(len(book.chunks) for book in self._clients.values())

    def rewrite(self) -> None:
        """The journal has lost what was written: have all of it written again."""
        self._touched.clear()
        self._unused.clear()
        self.changes = {key_of(SPEC, number): spec for number, spec in self._specs.items()}
        for client, book in self._clients.items():
            for value in book.values.values():
                self.changes[_task_key(VALUE, client, value.seq)] = value
            for seq, (outcome, _) in book.outcomes.items():
                self._put_outcome(client, book, seq, outcome)
            strays = {chunk.number: chunk for chunk in book.strays.values()}
            for chunk in (*book.chunks.values(), *strays.values()):
                self.changes[key_of(CHUNK, chunk.number)] = chunk.entry
                self.changes[key_of(ENDS, chunk.number)] = chunk.ends()
        self.is_whole = True

    # --- in -----------------------------------------------------------------------------------------------

    def accept(self, entry: JournalChunk, specs: Mapping[int, SpecEntry], values: Iterable[Value]) -> None:
        """Write down tasks that are new here.

        Args:
            entry: the tasks.
            specs: those that the hub knows, by number.
            values: outcomes that they need, of tasks that ended before.
        """
        number, self._next = self._next, self._next + 1
        for spec in self._enter(number, entry, specs):
            self.changes[key_of(SPEC, spec)] = self._specs[spec]
        self.changes[key_of(CHUNK, number)] = entry
        self.bring(entry.client, values)

    def bring(self, client: int, values: Iterable[Value]) -> None:
        """Write down those of a client's outcomes that tasks which are not over depend on."""
        book = self._clients.get(client, ClientBook())
        for value in values:
            known = book.values.get(value.seq)
            if value.seq in book.needed and (known is None or (known.is_bare and not value.is_bare)):
                self._keep(client, book, value)

    def values_for(self, client: int, run: Run) -> list[Value]:
        """Return the outcomes that are written of the tasks which those of a run depend on."""
        values = self._clients.get(client, ClientBook()).values
        upstream = {seq for _, needs, after in edges_of(run) for seq in needs | after}
        return [values[seq] for seq in sorted(upstream & values.keys())]

    def restore(
        self, number: int, entry: JournalChunk, ends: Ends | None, specs: Mapping[int, SpecEntry]
    ) -> JournalChunk | None:
        """Take in a chunk that is written; return what is left of it, None if nothing is."""
        self._next = max(self._next, number + 1)
        self._enter(number, entry, specs)
        if ends is not None:
            over = frozenset(ends.seqs)
            self.over(entry.client, ends.seqs)
            runs = [without(run, over) if not over.isdisjoint(run.seqs) else run for run in entry.runs]
            entry = replace(entry, runs=[run for run in runs if run.seqs])
        return entry if entry.runs else None

    def restore_values(self, client: int, values: Iterable[Value]) -> list[Value]:
        """Take in outcomes that are written; return those that tasks depend on, and drop the others."""
        book = self._clients.get(client, ClientBook())
        needed = []
        for value in values:
            if value.seq in book.needed:
                book.values[value.seq] = value
                needed.append(value)
            else:
                self.changes[_task_key(VALUE, client, value.seq)] = None
        return needed

    def restore_outcomes(self, client: int, outcomes: Mapping[int, JournalOutcome]) -> list[int]:
        """Take in outcomes that wait for a client, by task; return those tasks, and drop what is over."""
        book = self._clients.get(client, ClientBook())
        waiting = []
        for seq, outcome in outcomes.items():
            if book.find(seq) is None:
                self.changes[_task_key(OUTCOME, client, seq)] = None
            else:
                book.outcomes[seq] = outcome, 0
                waiting.append(seq)
        return waiting

    def needed(self, client: int, seq: int) -> bool:
        """Return True if a task that is not over depends on this one."""
        book = self._clients.get(client)
        return book is not None and seq in book.needed

    def _enter(self, number: int, entry: JournalChunk, specs: Mapping[int, SpecEntry]) -> list[int]:
        """Note a chunk; return the specs that no chunk before it has."""
        chunk = ChunkBook(number, entry)
        fresh = [spec for spec in chunk.specs if spec not in self._specs]
        self._specs.update((spec, specs[spec].spec) for spec in fresh)
        self._uses.update(chunk.specs)
        self._clients.setdefault(entry.client, ClientBook()).add(chunk)
        return fresh

    # --- out ----------------------------------------------------------------------------------------------

    def delivered(
        self,
        client: int,
        done: Iterable[DoneRun],
        failed: Iterable[Failed],
        specs: Mapping[int, SpecEntry],
    ) -> None:
        """A client has these outcomes, or will never ask for them.

        Args:
            client: the client.
            done: results.
            failed: bad ends.
            specs: those that the hub knows, by number.
        """
        book = self._clients.get(client)
        if book is None:
            return
        for run in done:
            self.hold(run, specs.get(run.spec))
            self.over(client, run.seqs)
        for failure in failed:
            if failure.seq in book.needed:
                self._keep(client, book, Value(failure.seq, attempt=failure.attempt, failed=failure))
            self.over(client, [failure.seq])

    def hold(self, run: DoneRun, entry: SpecEntry | None) -> None:
        """Write down those results that tasks depend on, also if these are yet to be entered."""
        book = self._clients.get(run.client)
        if book is None or not book.needed:
            return
        name = "" if entry is None else entry.spec.name
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            if seq in book.needed and len(payload):
                self._keep(run.client, book, Value(seq, payload, name, run.attempt - run.returns))

    def ended(self, client: int, outcome: DoneRun | Failed) -> int:
        """Write down how tasks have ended that are not over: they need not run again.

        Returns:
            The number of the changes after which that is written; 0 if it is, or needs not be.
        """
        book = self._clients.get(client)
        if book is None:
            return 0
        seqs = [outcome.seq] if isinstance(outcome, Failed) else outcome.seqs
        last = 0
        for index, seq in enumerate(seqs):
            if seq not in book.outcomes:
                if book.find(seq) is None:
                    continue
                if isinstance(outcome, Failed):
                    entry = JournalOutcome(None, outcome)
                else:
                    alone = replace(outcome, seqs=[seq], payloads=[outcome.payloads[index]])
                    entry = JournalOutcome(alone, None)
                self._put_outcome(client, book, seq, entry)
            last = max(last, book.outcomes[seq][1])
        return self.pending(last)

    def _put_outcome(self, client: int, book: ClientBook, seq: int, outcome: JournalOutcome) -> None:
        book.outcomes[seq] = outcome, self.upcoming
        self.changes[_task_key(OUTCOME, client, seq)] = outcome

    def has(self, client: int, seq: int) -> bool:
        """Return True if a task is written down and not over."""
        book = self._clients.get(client)
        return book is not None and book.find(seq) is not None

    def given_up(self, client: int, seq: int) -> None:
        """A task was cancelled, and its client does not wait to hear of it."""
        book = self._clients.get(client)
        if book is not None:
            if seq in book.needed:
                self._keep(client, book, Value(seq, failed=Failed(0, seq, 0, "cancelled")))
            self.over(client, [seq])

    def over(self, client: int, seqs: Iterable[int]) -> None:
        """Nobody waits for these tasks any more, nor for their outcomes."""
        book = self._clients.get(client)
        if book is None:
            return
        for seq in seqs:
            chunk = book.find(seq)
            if chunk is None:
                continue
            self._touched[chunk.number] = chunk
            if book.outcomes.pop(seq, None) is not None:
                self._unused[_task_key(OUTCOME, client, seq)] = None
            for unused in book.let_go(chunk, seq):
                self._unused[_task_key(VALUE, client, unused)] = None
            if chunk.is_over:
                book.drop(chunk)
                self._drop(chunk)
        if not book:
            self._clients.pop(client, None)
        if self._unused and not self._touched:
            self._drop_unused()

    def _keep(self, client: int, book: ClientBook, value: Value) -> None:
        book.values[value.seq] = value
        self.changes[_task_key(VALUE, client, value.seq)] = value
        self._unused.pop(_task_key(VALUE, client, value.seq), None)

    def _drop(self, chunk: ChunkBook) -> None:
        self._touched.pop(chunk.number, None)
        self.changes[key_of(CHUNK, chunk.number)] = None
        self.changes[key_of(ENDS, chunk.number)] = None
        for spec in chunk.specs:
            self._uses[spec] -= 1
            if not self._uses[spec]:
                del self._specs[spec], self._uses[spec]
                self.changes[key_of(SPEC, spec)] = None

    def sweep(self) -> None:
        """Write down which tasks of chunks are over, of those where that has changed.

        What they needed and how they ended goes with it, not before: a hub that found a task without what it
        needs could neither run it nor end it.
        """
        touched, self._touched = self._touched, {}
        for number, chunk in touched.items():
            self.changes[key_of(ENDS, number)] = chunk.ends()
        self._drop_unused()

    def _drop_unused(self) -> None:
        unused, self._unused = self._unused, {}
        self.changes.update(unused)


def is_durable(spec: Spec) -> bool:
    """Return True if tasks are written down; not those that end with their client."""
    may_run_again = spec.durable is not False and spec.acks == "late"
    return spec.kind in DURABLE_KINDS and may_run_again and spec.on_client_loss != "cancel"


def edges_of(run: Run) -> Iterator[tuple[int, frozenset[int], frozenset[int]]]:
    """Yield the tasks of a run, each with those whose results it is handed and those that it comes after."""
    none: list[list[int]] = [[]] * len(run.seqs)
    for seq, needs, after in zip(run.seqs, run.needs or none, run.after or none, strict=True):
        yield seq, frozenset(needs), frozenset(after)


def _task_key(kind: str, client: int, seq: int) -> str:
    return key_of(kind, client << SEQ_BITS | seq)


def without(run: Run, seqs: Set[int]) -> Run:
    at = [index for index, seq in enumerate(run.seqs) if seq not in seqs]
    lists = {
        name: [values[index] for index in at]
        for name in ("seqs", "payloads", "needs", "after")
        if (values := getattr(run, name))
    }
    return replace(run, **lists)
