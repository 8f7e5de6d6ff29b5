"""Submissions: tasks in, within caps, and what clients give up of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from taskmesh.core.actions import SendClient
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.adoption import Adoption
from taskmesh.hub.machine.attachments import Attachments
from taskmesh.hub.machine.books.backlog import LINE
from taskmesh.hub.machine.books.client_session import WORKER, ClientSession
from taskmesh.hub.machine.books.dependencies import UNKNOWN_TASK, is_bare, value_of
from taskmesh.hub.machine.books.journal import is_durable, without
from taskmesh.hub.machine.books.ledger import NAMED, weight_of_edges
from taskmesh.hub.machine.books.limits import MOST_COUNTERS
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import SUSPECT, Cause, State, TaskRecord
from taskmesh.hub.machine.cancellations import Cancellations
from taskmesh.hub.machine.collector import ANYBODY, Collector, of_task
from taskmesh.hub.machine.owners import Owners
from taskmesh.hub.machine.pools import PoolSessions
from taskmesh.hub.machine.schedules import Schedules
from taskmesh.hub.machine.sink_values import SinkValues
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.ventilator import Ventilator
from taskmesh.link.link import ACK_DELAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.limit_rules import text_of
from taskmesh.messages.runs import NOT_DURABLE, DoneRun, Failed, LimitRule, Run, Spec, Value

RETRY_BUSY = 0.05
"""Seconds after which a refused Submit may come again."""
LEASES = 2
"""Leases for which chunks are late: clients are back by then; what pools have reported is kept for three."""
NO_SPEC = Spec(b"", "")
"""In place of one that has been evicted."""
LARGE = 1 << 20
"""Bytes from which on a Submit is acknowledged at once, for its client may wait to send the next one."""


class Submissions:
    """Takes what clients submit, and acknowledges it.

    Attributes:
        late: by client, chunks of the journal with a task that depends on one which is not here. What is not
            durable is lost with its hub, and comes again with its client; if that does not come back in time,
            nothing is known of it. What a client comes back without is over: it has the outcome, or has given
            the task up.
    """

    def __init__(
        self,
        hub: HubState,
        collector: Collector,
        *,
        cancellations: Cancellations,
        adoption: Adoption,
        attachments: Attachments,
        pools: PoolSessions,
        ventilator: Ventilator,
        schedules: Schedules,
        sink_values: SinkValues,
        owners: Owners,
    ) -> None:
        self._hub = hub
        self._config = hub.config
        self._ledger = hub.ledger
        self._collector = collector
        self._cancellations = cancellations
        self._adoption = adoption
        self._attachments = attachments
        self._pools = pools
        self._ventilator = ventilator
        self._schedules = schedules
        self._sink_values = sink_values
        self._owners = owners
        self._late_until = 0.0

    def on_submit(self, session: ClientSession, submit: m.Submit, now: float) -> None:
        """Enter a batch whole or not at all, and acknowledge it."""
        number = submit.number
        if submit.epoch not in (0, self._config.epoch):
            self._hub.out.append(SendClient(session.client, m.ClientRefused()))
            return
        if submit.delivered:
            self.on_result_ack(session, submit.epoch, submit.delivered, now)
        if number != session.submitted + 1:
            if number <= session.submitted:
                self._hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
            return
        missing = self._missing(session, submit)
        if missing is not None:
            self._hub.out.append(SendClient(session.client, missing))
            return
        count, size = self._weight(submit)
        if count and not self._takes(session, submit, count, size):
            self._hub.dependencies.drop_unused()
            return
        self._hub.dependencies.reopen(session.client, submit.runs)
        self._write_down(session, submit, number)
        left = [self._without_kept(session.client, run, now) for run in submit.runs]
        submit.runs = [run for run in left if run.seqs]
        self._enter_all(session, submit, now)
        if submit.cancels or submit.unstarted:
            self.on_cancel(session.client, submit.cancels, submit.unstarted)
            account = self._ledger.account(session.client)
            account.never(submit.cancels, self._config.client_max_bytes)
        if submit.whole:  # it has had the outcomes of what it has not brought, or has given it up
            self._ledger.account(session.client).whole = True
            self._cancellations.drop_unclaimed(session.client, only_bound=False)
            for chunk in self._hub.late.pop(session.client, ()):
                self._drop_late(session.client, [seq for run in chunk.runs for seq in run.seqs])
        self._acknowledge(session, submit, size, now)

    def _durable(self, session: ClientSession, submit: m.Submit) -> JournalChunk | None:
        """Return those tasks of a Submit, before they are entered, that the journal is to have."""
        hub, account = self._hub, self._ledger.account(session.client)
        runs = [run for run in submit.runs if is_durable(hub.specs[run.spec].spec)]
        if any(run.again for run in runs):
            base, is_late = session.client << SEQ_BITS, session.client in self._hub.late
            tasks, finished = self._ledger.tasks, account.finished
            known = {
                seq
                for run in runs
                for seq in run.seqs
                if base | seq in tasks
                or (is_late and hub.journal is not None and hub.journal.has(session.client, seq))
                or seq in finished
                or hub.result_cache.of_task(base | seq, hub.now)
            }
            runs = [run for run in (without(run, known) for run in runs) if run.seqs]
        return JournalChunk(session.client, session.user, session.name, hub.wall, runs) if runs else None

    def end_as_told(self, client: int, values: Iterable[Value]) -> None:
        """Tasks that a journal had, and whose outcome is known to their client or to others, end in that way.

        Another execution might end in another way than those were told.
        """
        for value in values:
            record = self._ledger.tasks.get(client << SEQ_BITS | value.seq)
            if record is None or value.is_bare or (record.extra is not None and record.extra.is_shared):
                continue  # others may need the result
            if value.failed is not None:
                failure = replace(value.failed, client=client, seq=value.seq)
                if record.state is not State.QUEUED:
                    self._collector.finish(record, Cause.FAIL, failure)
                continue
            attempt = value.attempt or record.attempt
            done = DoneRun(record.spec.number, client, attempt, "", [value.seq], [value.payload], 0.0)
            self._collector.on_done(done, ANYBODY)

    def _write_down(self, session: ClientSession, submit: m.Submit, number: int) -> None:
        """Have the journal written before the client hears that its tasks are accepted."""
        hub, journal = self._hub, self._hub.journal
        chunk = self._durable(session, submit) if journal is not None and submit.runs else None
        session.submit(submit)
        if journal is None:
            return
        if chunk is None:
            journal.bring(session.client, submit.values)
        else:
            held = hub.dependencies.held_for(chunk.client, chunk.runs)
            journal.accept(chunk, hub.specs, [*submit.values, *held])
            session.unwritten.append((number, journal.upcoming))
            hub.unwritten.setdefault(session.client, session)
        self.end_as_told(session.client, submit.values)

    def on_written(self, number: int) -> None:
        """The journal has the changes up to a number: tell clients what is accepted now."""
        for client, session in list(self._hub.unwritten.items()):
            before = session.accepted
            if not session.written(number):
                del self._hub.unwritten[client]
            if session.accepted > before:
                self._hub.out.append(SendClient(client, m.Accepted(session.accepted)))
            self._hub.news.add(client)

    def restore(self, chunk: JournalChunk, now: float) -> None:
        """Enter tasks of a journal as if their client had submitted them again, unless they are late."""
        if self._hub.dependencies.missing(chunk.client, chunk.runs, ()):
            self._late_until = now + LEASES * self._config.lease
            self._hub.late.setdefault(chunk.client, []).append(chunk)
        else:
            self._restore(chunk, now)

    def _restore(self, chunk: JournalChunk, now: float) -> None:
        age = max(0.0, self._hub.wall - chunk.at)
        for run in chunk.runs:
            again = replace(run, again=True, age=run.age + age, delay=max(0.0, run.delay - age))
            self._enter(chunk.client, again, now, alone=False)

    def sweep(self, now: float) -> None:
        """Enter tasks of the journal whose upstream does not come any more, unless their client is here."""
        if not self._hub.late or now < self._late_until:
            return
        sessions = self._hub.clients
        away = [client for client in self._hub.late if client not in sessions or not sessions[client].present]
        for chunk in [chunk for client in away for chunk in self._hub.late.pop(client)]:
            self._restore_late(chunk, now)
        self._hub.dependencies.drop_unused()

    def _restore_late(self, chunk: JournalChunk, now: float) -> None:
        """Enter what is left of a chunk; nothing is known of what it lacks."""
        dependencies, journal, client = self._hub.dependencies, self._hub.journal, chunk.client
        if journal is None:
            return
        over = {seq for run in chunk.runs for seq in run.seqs if not journal.has(client, seq)}
        runs = [run for run in (without(run, over) for run in chunk.runs) if run.seqs]
        for run in runs:
            dependencies.bring(client, journal.values_for(client, run))
            if run.spec not in self._hub.specs:
                self._hub.add_spec(run.spec, journal.specs[run.spec])
        unknown = dependencies.missing(client, runs, ())
        failures = [replace(UNKNOWN_TASK, client=client, seq=seq) for seq in unknown]
        dependencies.bring(client, [Value(failure.seq, failed=failure) for failure in failures])
        self._restore(replace(chunk, runs=runs), now)
        told = [journal.values.get(client << SEQ_BITS | seq) for run in runs for seq in run.seqs]
        self.end_as_told(client, [value for value in told if value is not None])

    def _enter_all(self, session: ClientSession, submit: m.Submit, now: float) -> None:
        alone = len(submit.runs) == 1 and not submit.unstarted
        dependencies = self._hub.dependencies
        if submit.values:
            dependencies.bring(session.client, submit.values)
        for run in submit.runs:
            self._enter(session.client, run, now, alone=alone)
        if dependencies.brought:
            dependencies.drop_unused()

    def _without_kept(self, client: int, run: Run, now: float) -> Run:
        """Answer those tasks of a run whose outcome an earlier hub has kept; return the run without them."""
        cache = self._hub.result_cache
        if not run.again or not len(cache):
            return run
        base, kept = client << SEQ_BITS, set()
        for seq in run.seqs:
            cached = cache.of_task(base | seq, now)
            if cached is not None and seq not in self._ledger.account(client).finished:
                kept.add(seq)
                self._ledger.answered(client, seq)
                self._collector.give(of_task(cached.outcome, base | seq), cache.pending(cached))
        return without(run, kept) if kept else run

    def _missing(self, session: ClientSession, submit: m.Submit) -> m.NeedSpec | m.NeedValues | m.Busy | None:
        """Return the message that asks for what a Submit lacks, if it lacks anything.

        A client that is yet to hear of an outcome cannot send it: it submits again later.
        """
        specs = self._missing_specs(submit)
        if specs:
            return m.NeedSpec(submit.number, sorted(specs))
        for run in submit.runs:
            if run.needs or run.after:
                seqs = self._missing_values(session, submit.runs, submit.values)
                if seqs:
                    self._hub.dependencies.drop_unused()
                    if not all(is_bare(outcome) for outcome, _ in session.unacknowledged(set(seqs))):
                        return m.Busy(submit.number, RETRY_BUSY)
                    return m.NeedValues(submit.number, seqs)
                break
        return None

    def _missing_values(self, session: ClientSession, runs: list[Run], values: list[Value]) -> list[int]:
        """Return the tasks that runs depend on and whose outcome only the client can know.

        An outcome that is on its way to the client, or in a sink, is taken from there.
        """
        dependencies = self._hub.dependencies
        seqs = dependencies.missing(session.client, runs, values)
        if not seqs:
            return []
        found = [*session.unacknowledged(set(seqs)), *self._hub.sinks.unacknowledged(session.client, seqs)]
        needed = {seq for run in runs for edges in run.needs for seq in edges}
        for outcome, seq in found:
            number = outcome.spec if isinstance(outcome, DoneRun) else 0
            if isinstance(outcome, DoneRun) and not number:
                continue  # of a promise: its client has to sign the value once more
            if is_bare(outcome) and seq in needed:
                continue
            entry = self._hub.specs.get(number)
            spec = entry.spec if entry is not None else NO_SPEC
            dependencies.bring(session.client, [value_of(seq, outcome, spec)])
        return dependencies.missing(session.client, runs, values) if found else seqs

    def _missing_specs(self, submit: m.Submit) -> set[int]:
        """Take in the specs of its tasks that a Submit brings; return the numbers of those that they lack.

        A spec that comes without a task is passed over: it would count as nobody's. It is found by its number
        from then on, whoever has brought it, so the number is compared with the spec.
        """
        specs = self._hub.specs
        missing = {run.spec for run in submit.runs if run.spec not in specs}
        limited: dict[str, str] = {}
        rules: list[LimitRule] = []
        for number, spec in submit.specs if missing else ():
            if number in missing and number == spec_number(spec):
                missing.discard(number)
                self._hub.add_spec(number, spec)
                rules += spec.limits
                limited.update((rule.name, spec.name) for rule in spec.limits)
        for rule in self._ledger.limits.define(rules) if rules else ():
            fields: dict[str, object] = {
                "limit": rule.name,
                "rule": text_of(rule),
                "task": limited[rule.name],
                "fixed": rule.name in self._ledger.limits.fixed,
            }
            self._hub.log("limit.changed", fields)
        return missing

    def _acknowledge(self, session: ClientSession, submit: m.Submit, size: int, now: float) -> None:
        """Acknowledge a Submit: with the next delivery or after ACK_DELAY, every second one at once.

        So is a large one, since its client may wait for room in its window, and every one of an embedded
        client, to which it costs no message.
        """
        due = self._hub.acks_due
        if not session.credit or session.client in due or size >= LARGE:
            due.pop(session.client, None)
            self._hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
        else:
            due[session.client] = now + ACK_DELAY

    def acknowledge_due(self, now: float) -> None:
        while self._hub.acks_due:
            client, due = next(iter(self._hub.acks_due.items()))
            if now < due:
                return
            self._hub.out += self.owed(client)

    def owed(self, client: int) -> list[SendClient]:
        """The acknowledgement that a client waits for, if it does: now is the time."""
        if self._hub.acks_due.pop(client, None) is None:
            return []
        return [SendClient(client, m.Accepted(self._hub.clients[client].accepted))]

    def _takes(self, session: ClientSession, submit: m.Submit, count: int, size: int) -> bool:
        """Return True if tasks may come in now; otherwise answer the client with the reason.

        With a pool's key only tasks that pools of this key run may submit others, which end with them. After
        a restart such a pool may come back later than its tasks do: they wait.
        """
        nested = session.user.startswith(WORKER)
        if nested and any(self._hub.specs[run.spec].spec.on_client_loss != "cancel" for run in submit.runs):
            reason = (
                "a worker's key is for tasks that a running task submits, with on_client_loss='cancel': "
                "make a client's key for other programs with `taskmesh keys new client`"
            )
            self._hub.out.append(SendClient(session.client, m.ClientRefused(reason)))
            return False
        may_act = not nested or (self._owners.may_name(session) and self._pools.have_work(session.user))
        if may_act and self._fits(session, submit, count, size):
            return True
        self._hub.out += self.owed(session.client)
        self._hub.out.append(SendClient(session.client, m.Busy(submit.number, RETRY_BUSY)))
        return False

    def _fits(self, session: ClientSession, submit: m.Submit, count: int, size: int) -> bool:
        config, ledger = self._config, self._ledger
        account = ledger.account(session.client)
        kept = account.size + session.size
        tasks_fit = (
            len(ledger.tasks) + count <= config.max_tasks and account.tasks + count <= config.client_max_tasks
        )
        bytes_fit = (ledger.size + size <= config.max_bytes or not ledger.size) and (
            kept + size <= config.client_max_bytes or not kept
        )
        if self._hub.journal is not None and self._hub.journal.is_full and self._durable(session, submit):
            return False
        if len(ledger.limits.counters) >= MOST_COUNTERS and any(run.part for run in submit.runs):
            return False
        return tasks_fit and bytes_fit and not account.is_scattered(config.client_max_bytes)

    def _weight(self, submit: m.Submit) -> tuple[int, int]:
        """Return the number of its tasks that are new, and the bytes that all of it may take."""
        count = size = 0
        brought: set[int] = set()
        for run in submit.runs:
            entry = self._hub.specs[run.spec]
            if not entry.live and run.spec not in brought:
                brought.add(run.spec)
                size += entry.size
            count += 0 if run.rerun else len(run.seqs)
            size += LINE + sum(map(len, run.payloads))
            if run.key:
                size += NAMED + len(run.key)
            if run.needs or run.after:
                size += sum(weight_of_edges(len(edges)) for edges in (*run.needs, *run.after))
        for value in submit.values:
            size += len(value.payload)
        return count, size

    def _enter(self, client: int, run: Run, now: float, *, alone: bool) -> None:
        entry, ledger = self._hub.specs[run.spec], self._ledger
        if entry.spec.durable and self._hub.journal is None and not run.again:
            self._refuse(client, run.seqs, NOT_DURABLE)
            return
        if run.key and self._attach(client, run, entry, now):
            return
        records = self._accept(client, run, entry, now)
        if entry.needs_no_pool:
            self._await_end(entry, records)
            return
        if run.needs or run.after:
            self._enter_dependent(records, run, now)
            return
        if run.delay > 0:
            for record in records:
                ledger.move(record, Cause.DELAY)
                self._put_off(record, run, now)
            return
        if run.again:
            records = self._unknown(records, now)
        if not alone or len(records) != 1 or not self._ventilator.offer(records[0]):
            ledger.enqueue(records)

    def _refuse(self, client: int, seqs: list[int], kind: str) -> None:
        for seq in seqs:
            self._ledger.answered(client, seq)
            self._collector.give(Failed(client, seq, 0, kind))

    def _accept(self, client: int, run: Run, entry: SpecEntry, now: float) -> list[TaskRecord]:
        """Return the new records of a run, with what is known of them from before and who waits for them."""
        records = self._ledger.accept(client, entry, run, now, fresh=not run.again)
        if self._attachments.early:
            self._attachments.came(client, run.seqs)
        if run.rerun:
            self._ledger.reruns += len(records)
            for record in records:
                record.raise_attempts(run.rerun, run.rerun)
        for record in records if run.tried else ():
            record.raise_attempts(run.tried, run.tried)
            record.more().failed = run.tried
            self._ledger.charge(record, errors=run.tried)
        return records

    def _await_end(self, entry: SpecEntry, records: list[TaskRecord]) -> None:
        """Have promises WAIT for somebody to fulfil them, and values for room in their sink."""
        for record in records:
            self._ledger.move(record, Cause.AWAIT)
        if entry.is_sink_value and records:
            sink = entry.spec.sink and self._hub.owned(records[0].id >> SEQ_BITS, entry.spec.sink)
            self._sink_values.enter(sink, records)

    def _enter_dependent(self, records: list[TaskRecord], run: Run, now: float) -> None:
        """Enter tasks that depend on others: they WAIT, if only to the end of this step.

        All of them have their edges before the first may end: one that an earlier hub had is with a pool, or
        over, or waits for pools as well.
        """
        dependencies, ledger = self._hub.dependencies, self._ledger
        session = self._hub.clients.get(records[0].id >> SEQ_BITS) if records else None
        if session is not None:  # a task of this message may have ended, since a pool had its outcome already
            self._missing_values(session, [run], [])
        none: list[list[int]] = [[]] * len(run.seqs)
        edges = dict(zip(run.seqs, zip(run.needs or none, run.after or none, strict=True), strict=True))
        for record in records:
            needs, after = edges[record.id & SEQ_MASK]
            dependencies.enter(record, needs, after, run.when)
            ledger.move(record, Cause.AWAIT)
        for record in records:
            if run.delay > 0:
                self._put_off(record, run, now)
            elif run.again:
                self._adoption.is_known_elsewhere(record, now)

    def _put_off(self, record: TaskRecord, run: Run, now: float) -> None:
        """Have a record that has just become WAITING start when its client has said.

        It may have started at an earlier hub, where the clock has gone back since.
        """
        if run.at > 0:
            self._schedules.start_at(record, run.at, run.delay)
        else:
            self._ledger.wait(record, now + run.delay)
        if run.again:
            self._adoption.is_found(record, record.id, now)

    def _unknown(self, records: list[TaskRecord], now: float) -> list[TaskRecord]:
        """Return those of a run submitted before that are to be queued now."""
        records = [record for record in records if not self._adoption.is_known_elsewhere(record, now)]
        for record in [record for record in records if record.losses >= SUSPECT]:
            self._ledger.requeue(record)
        return [record for record in records if record.losses < SUSPECT]

    def _attach(self, client: int, run: Run, entry: SpecEntry, now: float) -> bool:
        """A second submission under the key of a task on its way becomes its second waiter.

        After its end, the outcome itself is the answer for as long as the spec says. The key of an attachment
        is another task's id.
        """
        if entry.is_attachment:
            self._attachments.enter(client, run, entry, now)
            return True
        task = client << SEQ_BITS | run.seqs[0]
        if task in self._ledger.tasks or run.seqs[0] in self._ledger.account(client).finished:
            return True
        if self._answer(client, run, entry, now):
            return True
        first = self._ledger.by_key(entry.spec.name, self._hub.owned(client, run.key))
        if first is None or entry.spec.shared != "all":
            return False
        self._ledger.attach(client, run.seqs[0], first)
        if self._attachments.early:
            self._attachments.came(client, run.seqs)
        if run.again:
            self._adoption.is_found(first, task, now)
        return True

    def _answer(self, client: int, run: Run, entry: SpecEntry, now: float) -> bool:
        """Answer a task with the outcome that is kept for its key; return False if there is none."""
        seq, cache = run.seqs[0], self._hub.result_cache
        key = (entry.spec.name, self._hub.owned(client, run.key))
        cached = cache.find(key, now)
        if cached is None:
            return False
        if entry.spec.detach:
            user = self._hub.owner(client)
            cached = cache.add(key, client << SEQ_BITS | seq, user)
        kept = cached.outcome
        self._ledger.answered(client, seq)
        self._collector.give(of_task(kept, client << SEQ_BITS | seq), cache.pending(cached))
        if entry.is_promise:  # tasks of this Submit may depend on it
            value = value_of(seq, kept, entry.spec)
            value.key = run.key
            self._hub.dependencies.bring(client, [value])
        return True

    def on_cancel(self, client: int, seqs: list[int], unstarted: list[int]) -> None:
        """A client has cancelled tasks of its own. Of the `unstarted` ones it learns which have ended.

        A task that a pool has, or may list after a restart, ends if it turns out not to have started.
        """
        if self._hub.dependencies.kept:
            self._hub.dependencies.drop_kept(client, seqs)
        self._sink_values.withdraw(client, seqs)
        if client in self._hub.late:
            self._drop_late(client, seqs)
        unsplit = self._hub.clients[client].unsplit
        for task in [client << SEQ_BITS | seq for seq in seqs]:
            self._cancellations.cancel(task, quiet=True)
            unsplit.pop(task, None)
        sessions: set[int] = set()
        for task in [client << SEQ_BITS | seq for seq in unstarted]:
            record = self._ledger.tasks.get(task)
            if record is None or record.has_failed or not record.is_waited_for(task):
                continue
            if record.state is State.QUEUED or self._has_never_left(record):
                self._cancellations.cancel(task)
            elif task not in record.more().unwanted:
                record.extra.unwanted += (task,)
                sessions.add(record.session)
        for lane in [self._hub.lanes[session] for session in sorted(sessions) if session]:
            self._pools.recall_unwanted(lane)

    def _drop_late(self, client: int, seqs: list[int]) -> None:
        """Nobody waits for these tasks of the journal, but for those of them that are here."""
        tasks, finished = self._ledger.tasks, self._ledger.account(client).finished
        gone = [seq for seq in seqs if client << SEQ_BITS | seq not in tasks and seq not in finished]
        if self._hub.journal is not None:
            self._hub.journal.over(client, gone)

    def _has_never_left(self, record: TaskRecord) -> bool:
        """Return True if a task waits for its time or for others, and no pool has had it."""
        if record.state is not State.WAITING or record.begun:
            return False
        if record.spec.is_promise:
            return True
        links = record.links
        return record.due > self._hub.now or (links is not None and links.waits > 0 and not links.recovers)

    def on_result_ack(self, session: ClientSession, epoch: int, number: int, now: float) -> None:
        """A client has its deliveries up to this one: there is room for more."""
        if epoch == self._config.epoch:
            taken = session.acknowledged(number, now)
            self._hub.news.add(session.client)
            if self._hub.journal is not None:
                for message in taken:
                    self._hub.journal.delivered(session.client, message.done, message.failed, self._hub.specs)
                    for failure in message.failed:
                        self._hub.letters.taken(session.client << SEQ_BITS | failure.seq)
