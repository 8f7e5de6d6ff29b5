"""Clients of the hub: how their sessions begin and end, and what is kept for those that are away."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from taskmesh.core.actions import SendClient
from taskmesh.hub.machine.books.client_session import ClientSession, placed
from taskmesh.hub.machine.books.lanes import LEAVING
from taskmesh.hub.machine.cancellations import Cancellations, Extent
from taskmesh.hub.machine.owners import Owners
from taskmesh.hub.machine.schedules import Schedules
from taskmesh.hub.machine.settings import REFUSE, difference
from taskmesh.hub.machine.sink_values import SinkValues
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.runs import DoneRun, Failed

MOST_FORGOTTEN = 10_000
"""Clients of which it is remembered that they were forgotten, and have been told so."""
IDLE_TTL = 60.0
"""Seconds that a client is remembered that says nothing and has nothing here."""
MAX_WINDOW = 64 << 20
"""Bytes that one client may have under way: more is not faster."""
MOST_ROUTES = 100
"""Pairs of queue and tags of which a client is told how many slots serve them."""
MOST_WINDOWS = 128
"""So many clients share what may be under way; with more of them none has less."""


PORTION = 2000
"""Outcomes of clients that have gone which are written in one step, a run more at most."""


class Clients:
    """Sessions of clients.

    Attributes:
        most_kept: bytes of outcomes that may wait for one client before no more of its tasks are run.
    """

    def __init__(
        self,
        hub: HubState,
        cancellations: Cancellations,
        schedules: Schedules,
        sink_values: SinkValues,
        owners: Owners,
    ) -> None:
        self._hub = hub
        self._config = hub.config
        self._ledger = hub.ledger
        self._cancellations = cancellations
        self._schedules = schedules
        self._sink_values = sink_values
        self._owners = owners
        self.most_kept = hub.config.client_max_bytes
        self._forgotten: dict[int, bool] = {}
        self._opened = 0
        self._leaving: deque[tuple[int, Iterator[DoneRun | Failed]]] = deque()
        self._slots: dict[tuple[str, frozenset[str]], int] = {}

    # --- coming and going ---------------------------------------------------------------------------------

    def on_hello(self, hello: m.ClientHello, now: float, user: str = "") -> None:
        """A client opens its session or comes back: it gets a welcome and what it has not acknowledged."""
        config = self._config
        if hello.protocol != m.PROTOCOL:
            reason = f"the hub speaks protocol {m.PROTOCOL}, not {hello.protocol}: install the same taskmesh"
            self._hub.out.append(SendClient(hello.client, m.ClientRefused(reason)))
            return
        odd = difference(config.versions, hello)
        if odd and config.policy == REFUSE:
            self._hub.out.append(SendClient(hello.client, m.ClientRefused(odd)))
            self._hub.log("client.refused", {"client": hello.name, "reason": odd})
            return
        session = self._hub.clients.get(hello.client)
        full = self._full() if session is None else ""
        if full:
            self._hub.out.append(SendClient(hello.client, m.ClientRefused(full)))
            return
        if session is None:
            if self._is_ending(hello.client):
                return  # it asks again; what it submitted now would be cancelled with the rest
            if self._may_be_dead(hello):
                self._welcome(hello)
                return
            session = self._open(hello.client, user, hello.name, now)
            account = self._ledger.account(hello.client)
            account.forget_finished()
            account.finished.add_all(sorted(self._hub.sinks.ends.get(hello.client, ())))
        session.name, session.python, session.credit = hello.name, hello.python, hello.credit
        session.slot, session.parent = placed(hello.slot)
        session.is_operator = hello.operator
        self._owners.may_name(session)
        if odd and session.warning != odd:
            self._hub.log("client.versions", {"client": hello.name, "warning": odd})
        session.warning = odd
        session.submitted = max(session.submitted, hello.first - 1)
        session.present, session.linked, session.lost = True, True, False
        session.heard = now
        self._welcome(hello)
        self._hub.out += session.again(now)
        self._hub.news.add(hello.client)

    def programs(self) -> list[ClientSession]:
        """Return the sessions of programs: all but those of commands, unless these have tasks."""
        return [
            session
            for session in self._hub.clients.values()
            if not session.is_operator or self._ledger.account(session.client).tasks
        ]

    def restore(self, chunk: JournalChunk, now: float) -> None:
        """Open the session of a client whose tasks a journal has; it may come back."""
        if self._hub.house.is_own(chunk.client):
            self._ledger.account(chunk.client).owner = chunk.user
            return
        if chunk.client in self._hub.clients:
            return
        session = self._open(chunk.client, chunk.user, chunk.name, now)
        session.name, session.credit = chunk.name, 1
        session.present = session.linked = False

    def _open(self, client: int, user: str, name: str, now: float) -> ClientSession:
        session = self._hub.clients[client] = ClientSession(client, self._config.epoch, now, user)
        self._opened += 1
        session.number = self._opened
        account = self._ledger.account(client)
        account.name, account.user, account.owner = name, user, user
        return session

    def _may_be_dead(self, hello: m.ClientHello) -> bool:
        """Tell that a client which this hub has forgotten is to say Hello again, as one that lives does.

        What a dead one sent last may come after the word of its death: its tasks would run once more.
        """
        if hello.epoch != self._config.epoch or self._forgotten.pop(hello.client, False):
            return False
        self._forgotten[hello.client] = True
        if len(self._forgotten) > MOST_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        return True

    def _welcome(self, hello: m.ClientHello) -> None:
        config = self._config
        session = self._hub.clients.get(hello.client)
        welcome = m.ClientWelcome(
            config.epoch,
            min(config.client_max_tasks, config.max_tasks),
            config.client_max_bytes,
            config.beat,
            config.max_payload,
            hello.link,
            self._window(),
            session.number if session is not None else 0,
        )
        self._hub.send(hello.client, welcome)

    def _window(self) -> int:
        """Bytes that one more client may have under way to here: a share of what all may.

        Those that came before it have larger shares; together they have a few times as much.
        """
        arriving = self._config.arriving_bytes
        return arriving and min(
            MAX_WINDOW, max(1, arriving // min(MOST_WINDOWS, max(1, len(self._hub.clients))))
        )

    def on_bye(self, session: ClientSession, *, cancel: bool) -> None:
        """The client is gone for good: its tasks end with it, or those that say on_client_loss="cancel".

        With a journal the outcomes of the others wait for whoever asks by their ids.
        """
        self._end_tasks(session.client, Extent.ATTACHED if cancel else Extent.BOUND)
        is_waited_for = self._ledger.account(session.client).tasks or (
            session.has_outcomes and not session.slot
        )
        if self._hub.journal is not None and not cancel and is_waited_for:
            session.linked = False
            self._left(session)
        else:
            self._forget(session)

    def on_slot_gone(self, slot: str, user: str) -> None:
        """A slot's process has ended, or was killed: what its tasks have submitted ends with it.

        Args:
            slot: its pool's name and its process id.
            user: the user whose key the pool shows, as its slots do.
        """
        gone = [one for one in self._hub.clients.values() if one.slot == slot and one.user == user]
        for session in gone:
            self.on_bye(session, cancel=False)

    def _forget(self, session: ClientSession) -> None:
        """Forget a session whose client is gone for good; its tasks go on, and its account with them.

        A client that returns nevertheless submits again what it still waits for: tasks on their way here are
        found again, tasks that had ended run again.
        """
        if self._hub.clients.pop(session.client, None) is None:
            return
        self._hub.sinks.leave(session.client)
        self._sink_values.withdraw(session.client)
        self._hub.acks_due.pop(session.client, None)
        self._hub.unwritten.pop(session.client, None)
        if self._hub.journal is not None:
            for done, failed in session.outcomes():
                self._hub.journal.delivered(session.client, done, failed, self._hub.specs)
        self._hub.dependencies.drop_kept(session.client)
        self._ledger.backlog.withheld.discard(session.client)
        if session.client in self._cancellations.pending:
            self._ledger.backlog.withheld.add(session.client)
        if session.unsplit:
            self._ledger.account(session.client).forget_finished()
            for record in session.unsplit.values():
                entry = self._hub.specs.setdefault(record.spec.number, record.spec)
                self._ledger.readmit(record, entry)
        self._close_account(session.client)

    def _close_account(self, client: int) -> None:
        """Drop the account of a client that has no session, once nothing of it is here either."""
        account = self._ledger.accounts.get(client)
        if account is not None and not account.is_used and client not in self._hub.clients:
            self._ledger.accounts.pop(client, None)

    def _is_ending(self, client: int) -> bool:
        """Return True while all tasks of a client without a session are being cancelled."""
        pending = self._cancellations.pending.get(client)
        return pending is not None and pending.extent is not Extent.BOUND

    def go_on(self) -> None:
        """Cancel the next portion of what is to be cancelled, and write one of what is to be written."""
        self._write_outcomes()
        for client in self._cancellations.step():
            self._close_account(client)

    @property
    def orphans(self) -> int:
        """Tasks on their way whose clients have left; they are lost should this hub end."""
        here = {client for client, session in self._hub.clients.items() if session.present or session.linked}
        here.update(self._hub.house.clients.values())
        accounts = self._ledger.accounts
        return sum(accounts[client].tasks for client in accounts.keys() - here)

    def cancel_tasks_of(self, clients: Iterable[int], reason: str) -> int:
        """Cancel all that these clients have, from the next step on; return how many tasks that are."""
        return sum(self._cancellations.cancel_all(client, Extent.ALL, reason) for client in clients)

    def on_revoked(self, users: frozenset[str]) -> None:
        """These users are not let in any more: none of their tasks starts, and what runs of them ends."""
        self._schedules.on_revoked(users)
        self._hub.letters.on_revoked(users)
        for client, account in list(self._ledger.accounts.items()):
            if account.user in users or account.owner in users:
                user = account.user if account.user in users else account.owner
                self.cancel_tasks_of([client], f"the key of {user} was revoked")
                session = self._hub.clients.get(client)
                if session is not None:
                    self._forget(session)

    def on_gone(self, client: int) -> None:
        """The link says that nobody is there: an embedded client is gone for good, another may come back."""
        session = self._hub.clients.get(client)
        if session is not None:
            session.linked = False
            self._left(session)
            self._hub.sinks.leave(client)
            if not session.credit:
                self.on_bye(session, cancel=True)
            elif session.unsplit:
                self._drop_outcomes(session, "it is gone, and has not heard that it is to split a chunk")

    def _left(self, session: ClientSession) -> None:
        """A client is away: what has ended for it is written down, in portions."""
        if session.present and session.has_outcomes and self._hub.journal is not None:
            self._leaving.append((session.client, _one_by_one(list(session.outcomes()))))
        session.present = False

    def _write_outcomes(self) -> None:
        """Write the next portion of what clients have not fetched before they went."""
        left = PORTION
        while self._leaving and left:
            client, outcomes = self._leaving[0]
            for outcome in outcomes:
                if self._hub.journal is not None and client in self._hub.clients:
                    self._hub.journal.ended(client, outcome)
                left -= len(outcome.seqs) if isinstance(outcome, DoneRun) else 1
                if left <= 0:
                    return
            self._leaving.popleft()

    @property
    def is_behind(self) -> bool:
        """True if outcomes are still to be written of clients that have gone."""
        return bool(self._leaving)

    def on_beat(self, session: ClientSession) -> None:
        """A client waits: tell it what is accepted, and how many slots serve its tasks."""
        self._hub.send(session.client, m.Accepted(session.accepted, self._slots_for(session)))
        self._hub.news.add(session.client)

    def _slots_for(self, session: ClientSession) -> list[tuple[str, list[str], int]]:
        """Return the queues and tags of a client's tasks, each with the slots that serve them."""
        specs = self._hub.specs
        session.specs.intersection_update(specs)
        routes = {specs[number].route[:2] for number in session.specs}
        found = [(queue, sorted(tags), self._slots_of(queue, tags)) for queue, tags in routes]
        return sorted(found)[:MOST_ROUTES]

    def _slots_of(self, queue: str, tags: frozenset[str]) -> int:
        """Return how many slots serve a queue and tags, as counted since the last sweep."""
        found = self._slots.get((queue, tags))
        if found is None:
            lanes = self._hub.serving.get(queue, {}).values()
            found = sum(lane.hello.slots for lane in lanes if tags <= lane.tags and lane.state not in LEAVING)
            self._slots[queue, tags] = found
        return found

    def count_slots_anew(self) -> None:
        """Forget how many slots serve what: clients are told of pools that have come or gone."""
        self._slots.clear()

    def on_silence(self, session: ClientSession, now: float) -> None:
        """Nothing was heard from the client for long: tasks that are bound to it end, unless its link stands.

        A client that stands still, or computes and lets no other thread in, keeps the link and comes back; so
        does a task in a slot, to which its children are bound. A dead client is found when something is sent.
        """
        if session.linked and self._is_idle(session):  # it owes no beat
            session.specs.clear()
            session.present &= now - session.heard < IDLE_TTL
            return
        self._left(session)
        if session.linked and now - session.heard < self._config.client_silence:
            self._hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
            return
        session.lost = True
        self._end_tasks(session.client, Extent.BOUND)
        self._sink_values.withdraw(session.client)

    def _end_tasks(self, client: int, extent: Extent) -> None:
        """Cancel tasks of a client that is gone; one that returns is told."""
        self._cancellations.cancel_all(client, extent)
        self._cancellations.drop_unclaimed(client, only_bound=True)

    def drop_bound(self, now: float) -> None:
        """Pools drop what is bound to clients of an earlier hub that have not come back in time."""
        for client in self._hub.unclaimed.overdue(now):
            session = self._hub.clients.get(client)
            if session is None or session.lost:
                self._cancellations.drop_unclaimed(client, only_bound=True)

    def forget_absent(self, now: float) -> None:
        """Forget clients that have been away too long, or for which more is kept than there is room for.

        Their tasks go on: only outcomes that nobody takes are dropped. A client that stands still keeps its
        link and will take what it gave credit for: no more of its tasks are run meanwhile, and nothing is
        dropped before `result_ttl`.
        """
        config = self._config
        self._share_room()
        absent = [session for session in self._hub.clients.values() if not session.present]
        kept = sum(session.size for session in absent if not session.linked)
        for session in sorted(absent, key=lambda session: session.heard):
            away, size = self._away(session, now), session.size
            if away >= IDLE_TTL and self._is_idle(session):
                self._forget(session)
            elif away >= config.result_ttl:
                self._drop_outcomes(session, f"away for {config.result_ttl:g} s (hub.result_ttl)")
                kept -= 0 if session.linked else size
            elif size > self.most_kept and session.linked:
                self._hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))  # is it there?
            elif not session.linked and size and (size > self.most_kept or kept > config.result_bytes):
                self._drop_outcomes(session, f"no room for {size} bytes")
                kept -= size
        for client in self._ledger.accounts.keys() - self._hub.clients.keys():
            self._close_account(client)

    def _away(self, session: ClientSession, now: float) -> float:
        """Return the seconds for which outcomes have waited for an absent client, or may have.

        With a journal they wait for whoever asks: the time counts from the end of its last task.
        """
        if self._hub.journal is None:
            return now - session.heard
        if self._ledger.account(session.client).tasks:
            return 0.0
        return now - max(session.heard, session.ended)

    def _share_room(self) -> None:
        """Find how much may be kept for one client: when all have too much together, their equal share."""
        sizes = [session.size for session in self._hub.clients.values() if session.size]
        most = self._config.client_max_bytes
        if sum(sizes) > self._config.result_bytes:
            most = min(most, self._config.result_bytes // len(sizes))
        if most != self.most_kept:
            self.most_kept = most
            self._hub.news.update(session.client for session in self._hub.clients.values() if session.size)

    def _drop_outcomes(self, session: ClientSession, reason: str) -> None:
        """Forget a session with the outcomes that wait for it, and say so."""
        fields: dict[str, object] = {
            "client": f"{session.client:016x}",
            "name": session.name,
            "bytes": session.size,
            "tasks": self._ledger.account(session.client).tasks,
            "reason": reason,
        }
        if session.size or session.has_news:
            self._hub.log("outcomes.dropped", fields)
        self._forget(session)

    def _is_idle(self, session: ClientSession) -> bool:
        """Return True if the hub keeps nothing for a client."""
        waiting = self._ledger.account(session.client).tasks or session.client in self._hub.late
        return not waiting and not session.size and not session.has_news

    def _full(self) -> str:
        """Return the reason to refuse a further client, or "". Idle absent clients are forgotten first."""
        reason = self._no_place()
        if not reason:
            return ""
        for session in list(self._hub.clients.values()):
            if not session.present and self._is_idle(session):
                self.on_bye(session, cancel=True)
        return self._no_place()

    def _no_place(self) -> str:
        sessions = self._hub.clients.values()
        count = len(sessions)
        if self._hub.journal is not None:  # those whose tasks go on without them take no place
            count = sum(session.present or session.linked for session in sessions)
        if count < self._config.max_clients:
            return ""
        return (
            f"the hub has {count} clients and may have no more (hub.max_clients): close some, "
            "raise that, or start another hub"
        )


def _one_by_one(outcomes: list[tuple[list[DoneRun], list[Failed]]]) -> Iterator[DoneRun | Failed]:
    for done, failed in outcomes:
        yield from done
        yield from failed
