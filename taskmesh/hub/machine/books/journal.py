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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from msgspec.structs import replace

from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.messages.journal_entries import (
    CHUNK,
    ENDS,
    OUTCOME,
    SPEC,
    VALUE,
    Ends,
    JournalChunk,
    JournalOutcome,
)
from taskmesh.messages.runs import CALL, PROMISE, DoneRun, Failed, Run, Spec, Value

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


class ClientBook:
    """The chunks of one client.

    Attributes:
        chunks: by their first task.
        strays: chunks that have a task between two of another one, by each of their tasks.
        needed: how many tasks that are not over depend on a task.
    """

    __slots__ = ("_firsts", "chunks", "needed", "strays")

    def __init__(self) -> None:
        self.chunks: dict[int, ChunkBook] = {}
        self.strays: dict[int, ChunkBook] = {}
        self.needed: Counter[int] = Counter()
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


class Journal(JournalChanges):
    """The book of one hub: of what is written of tasks.

    Attributes:
        specs: those of chunks, by number.
        chunks: by number.
        values: outcomes of tasks that others depend on which are not over, by id.
        outcomes: of tasks that have ended and are not over, as far as others may hear of them, by id.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 1
        self._clients: dict[int, ClientBook] = {}
        self._uses: Counter[int] = Counter()  # of specs, by chunks
        self.specs: JournaledDict[int, Spec] = JournaledDict(self, SPEC)
        self.chunks: JournaledDict[int, ChunkBook] = JournaledDict(
            self,
            CHUNK,
            encode=lambda _, chunk: chunk.entry,
            decode=lambda number, entry: (number, ChunkBook(number, entry)),
        )
        self._ends: JournaledDict[int, set[int]] = JournaledDict(
            self,
            ENDS,
            encode=lambda _, over: Ends(sorted(over)),
            decode=lambda number, entry: (number, set(entry.seqs)),
        )
        self.values: JournaledDict[int, Value] = JournaledDict(self, VALUE)
        self.outcomes: JournaledDict[int, JournalOutcome] = JournaledDict(self, OUTCOME)

    def __len__(self) -> int:
        return len(self.chunks)

    # --- in -----------------------------------------------------------------------------------------------

    def accept(self, entry: JournalChunk, specs: Mapping[int, SpecEntry], values: Iterable[Value]) -> None:
        """Write down tasks that are new here.

        Args:
            entry: the tasks.
            specs: those that the hub knows, by number.
            values: outcomes that they need, of tasks that ended before.
        """
        chunk = self.chunks[self._next] = ChunkBook(self._next, entry)
        for spec in chunk.specs:
            if spec not in self.specs.data:
                self.specs[spec] = specs[spec].spec
        self._enter(chunk)
        if any(run.rerun for run in entry.runs):
            self.sweep()  # how these have ended before is not how they end now
        self.bring(entry.client, values)

    def bring(self, client: int, values: Iterable[Value]) -> None:
        """Write down those of a client's outcomes that tasks which are not over depend on."""
        for value in values:
            known = self.values.get(client << SEQ_BITS | value.seq)
            if self.needed(client, value.seq) and (known is None or (known.is_bare and not value.is_bare)):
                self.values[client << SEQ_BITS | value.seq] = value

    def values_for(self, client: int, run: Run) -> list[Value]:
        """Return the outcomes that are written of the tasks which those of a run depend on."""
        upstream = {seq for _, needs, after in edges_of(run) for seq in needs | after}
        found = [self.values.get(client << SEQ_BITS | seq) for seq in sorted(upstream)]
        return [value for value in found if value is not None]

    def restore(self, kept: Callable[[JournalChunk], Iterable[int]]) -> list[JournalChunk]:
        """Take in the chunks that are written; return what is left of them.

        Args:
            kept: gives those tasks of a chunk that are over since their outcome is kept: it is written first.
        """
        chunks = list(self.chunks.values())
        for chunk in chunks:
            self._enter(chunk)
        left = []
        for chunk in chunks:
            entry, book = chunk.entry, self._clients[chunk.entry.client]
            for seq in {*self._ends.get(chunk.number, ()), *kept(entry)}:
                if seq in chunk:
                    book.let_go(chunk, seq)
            if chunk.over:
                self._shrink(book, chunk)
                runs = [without(run, chunk.over) for run in entry.runs]
                entry = replace(entry, runs=[run for run in runs if run.seqs])
            left.append(entry)
        for number in self._ends.keys() - self.chunks.keys():
            del self._ends[number]
        for task in [task for task in self.values if not self.needed(client_of(task), seq_of(task))]:
            del self.values[task]
        for task in [task for task in self.outcomes if not self.has(client_of(task), seq_of(task))]:
            del self.outcomes[task]
        return [chunk for chunk in left if chunk.runs]

    def needed(self, client: int, seq: int) -> bool:
        """Return True if a task that is not over depends on this one."""
        book = self._clients.get(client)
        return book is not None and seq in book.needed

    def _enter(self, chunk: ChunkBook) -> None:
        self._next = max(self._next, chunk.number + 1)
        self._uses.update(chunk.specs)
        self._clients.setdefault(chunk.entry.client, ClientBook()).add(chunk)

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
                value = Value(failure.seq, attempt=failure.attempt, failed=failure)
                self.values[client << SEQ_BITS | failure.seq] = value
            self.over(client, [failure.seq])

    def hold(self, run: DoneRun, entry: SpecEntry | None) -> None:
        """Write down those results that tasks depend on, also if these are yet to be entered."""
        book = self._clients.get(run.client)
        if book is None or not book.needed:
            return
        name = "" if entry is None else entry.spec.name
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            if seq in book.needed and len(payload):
                value = Value(seq, payload, name, run.attempt - run.returns)
                self.values[run.client << SEQ_BITS | seq] = value

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
            task = client << SEQ_BITS | seq
            if task not in self.outcomes:
                if book.find(seq) is None:
                    continue
                if isinstance(outcome, Failed):
                    self.outcomes[task] = JournalOutcome(None, outcome)
                else:
                    self.outcomes[task] = JournalOutcome(outcome.part([index]), None)
            last = max(last, self.outcomes.pending(task))
        return last

    def has(self, client: int, seq: int) -> bool:
        """Return True if a task is written down and not over."""
        book = self._clients.get(client)
        return book is not None and book.find(seq) is not None

    def over(self, client: int, seqs: Iterable[int]) -> None:
        """Nobody waits for these tasks any more, nor for their outcomes.

        Which tasks of a chunk are over is written now and then. What they needed and how they ended goes with
        that, not before: a hub that found a task without what it needs could neither run it nor end it.
        """
        book = self._clients.get(client)
        if book is None:
            return
        touched = {}
        for seq in seqs:
            chunk = book.find(seq)
            if chunk is None:
                continue
            touched[chunk.number] = chunk
            self.outcomes.drop_later(client << SEQ_BITS | seq)
            for unused in book.let_go(chunk, seq):
                self.values.drop_later(client << SEQ_BITS | unused)
        for chunk in touched.values():
            self._shrink(book, chunk)
        if not self._ends.later:
            self.outcomes.flush()
            self.values.flush()

    def _shrink(self, book: ClientBook, chunk: ChunkBook) -> None:
        """Tasks of a chunk are over; it goes with the last of them."""
        if not chunk.is_over:
            self._ends.put_later(chunk.number, chunk.over)
            return
        book.drop(chunk)
        if not book:
            del self._clients[chunk.entry.client]
        del self.chunks[chunk.number]
        if chunk.number in self._ends:
            del self._ends[chunk.number]
        for spec in chunk.specs:
            self._uses[spec] -= 1
            if not self._uses[spec]:
                del self.specs[spec], self._uses[spec]


def is_durable(spec: Spec) -> bool:
    """Return True if tasks are written down; not those that end with their client."""
    may_run_again = spec.durable is not False and spec.acks == "late"
    return spec.kind in DURABLE_KINDS and may_run_again and spec.on_client_loss != "cancel"


def edges_of(run: Run) -> Iterator[tuple[int, frozenset[int], frozenset[int]]]:
    """Yield the tasks of a run, each with those whose results it is handed and those that it comes after."""
    none: list[list[int]] = [[]] * len(run.seqs)
    for seq, needs, after in zip(run.seqs, run.needs or none, run.after or none, strict=True):
        yield seq, frozenset(needs), frozenset(after)


def without(run: Run, seqs: Set[int]) -> Run:
    at = [index for index, seq in enumerate(run.seqs) if seq not in seqs]
    lists = {
        name: [values[index] for index in at]
        for name in ("seqs", "payloads", "needs", "after")
        if (values := getattr(run, name))
    }
    return replace(run, **lists)
