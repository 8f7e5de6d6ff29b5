"""What clients ask of the hub: tasks in, within caps; cancellations; their hello and goodbye."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from taskmesh.core.actions import LogEvent, SendClient
from taskmesh.core.hub.cancellations import Cancellations
from taskmesh.core.hub.client_session import WORKER, ClientSession
from taskmesh.core.hub.collector import ANYBODY, Collector
from taskmesh.core.hub.ledger import Ledger, SpecEntry
from taskmesh.core.hub.pools import PoolSessions
from taskmesh.core.hub.result_cache import ResultCache
from taskmesh.core.hub.settings import REFUSE, HubSettings, difference
from taskmesh.core.hub.states import SUSPECT, Cause, State, TaskRecord, handed_back
from taskmesh.core.hub.ventilator import Ventilator
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.core.link import ACK_DELAY
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Charged, DoneRun, Run

MOST_CHARGED = 100_000
"""Tasks of a client of which it may say before they come what they have used up."""
IDLE_TTL = 60.0
"""Seconds that a client is remembered that is away and has nothing here."""
RETRY_BUSY = 0.05
"""Seconds after which a refused Submit may come again."""
MAX_WINDOW = 64 << 20
"""Bytes that one client may have under way: more is not faster."""
MOST_WINDOWS = 128
"""So many clients share what may be under way; with more of them none has less."""
LARGE = 1 << 20
"""Bytes from which on a Submit is acknowledged at once, for its client may wait to send the next one."""


class Intake:
    """Client sessions and what they submit.

    Attributes:
        out: what is to be done.
        owing: clients to be told how many of their Submits are in the ledger, and by when.
        most_kept: bytes of outcomes that may wait for one client before no more of its tasks are run.
    """

    def __init__(
        self,
        config: HubSettings,
        ledger: Ledger,
        specs: dict[int, SpecEntry],
        clients: dict[int, ClientSession],
        *,
        collector: Collector,
        pools: PoolSessions,
        ventilator: Ventilator,
        result_cache: ResultCache,
        cancellations: Cancellations,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._specs = specs
        self._clients = clients
        self._collector = collector
        self._pools = pools
        self._ventilator = ventilator
        self._result_cache = result_cache
        self._cancellations = cancellations
        self.most_kept = config.client_max_bytes
        self._of_user: Counter[str] = Counter()
        self.out: list[object] = []
        self.owing: dict[int, float] = {}

    # --- coming and going ---------------------------------------------------------------------------------

    def hello(self, hello: m.ClientHello, now: float, user: str = "") -> None:
        """A client opens its session or comes back: it gets a welcome and what it has not acknowledged."""
        config = self._config
        if hello.protocol != m.PROTOCOL:
            reason = f"the hub speaks protocol {m.PROTOCOL}, not {hello.protocol}: install the same taskmesh"
            self.out.append(SendClient(hello.client, m.ClientRefused(reason)))
            return
        odd = difference(config.versions, hello)
        if odd and config.policy == REFUSE:
            self.out.append(SendClient(hello.client, m.ClientRefused(odd)))
            self.out.append(LogEvent("client.refused", {"client": hello.name, "reason": odd}))
            return
        session = self._clients.get(hello.client)
        known = session is not None and session.greeted
        full = self._full(user) if session is None else ""
        if full:
            self.out.append(SendClient(hello.client, m.ClientRefused(full)))
            return
        if session is None:
            if self._is_ending(hello.client):
                return  # it asks again; what it submitted now would be cancelled with the rest
            session = self._clients[hello.client] = ClientSession(hello.client, config.epoch, now, user)
            self._of_user[user] += 1
            account = self._ledger.account(hello.client)
            account.name, account.user = hello.name, user
            account.forget_finished()
        session.name, session.python, session.credit = hello.name, hello.python, hello.credit
        session.slot = hello.slot
        if odd and session.warning != odd:
            self.out.append(LogEvent("client.versions", {"client": hello.name, "warning": odd}))
        session.warning = odd
        session.submitted = max(session.submitted, hello.first - 1)
        session.present, session.linked, session.lost, session.heard = True, True, False, now
        self.out.append(
            SendClient(
                hello.client,
                m.ClientWelcome(
                    config.epoch,
                    known,
                    min(config.client_max_tasks, config.max_tasks),
                    config.client_max_bytes,
                    config.beat,
                    config.max_payload,
                    hello.link,
                    self._window(),
                ),
            )
        )
        self.out += session.again(now)
        self._collector.news.add(hello.client)

    def _window(self) -> int:
        """Bytes that one more client may have under way to here: a share of what all may.

        Those that came before it have larger shares; together they have a few times as much.
        """
        arriving = self._config.arriving_bytes
        return arriving and min(MAX_WINDOW, max(1, arriving // min(MOST_WINDOWS, len(self._clients))))

    def bye(self, session: ClientSession, *, cancel: bool) -> None:
        """The client is gone for good: its tasks end with it, or those that say on_client_loss="cancel"."""
        self._cancel_all(session.client, only_bound=not cancel)
        self._forget(session)

    def slot_gone(self, slot: str) -> None:
        """A slot's process has ended, or was killed: what its tasks have submitted ends with it."""
        for session in [session for session in self._clients.values() if session.slot == slot]:
            self.bye(session, cancel=False)

    def _forget(self, session: ClientSession) -> None:
        """Nobody takes outcomes of this session any more; its tasks go on, and its account with them.

        A client that comes back all the same submits again what it still waits for: what is on its way here
        is found again, what had ended runs again.
        """
        if self._clients.pop(session.client, None) is None:
            return
        self.owing.pop(session.client, None)
        self._of_user[session.user] -= 1
        if not self._of_user[session.user]:
            del self._of_user[session.user]
        self._ledger.backlog.withheld.discard(session.client)
        if session.client in self._cancellations.pending:
            self._ledger.backlog.withheld.add(session.client)
        if session.unsplit:
            self._ledger.account(session.client).forget_finished()
            for record in session.unsplit.values():
                entry = self._specs.setdefault(record.spec.number, record.spec)
                self._ledger.readmit(record, entry)
        self._close_account(session.client)

    def _close_account(self, client: int) -> None:
        """Drops the account of a client that has no session, once it has no tasks either."""
        account = self._ledger.accounts.get(client)
        if account is not None and not account.tasks and client not in self._clients:
            self._ledger.forget_client(client)

    def _is_ending(self, client: int) -> bool:
        """Whether all tasks of a client without a session are being cancelled."""
        pending = self._cancellations.pending.get(client)
        return pending is not None and not pending.only_bound

    def go_on(self) -> None:
        """Cancels the next portion of what is to be cancelled."""
        for client in self._cancellations.step():
            self._close_account(client)

    @property
    def orphans(self) -> int:
        """Tasks on their way whose clients have left; they are lost should this hub end."""
        here = {client for client, session in self._clients.items() if session.present or session.linked}
        accounts = self._ledger.accounts
        return sum(accounts[client].tasks for client in accounts.keys() - here)

    def cancel_tasks_of(self, clients: Iterable[int], reason: str) -> int:
        """Cancels all that these clients have, from the next step on; returns how many tasks that are."""
        return sum(
            self._cancellations.cancel_all(client, only_bound=False, reason=reason) for client in clients
        )

    def revoked(self, users: frozenset[str]) -> None:
        """These users are not let in any more: none of their tasks starts, and what runs of them ends."""
        for client, account in list(self._ledger.accounts.items()):
            if account.user in users:
                self.cancel_tasks_of([client], f"the key of {account.user} was revoked")
                session = self._clients.get(client)
                if session is not None:
                    self._forget(session)

    def gone(self, client: int) -> None:
        """The link says that nobody is there: an embedded client is gone for good, another may come back."""
        session = self._clients.get(client)
        if session is not None:
            session.present = session.linked = False
            if not session.credit:
                self.bye(session, cancel=True)
            elif session.unsplit:
                self._drop_outcomes(session, "it is gone, and has not heard that it is to split a chunk")

    def slow_down(self, client: int, wait: float, now: float) -> None:
        """Something that a client said was dropped, since its key says too much: it is told, and lives."""
        session = self._clients.get(client)
        if session is not None:
            session.heard = now
            self.out.append(SendClient(client, m.Busy(0, wait)))

    def silent(self, session: ClientSession, now: float) -> None:
        """Nothing was heard from the client for long: tasks that are bound to it end, unless its link stands.

        Who stands still, or computes and lets no other thread in, keeps the link and comes back: a task in a
        slot too, and its children are bound to it. Who has died shows it when something is sent.
        """
        session.present = False
        if session.linked and now - session.heard < self._config.client_silence:
            self.out.append(SendClient(session.client, m.Accepted(session.submitted)))
            return
        session.lost = True
        self._cancel_all(session.client, only_bound=True)

    def _cancel_all(self, client: int, *, only_bound: bool) -> None:
        """Cancels a client's tasks, or those with on_client_loss="cancel"; it is told should it come back."""
        self._cancellations.cancel_all(client, only_bound=only_bound)
        self._pools.drop_unclaimed(client, only_bound=True)

    def drop_bound(self, now: float) -> None:
        """Pools drop what is bound to clients of an earlier hub that have not come back in time."""
        for client in self._pools.unclaimed.overdue(now):
            session = self._clients.get(client)
            if session is None or session.lost:
                self._pools.drop_unclaimed(client, only_bound=True)

    def forget_absent(self, now: float) -> None:
        """Forgets clients that have been away too long, or for which more is kept than there is room for.

        Their tasks go on: only outcomes that nobody takes are dropped. A client that stands still keeps its
        link and will take what it gave credit for: no more of its tasks are run meanwhile, and nothing is
        dropped before `result_ttl`.
        """
        config = self._config
        self._share_room()
        absent = [session for session in self._clients.values() if not session.present]
        kept = sum(session.size for session in absent if not session.linked)
        for session in sorted(absent, key=lambda session: session.heard):
            away, size = now - session.heard, session.size
            if away >= IDLE_TTL and self._is_idle(session):
                self._forget(session)
            elif away >= config.result_ttl:
                self._drop_outcomes(session, f"away for {config.result_ttl:g} s (hub.result_ttl)")
                kept -= 0 if session.linked else size
            elif size > self.most_kept and session.linked:
                self.out.append(SendClient(session.client, m.Accepted(session.submitted)))  # is it there?
            elif not session.linked and size and (size > self.most_kept or kept > config.result_bytes):
                self._drop_outcomes(session, f"no room for {size} bytes")
                kept -= size
        for client in self._ledger.accounts.keys() - self._clients.keys():
            self._close_account(client)

    def _share_room(self) -> None:
        """Finds how much may be kept for one client: when all have too much together, their equal share."""
        sizes = [session.size for session in self._clients.values() if session.size]
        most = self._config.client_max_bytes
        if sum(sizes) > self._config.result_bytes:
            most = min(most, self._config.result_bytes // len(sizes))
        if most != self.most_kept:
            self.most_kept = most
            self._collector.news.update(session.client for session in self._clients.values() if session.size)

    def _drop_outcomes(self, session: ClientSession, reason: str) -> None:
        """Forgets a session with the outcomes that wait for it, and says so."""
        fields: dict[str, object] = {
            "client": f"{session.client:016x}",
            "name": session.name,
            "bytes": session.size,
            "tasks": self._ledger.account(session.client).tasks,
            "reason": reason,
        }
        if session.size or session.has_news:
            self.out.append(LogEvent("outcomes.dropped", fields))
        self._forget(session)

    def _is_idle(self, session: ClientSession) -> bool:
        """Whether nothing is kept here for a client."""
        return not session.size and not session.has_news and not self._ledger.account(session.client).tasks

    def _full(self, user: str) -> str:
        """Why no further client may come, or "". Those that are away and have nothing here make room."""
        reason = self._no_place(user)
        if not reason:
            return ""
        for session in list(self._clients.values()):
            if not session.present and self._is_idle(session):
                self.bye(session, cancel=True)
        return self._no_place(user)

    def _no_place(self, user: str) -> str:
        limit = self._config.key_sessions
        if len(self._clients) >= self._config.max_clients:
            return f"the hub has {len(self._clients)} clients and may have no more (hub.max_clients)"
        if user and limit and self._of_user[user] >= limit:
            return (
                f"{limit} clients show the key {user} already, and no more may (hub.key_sessions): close "
                "some, make a key for others with `taskmesh keys new client`, or raise that"
            )
        return ""

    # --- tasks --------------------------------------------------------------------------------------------

    def submit(self, session: ClientSession, submit: m.Submit, now: float) -> None:
        """Enters a batch whole or not at all, and acknowledges it."""
        number = submit.number
        if submit.epoch not in (0, self._config.epoch):
            self.out.append(SendClient(session.client, m.ClientRefused()))
            return
        if submit.delivered:
            self.taken(session, submit.epoch, submit.delivered, now)
        if number != session.submitted + 1:
            if number <= session.submitted:
                self.out.append(SendClient(session.client, m.Accepted(session.submitted)))
            return
        missing = self._missing_specs(submit)
        if missing:
            self.out.append(SendClient(session.client, m.NeedSpec(number, sorted(missing))))
            return
        count, size = _weight(submit)
        if count and not self._takes(session, submit, count, size):
            return
        session.submitted = number
        alone = len(submit.runs) == 1 and not submit.unstarted
        for run in submit.runs:
            self._enter(session.client, run, now, alone=alone)
        if submit.cancels or submit.unstarted:
            self.give_up(session.client, submit.cancels, submit.unstarted)
            account = self._ledger.account(session.client)
            account.never(submit.cancels, self._config.client_max_bytes)
        if submit.charged or submit.whole:
            self._from_before(session.client, submit)
        self._acknowledge(session, size, now)

    def _missing_specs(self, submit: m.Submit) -> set[int]:
        """Which specs its tasks need beside those that are known, and those that it brings."""
        for number, spec in submit.specs:
            if number not in self._specs:
                self._specs[number] = SpecEntry(number, spec)
        return {run.spec for run in submit.runs if run.spec not in self._specs}

    def taken(self, session: ClientSession, epoch: int, number: int, now: float) -> None:
        """A client has its deliveries up to this one: there is room for more."""
        if epoch == self._config.epoch:
            session.acknowledged(number, now)
            self._collector.news.add(session.client)

    def _acknowledge(self, session: ClientSession, size: int, now: float) -> None:
        """With the outcome, but within ACK_DELAY; of every second Submit at once, which the client waits for.

        To an embedded client it costs no message. Of a large one that nothing follows yet it is worth one.
        """
        if not session.credit:
            self.out.append(SendClient(session.client, m.Accepted(session.submitted)))
            return
        if session.client in self.owing or size >= LARGE:
            self.owing.pop(session.client, None)
            self.out.append(SendClient(session.client, m.Accepted(session.submitted)))
        else:
            self.owing[session.client] = now + ACK_DELAY

    def acknowledge_due(self, now: float) -> None:
        """Tells the clients that have waited long enough."""
        while self.owing:
            client, due = next(iter(self.owing.items()))
            if now < due:
                return
            self.out += self.owed(client)

    def owed(self, client: int) -> list[SendClient]:
        """The acknowledgement that a client waits for, if it does: now is the time."""
        if self.owing.pop(client, None) is None:
            return []
        return [SendClient(client, m.Accepted(self._clients[client].submitted))]

    def _takes(self, session: ClientSession, submit: m.Submit, count: int, size: int) -> bool:
        """Whether tasks may come in now; else the client is told.

        With a pool's key only tasks that pools of this key run may submit others, which end with them. After
        a restart such a pool may come back later than its tasks do: they wait.
        """
        nested = session.user.startswith(WORKER)
        if nested and any(self._specs[run.spec].spec.on_client_loss != "cancel" for run in submit.runs):
            reason = (
                "a worker's key is for tasks that a running task submits, with on_client_loss='cancel'. "
                "Cure: programs show a client's (`taskmesh keys new client`)"
            )
            self.out.append(SendClient(session.client, m.ClientRefused(reason)))
            return False
        if self._fits(session, count, size) and (not nested or self._pools.have_work(session.user)):
            return True
        self.out += self.owed(session.client)
        self.out.append(SendClient(session.client, m.Busy(submit.number, RETRY_BUSY)))
        return False

    def _fits(self, session: ClientSession, count: int, size: int) -> bool:
        config, ledger = self._config, self._ledger
        account = ledger.account(session.client)
        kept = account.size + session.size
        tasks_fit = (
            len(ledger.tasks) + count <= config.max_tasks and account.tasks + count <= config.client_max_tasks
        )
        bytes_fit = (ledger.size + size <= config.max_bytes or not ledger.size) and (
            kept + size <= config.client_max_bytes or not kept
        )
        return tasks_fit and bytes_fit and not account.is_scattered(config.client_max_bytes)

    def _enter(self, client: int, run: Run, now: float, *, alone: bool) -> None:
        entry, ledger = self._specs[run.spec], self._ledger
        if run.key and self._attach(client, run, entry, now):
            return
        records = ledger.accept(client, entry, run, now, fresh=not run.again)
        for record in records if run.tried else ():
            ledger.take_over(record, Charged([], begun=run.tried, failed=run.tried, errors=run.tried), now)
        if run.delay > 0:  # they have not started at an earlier hub either, and no pool holds them
            for record in records:
                ledger.move(record, Cause.DELAY)
                ledger.wait(record, now + run.delay)
            return
        if run.again:
            records = self._unknown(records, now)
        if not alone or len(records) != 1 or not self._goes_straight(records[0], now):
            ledger.enqueue(records)

    def _unknown(self, records: list[TaskRecord], now: float) -> list[TaskRecord]:
        """Returns those of a run submitted before that are to be queued now."""
        records = [record for record in records if not self._known_elsewhere(record, now)]
        for record in [record for record in records if record.losses >= SUSPECT]:
            self._ledger.requeue(record)
        return [record for record in records if record.losses < SUSPECT]

    def _goes_straight(self, record: TaskRecord, now: float) -> bool:
        """Whether a task went to a pool at once, past the queue: nothing waits, nor is due to."""
        ledger = self._ledger
        timers = ledger.timers.heap
        in_the_way = ledger.backlog.routes or ledger.suspects.routes or (timers and timers[0][0] <= now)
        push = None if in_the_way else self._ventilator.straight(record, now)
        if push is None:
            return False
        self.out.append(push)
        return True

    def _attach(self, client: int, run: Run, entry: SpecEntry, now: float) -> bool:
        """A second submission under the key of a task on its way becomes its second waiter.

        After its end, the outcome itself is the answer for as long as the spec says.
        """
        task = client << SEQ_BITS | run.seqs[0]
        if task in self._ledger.tasks or run.seqs[0] in self._ledger.account(client).finished:
            return True
        kept = self._result_cache.find((entry.spec.name, run.key))
        if kept is not None:
            self._ledger.answered(client, run.seqs[0])
            self._collector.give(kept, task)
            return True
        first = self._ledger.by_key(entry.spec.name, run.key)
        if first is None or entry.spec.shared != "all":
            return False
        self._ledger.attach(client, run.seqs[0], first)
        if run.again:
            self._found(first, task, now)
        return True

    def _known_elsewhere(self, record: TaskRecord, now: float) -> bool:
        """A task submitted before, to a hub that is gone: done, held by a pool, or waited for.

        After a restart the pools have a lease's time to come back with what they hold. It is sent again only
        when all of them have, or that is over.
        """
        if self._found(record, record.id, now):
            return True
        if not self._pools.recovery.is_over(now):
            self._pools.recovery.wait(record)
            return True
        return False

    def _found(self, record: TaskRecord, task: int, now: float) -> bool:
        """Whether a pool has run it, or holds it, under the id by which an earlier hub has known it.

        What client and pools have brought along of what it had used up there is charged to it.
        """
        unclaimed, pools = self._pools.unclaimed, self._pools
        account = self._ledger.account(client_of(task))
        if account.charged and (charged := account.charged.pop(seq_of(task), None)) is not None:
            self._ledger.take_over(record, self._bounded(charged), now)
        known = self._reported(record, task, now)
        holding = unclaimed.take(client_of(task), seq_of(task))
        if holding is None or record.state > State.RUNNING:
            return known
        lane = pools.lanes.get(holding.session)
        if lane is not None and not holding.dropped and pools.may_adopt(record, task, holding, None):
            pools.adopt(record, task, lane, holding)
            lane.hold([record])
            return True
        record.numbered(holding.attempt, holding.attempt - handed_back(holding))
        if lane is not None and not holding.dropped:
            pools.cancel_at_pool(holding.session, holding.attempt, task)  # it is old, or another has its key
        return known

    def _bounded(self, charged: Charged) -> Charged:
        """Bounds a charge to what a task on its way may have; a client may say what it likes."""
        config = self._config
        return replace(
            charged,
            crashes=min(charged.crashes, config.crash_limit - 1),
            ooms=min(charged.ooms, config.oom_limit - 1),
            losses=min(charged.losses, config.pool_loss_limit - 1),
        )

    def _reported(self, record: TaskRecord, task: int, now: float) -> bool:
        """Whether pools have said before it was asked for how attempts of it ended: this counts now."""
        known = False
        for report in self._pools.unclaimed.claim(task):
            if isinstance(report, DoneRun):
                self._collector.done(report, ANYBODY)
                return True
            if self._pools.may_adopt(record, task, report, None):
                self._collector.failed_before(record, report, now)
                known = True
            else:
                record.numbered(report.attempt, report.attempt - handed_back(report))
            if record.state > State.RUNNING:
                break
        return known

    def _from_before(self, client: int, submit: m.Submit) -> None:
        """A client says of tasks of an earlier hub's time what they have used up, or that it has said all.

        All: then pools drop what they hold for it beside that.
        """
        account = self._ledger.account(client)
        for one in submit.charged:
            if len(account.charged) + len(one.seqs) <= MOST_CHARGED:
                account.charged.update(dict.fromkeys(one.seqs, one))
        if submit.whole:
            account.whole = True
            account.charged.clear()
            self._pools.drop_unclaimed(client, only_bound=False)

    def give_up(self, client: int, seqs: list[int], unstarted: list[int]) -> None:
        """A client has cancelled tasks of its own; it knows. Of those `unstarted` it is told which ended.

        What a pool has, or may come back with after a restart, ends should it turn out not to have started.
        """
        unsplit = self._clients[client].unsplit
        for task in [client << SEQ_BITS | seq for seq in seqs]:
            self._cancellations.cancel(task, quiet=True)
            if unsplit:
                unsplit.pop(task, None)
        sessions: set[int] = set()
        for task in [client << SEQ_BITS | seq for seq in unstarted]:
            record = self._ledger.tasks.get(task)
            if record is None or record.has_failed:
                continue
            is_delayed = record.state is State.WAITING and record.more().due > 0 and not record.begun
            if record.state is State.QUEUED or is_delayed:
                self._cancellations.cancel(task)
            elif task not in record.more().unwanted:
                record.extra.unwanted.append(task)
                sessions.add(record.session)
        for lane in [self._pools.lanes[session] for session in sorted(sessions) if session]:
            self._pools.recall_unwanted(lane)


def _weight(submit: m.Submit) -> tuple[int, int]:
    """Returns the number of its tasks and the bytes of their payloads."""
    count = size = 0
    for run in submit.runs:
        count += len(run.seqs)
        size += sum(map(len, run.payloads))
    return count, size
