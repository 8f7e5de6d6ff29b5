"""Tasks of earlier hubs whose clients have not asked this one for them: held by pools, or finished."""

from __future__ import annotations

from typing import NamedTuple

from taskmesh.core.clients import size_of
from taskmesh.core.hub_config import HubConfig
from taskmesh.core.ledger import Ledger
from taskmesh.ids import SEQ_BITS
from taskmesh.wire import messages as m

MOST_RESULTS = 100_000
"""Results kept for clients that have not come back to a restarted hub."""


class Holding(NamedTuple):
    """Where a pool holds a task, and which attempt, of which so many were handed back unstarted.

    `bound`: to its client. `dropped`: the pool has been told not to run it.
    """

    session: int
    attempt: int
    returns: int = 0
    bound: bool = False
    dropped: bool = False


def handed_back(held: m.Held | Holding) -> int:
    """How often a pool says that it was handed back before, as far as that can be true."""
    return max(0, min(held.returns, held.attempt - 1))


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
    """What may still be asked for after a restart.

    By client and counter, not by id: an id's hash is easily met by others, and a pool may say what it likes.
    """

    def __init__(self, config: HubConfig, ledger: Ledger, started: float) -> None:
        self._config = config
        self._ledger = ledger
        self._started = started
        self._absent: dict[int, Absence] = {}
        self._results: dict[int, m.DoneRun] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many tasks pools hold that may be asked for."""
        return sum(not held.dropped for absence in self._absent.values() for held in absence.held.values())

    # --- tasks --------------------------------------------------------------------------------------------

    def listed(self, held: m.Held, seqs: list[int], session: int, now: float) -> None:
        """A pool lists tasks that nobody has asked for."""
        absence = self._absent.get(held.client)
        if absence is None:
            absence = self._absent[held.client] = Absence(now)
        absence.bound |= held.bound
        holding = Holding(session, held.attempt, handed_back(held), held.bound)
        absence.held.update(dict.fromkeys(seqs, holding))

    def take(self, client: int, seq: int) -> Holding | None:
        """Somebody asks for a task, or its pool does not hold it any more: it is struck off."""
        absence = self._absent.get(client)
        if absence is None:
            return None
        holding = absence.held.pop(seq, None)
        if not absence.held:
            del self._absent[client]
        return holding

    def take_all(self, client: int) -> dict[int, Holding]:
        """The client has said all that it waits for: the rest, by counter, is struck off."""
        absence = self._absent.pop(client, None)
        return absence.held if absence is not None else {}

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
        """Whether pools of these sessions hold any."""
        holdings = (held for absence in self._absent.values() for held in absence.held.values())
        return any(held.session in sessions and not held.dropped for held in holdings)

    def is_dropped(self, client: int, seq: int) -> bool:
        """Whether a pool that runs this has missed the word to drop it."""
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
        """What this session's pool holds is not known any more."""
        for client, absence in list(self._absent.items()):
            absence.held = {seq: held for seq, held in absence.held.items() if held.session != session}
            if not absence.held:
                del self._absent[client]

    def extend(self, gap: float) -> None:
        """The hub itself stood still: nobody could come back."""
        for absence in self._absent.values():
            absence.since += gap

    # --- results ------------------------------------------------------------------------------------------

    def reported(self, report: m.DoneRun | m.Failed | m.Held, now: float) -> None:
        """A report on a task unknown here: after a restart its client may still come for it.

        Successes are kept. After anything else the pool does not hold it any more: it will be sent again.
        """
        seq = report.seq if isinstance(report, m.Failed) else report.seqs[0]
        task = report.client << SEQ_BITS | seq
        self.take(report.client, seq)
        if not isinstance(report, m.DoneRun) or len(self._results) >= MOST_RESULTS:
            return
        size = size_of(report)
        if self._size + size > self._config.result_bytes:
            return
        account = self._ledger.accounts.get(report.client)
        young = now - self._started <= 3 * self._config.lease
        if young and (account is None or not account.is_over(seq)):
            self._size += size if task not in self._results else 0
            self._results.setdefault(task, report)

    def claim(self, task: int) -> m.DoneRun | None:
        """Somebody asks for a task: its result, if it is here."""
        report = self._results.pop(task, None)
        if report is not None:
            self._size -= size_of(report)
        return report

    def sweep(self, now: float) -> None:
        """Forgets results when nobody is expected any more."""
        if now - self._started > 3 * self._config.lease:
            self._results.clear()
            self._size = 0
