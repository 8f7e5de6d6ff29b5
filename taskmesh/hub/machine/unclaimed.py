"""Tasks of earlier hubs whose clients have not asked this one for them: held by pools, or finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from taskmesh.core.ids import SEQ_BITS
from taskmesh.hub.machine.books.ledger import Ledger
from taskmesh.hub.machine.books.states import TaskRecord, handed_back
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.link.link import size_of, size_of_failure
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.runs import DoneRun, Failed, Held

MOST_RESULTS = 100_000
"""Results kept for clients that have not come back to a restarted hub."""


class Holding(NamedTuple):
    """An attempt that a pool holds: where, which, and how many before it were handed back unstarted.

    `bound`: to its client. `dropped`: the pool has been told not to run it.
    """

    session: int
    attempt: int
    returns: int = 0
    bound: bool = False
    dropped: bool = False

    @property
    def begun(self) -> int:
        """The number that people are shown."""
        return self.attempt - self.returns


class Absence:
    """One client's tasks that pools hold.

    Attributes:
        since: when a pool first listed some. bound: some may be bound to the client, and not dropped.
    """

    __slots__ = ("bound", "held", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.held: dict[int, Holding] = {}
        self.bound = False


class Unclaimed:
    """The orphans of a restart: attempts and results for which no client has asked yet.

    By client and counter, not by id: an id's hash is easily met by others, and a pool may say what it likes.
    """

    def __init__(self, config: HubSettings, ledger: Ledger, started: float) -> None:
        self._config = config
        self._ledger = ledger
        self._started = started
        self._absent: dict[int, Absence] = {}
        self._results: dict[int, list[DoneRun | Failed]] = {}
        self._size = 0
        self._young = True  # clients may still come back for what was an earlier hub's

    def __len__(self) -> int:
        """Return the number of tasks held by pools that may be asked for."""
        return sum(not held.dropped for absence in self._absent.values() for held in absence.held.values())

    @property
    def expects_former_clients(self) -> bool:
        """True while clients may still come back for what was an earlier hub's."""
        return self._young

    # --- tasks --------------------------------------------------------------------------------------------

    def listed(self, held: Held, seqs: list[int], session: int, now: float) -> None:
        """A pool lists tasks that nobody has asked for."""
        absence = self._absent.get(held.client)
        if absence is None:
            absence = self._absent[held.client] = Absence(now)
        absence.bound |= held.bound
        holding, known = Holding(session, held.attempt, handed_back(held), held.bound), absence.held
        if held.limits:
            for seq in seqs:
                self._ledger.limits.hold(held.client << SEQ_BITS | seq, held.limits, held.part)
        if known.keys().isdisjoint(seqs):
            known.update(dict.fromkeys(seqs, holding))
            return
        for seq in seqs:
            other = known.get(seq)
            if other is None or other.begun <= holding.begun:
                known[seq] = holding

    def take(self, client: int, seq: int) -> Holding | None:
        """Somebody asks for a task, or its pool does not hold it any more: it is struck off."""
        absence = self._absent.get(client)
        if absence is None:
            return None
        holding = absence.held.pop(seq, None)
        self._let_go(client, (seq,))
        if not absence.held:
            del self._absent[client]
        return holding

    def take_all(self, client: int) -> dict[int, Holding]:
        """The client has said all that it waits for: the rest, by counter, is struck off."""
        absence = self._absent.pop(client, None)
        if absence is None:
            return {}
        self._let_go(client, absence.held)
        return absence.held

    def _let_go(self, client: int, seqs: Iterable[int]) -> None:
        """Tasks are listed no more: their permits are free."""
        limits = self._ledger.limits
        if limits.listed:
            for seq in seqs:
                limits.let_go(client << SEQ_BITS | seq)

    def drop_bound(self, client: int) -> dict[int, Holding]:
        """The client is gone: what is bound to it, to be dropped; it stays known while its session lives."""
        absence = self._absent.get(client)
        if absence is None or not absence.bound:
            return {}
        absence.bound = False
        bound = {seq: held for seq, held in absence.held.items() if held.bound and not held.dropped}
        absence.held.update({seq: held._replace(dropped=True) for seq, held in bound.items()})
        return bound

    def are_held(self, sessions: set[int]) -> bool:
        """Return True if pools of these sessions hold any."""
        holdings = (held for absence in self._absent.values() for held in absence.held.values())
        return any(held.session in sessions and not held.dropped for held in holdings)

    def is_dropped(self, client: int, seq: int) -> bool:
        """Return True if the pool that runs this task has missed the message to drop it."""
        absence = self._absent.get(client)
        holding = absence.held.get(seq) if absence is not None else None
        return holding is not None and holding.dropped

    def overdue(self, now: float) -> list[int]:
        """Clients that have had the time that a silent client has, and to which tasks are bound."""
        grace = self._config.client_grace
        return [
            client
            for client, absence in self._absent.items()
            if absence.bound and now - absence.since >= grace
        ]

    def session_over(self, session: int) -> None:
        """The pool of this session is gone: what it held may have begun, its numbers are not given again."""
        for client, absence in list(self._absent.items()):
            lost = {seq: held for seq, held in absence.held.items() if held.session == session}
            for seq, held in lost.items():
                self.take(client, seq)
                if not held.dropped:
                    text = "its pool was lost before its client came back"
                    self.reported(Failed(client, seq, held.attempt, "lost", text=text, returns=held.returns))

    def extend(self, gap: float) -> None:
        """The hub itself stood still: nobody could come back."""
        for absence in self._absent.values():
            absence.since += gap

    # --- results ------------------------------------------------------------------------------------------

    def reported(self, report: DoneRun | Failed | Held) -> None:
        """A report on a task unknown here: after a restart its client may still come for it.

        Successes and failures are kept. What was handed back will be sent again.
        """
        seq = report.seq if isinstance(report, Failed) else report.seqs[0]
        task = report.client << SEQ_BITS | seq
        self._ended(report, seq)
        account = self._ledger.accounts.get(report.client)
        is_over = account is not None and account.is_over(seq)
        if is_over or not self._young or isinstance(report, Held):
            return
        size = weigh(report)
        if len(self._results) >= MOST_RESULTS or self._size + size > self._config.result_bytes:
            return
        reports = self._results.setdefault(task, [])
        if all(known.attempt != report.attempt for known in reports):
            reports.append(report)
            self._size += size

    def _ended(self, report: DoneRun | Failed | Held, seq: int) -> None:
        """A pool does not hold this attempt any more; of one that failed before, it may hold the next."""
        absence = self._absent.get(report.client)
        holding = absence.held.get(seq) if absence is not None else None
        if holding is not None and (holding.attempt <= report.attempt or isinstance(report, DoneRun)):
            self.take(report.client, seq)

    def claim(self, task: int) -> list[DoneRun | Failed]:
        """Somebody asks for a task: how attempts of it have ended, in their order, as far as is known."""
        reports = self._results.pop(task, [])
        self._size -= sum(map(weigh, reports))
        return sorted(reports, key=lambda report: report.attempt)

    def sweep(self, now: float) -> None:
        """Forget results when nobody is expected any more."""
        if self._young and now - self._started > 3 * self._config.lease:
            self._young = False
            self._results.clear()
            self._size = 0


class Awaited:
    """Tasks that wait for others of an earlier hub which may still come.

    Attributes:
        early: attachments, by the ids of their tasks.
        late: what the journal has of tasks whose upstream is unknown, by client: it may come with that. What
            is not durable is lost with its hub, and comes again with its client; if that does not come back
            in time, nothing is known of it. What a client comes back without is over: it has the outcome, or
            has given the task up.
        late_until: when chunks that are late are entered whose client is away.
    """

    def __init__(self) -> None:
        self.early: dict[int, list[TaskRecord]] = {}
        self.late: dict[int, list[JournalChunk]] = {}
        self.late_until = 0.0


def weigh(report: DoneRun | Failed) -> int:
    """Bytes that a report is counted for."""
    return size_of(report) if isinstance(report, DoneRun) else size_of_failure(report)
