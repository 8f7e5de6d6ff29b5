"""The hub machine: ledger, ventilator, collector and sessions behind one `handle`."""

from __future__ import annotations

from functools import partial
from typing import assert_never

from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.core.actions import HubAction, WriteJournal
from taskmesh.core.ids import client_of, seq_of
from taskmesh.hub.machine import (
    attachments,
    cancellations,
    clients,
    collector,
    journal_events,
    owners,
    pools,
    promises,
    schedules,
    sink_values,
    submission,
)
from taskmesh.hub.machine.books.client_session import ClientSession
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.states import Cause, TaskRecord
from taskmesh.hub.machine.invariants import check_hub
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.ventilator import Ventilator
from taskmesh.hub.machine.views import letter_views, views
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Progress
from taskmesh.messages.status import HubStatus

Request = m.Query | m.Command | m.Fulfil | m.PutSchedule | m.DropSchedule
SILENT_BEATS = 4
"""Beats without a word after which a client is sent no more of what its tasks log."""
MOST_SPECS = 999
"""Specs that are kept, but for those of live tasks."""


class HubMachine:
    """Decides everything that a hub does; performs nothing.

    The same events at the same times give the same actions. Call `handle` with a Tick no later than
    `deadline`.

    Attributes:
        state: the books.
    """

    def __init__(self, config: HubSettings, now: float) -> None:
        self.config = config
        self.state = state = HubState(config, now)
        self.ventilator = Ventilator(state)
        self._end_task = partial(collector.finish, state)
        self._sweep_at = now

    # --- the machine contract -----------------------------------------------------------------------------

    def take(self, event: object, now: float) -> None:
        """Take in one event."""
        self._advance(now)
        if isinstance(event, ev.FromPool):  # a class pattern that takes fields, or fails, takes longer
            self._on_pool_message(event, now)
        elif isinstance(event, ev.FromClient):
            self._from_client(event, now)
        elif isinstance(event, ev.RareHubEvent):
            self._on_others(event, now)
        elif not isinstance(event, ev.Tick):
            raise TypeError(f"not an event of a hub: {event!r}")

    def act(self, now: float) -> list[HubAction]:
        """Return what is to be done after the events that were taken in; see `link.shell.Machine`."""
        self._advance(now)
        self._finish(now)
        actions = self.state.out
        self.state.out = []
        return actions

    def _on_others(self, event: ev.RareHubEvent, now: float) -> None:
        match event:
            case ev.LaneOpened() | ev.LaneLost() | ev.LinksLost() | ev.ClientGone():
                self._on_link(event, now)
            case ev.JournalRead() | ev.JournalWritten() | ev.JournalTold():
                if self.state.journal is not None:
                    journal_events.on_event(self.state, self.state.journal, event, now)
            case ev.Revoked(users=users):
                clients.on_revoked(self.state, users)
            case ev.Shortage(text=text):
                self.state.diagnostics.shortage = text
            case ev.Clock(offset=offset):
                schedules.on_clock(self.state, offset)
            case _:
                assert_never(event)

    @property
    def deadline(self) -> float:
        hub = self.state
        now = hub.now
        if hub.cancellations.pending or hub.dependencies.is_settling or hub.known_clients.leaving:
            return now
        first = min(self._sweep_at, now + self.config.stall / 2, hub.schedules.deadline)
        if hub.ledger.timers.heap:
            first = min(first, hub.ledger.timers.deadline)
        if hub.recovery.waiting:
            first = min(first, hub.recovery.deadline)
        if hub.ledger.limits.counters:
            limits = hub.ledger.limits
            first = min(first, limits.deadline)
            if limits.recovers:
                first = min(first, hub.recovery.deadline)
        if hub.due.acks:
            first = min(first, next(iter(hub.due.acks.values())))
        if len(hub.lanes) > 1 and hub.ledger.count:
            recall = self.ventilator.recall_deadline()
            if recall is not None:
                first = min(first, recall)
        return first

    def _finish(self, now: float) -> None:
        """Does what events may have made due; the order of these steps is the order of their actions."""
        hub = self.state
        ledger = hub.ledger
        is_behind = hub.cancellations.pending or hub.recovery.waiting or hub.known_clients.leaving
        if is_behind or now >= min(self._sweep_at, hub.schedules.deadline):
            self._go_on(now)
        ledger.due(now, self._expire)  # what was given up while it waited ends before anything is sent
        if hub.dependencies.is_settling:
            hub.dependencies.settle(now, self._end_task)
        if hub.cancellations.at_pools:
            cancellations.publish(hub)
        if hub.due.acks:
            submission.acknowledge_due(hub, now)
        if hub.sinks.news:
            hub.out += hub.sinks.deliveries(now)
        if hub.due.news:
            self._deliver(now)  # before what tells pools that they need not keep them any more
        if ledger.limits.counters:
            self._pass_limits(now)  # after all that queues tasks, before what pushes them
        if ledger.backlog.routes or ledger.suspects.routes or self.ventilator.lone is not None:
            hub.out += self.ventilator.dispatch(now)
        if len(hub.lanes) > 1 and ledger.count:
            self._recall(self.ventilator.recalls(now))
        self._write()

    def _write(self) -> None:
        hub = self.state
        journal = hub.journal
        if journal is not None and (journal.changes or journal.is_whole):
            hub.out.append(WriteJournal(*journal.take()))

    def _go_on(self, now: float) -> None:
        """Does periodic work that is due, and the next portion of what takes longer than one event may."""
        if now >= self._sweep_at:
            self._sweep(now)
        clients.go_on(self.state)
        self.state.recovery.release(now)
        if now >= self.state.schedules.deadline:
            schedules.fire(self.state)

    def _pass_limits(self, now: float) -> None:
        limits = self.state.ledger.limits
        limits.pass_to(now)
        if limits.recovers and self.state.recovery.is_over(now):
            limits.recovered()

    def _recall(self, recalls: list[tuple[Lane, int]]) -> None:
        epoch = self.config.epoch
        for lane, count in recalls:
            self.state.publish(lane.pool, m.Recall(epoch, lane.session, count))

    def _deliver(self, now: float) -> None:
        """Send clients what they may have of their outcomes.

        A client that is there and takes no results gets no more made: completions are always taken in.
        """
        hub = self.state
        withheld, most = hub.ledger.backlog.withheld, hub.known_clients.most_kept
        for client in hub.due.news:
            session = hub.clients.get(client)
            if session is not None and session.size > most and session.linked:
                withheld.add(client)
            elif withheld and client not in hub.cancellations.pending:
                withheld.discard(client)
            if session is not None:
                if hub.journal is not None and not session.credit:  # nothing is lost on the way to it
                    hub.journal.delivered(client, *session.ready, hub.specs)
                deliveries = session.deliveries(now)
                if deliveries:
                    hub.out += deliveries
                    hub.due.acks.pop(client, None)  # they say it
        hub.due.news.clear()

    # --- pools --------------------------------------------------------------------------------------------

    def _on_pool_message(self, event: ev.FromPool, now: float) -> None:
        message = event.message
        if isinstance(message, m.Results):
            self._on_results(message, now)
            return
        match message:
            case m.Beat():
                notice = pools.on_beat(self.state, message, now)
                if notice is not None:
                    self._notify(notice)
            case m.Hello():
                refusal = owners.refusal_of_pool(self.state, message, event.user, event.token)
                if refusal:
                    self._refuse(event.user, refusal)
                else:
                    pools.on_hello(self.state, message, now, event.user, event.token)
            case m.Misrouted(pool=pool, session=session):
                self.state.log("pool.misrouted", {"pool": pool, "session": session})
            case m.Bye() | m.PoolNeedSpec() | m.SlotGone():
                lane = pools.current(self.state, message.epoch, message.session)
                if lane is not None:
                    self._in_session(lane, message)
            case _:
                assert_never(message)

    def _in_session(self, lane: Lane, message: m.Bye | m.PoolNeedSpec | m.SlotGone) -> None:
        match message:
            case m.Bye(sent=sent):
                pools.on_bye(self.state, lane.session, sent)
            case m.PoolNeedSpec(specs=specs):
                lane.known_specs.difference_update(specs)
            case m.SlotGone(pid=pid):
                clients.on_slot_gone(self.state, f"{lane.pool}/{pid}", lane.user)
            case _:
                assert_never(message)

    def _on_results(self, results: m.Results, now: float) -> None:
        is_ours = results.epoch == self.config.epoch
        lane = self.state.lanes.get(results.session) if is_ours else None
        if lane is None:
            self._on_late_results(results, is_ours=is_ours)
            return
        lane.heard = now
        if results.done or results.failed:
            lane.progress = now
        if not lane.reports.take(results.number):
            return
        lane.latency(now - results.echo - results.held if results.echo else None, results.lag)
        if results.done or results.failed:
            lane.recalls = 0
        if results.told:
            notice = pools.last_progress(self.state, lane, results.told)
            if notice is not None:
                self._notify(notice)
        for run in results.done:
            collector.on_done(self.state, run, lane.session)
        for failure in results.failed:
            collector.on_failed(self.state, failure, lane.session, now)
        for held in results.returned:
            collector.on_returned(self.state, held, lane.session)

    def _on_late_results(self, results: m.Results, *, is_ours: bool) -> None:
        """Of a session that is over, or of another hub's, only successes count."""
        session = results.session if is_ours and results.session > 0 else collector.NOBODY
        for run in results.done:
            collector.on_done(self.state, run, session)

    def _notify(self, notice: m.Notice) -> None:
        """Pass news of running tasks on to the clients that are there."""
        by_client: dict[int, list[Progress]] = {}
        for progress in notice.progress:
            by_client.setdefault(progress.client, []).append(progress)
        for client, progress_list in by_client.items():
            session = self.state.clients.get(client)
            if session is not None and session.present:
                self._cut_lines(session, progress_list)
                self.state.send(client, m.Notice(progress_list))

    def _cut_lines(self, session: ClientSession, progress_list: list[Progress]) -> None:
        """Send no more of what tasks have logged than a client reads; an embedded one has it at once."""
        hub = self.state
        if session.credit:
            silent = hub.now - session.heard > SILENT_BEATS * self.config.beat
            for progress in progress_list:
                if progress.lines:
                    lines = hub.diagnostics.lines
                    lines.to_client(session.client, progress, hub.now, hub.wall, silent=silent)

    # --- clients ------------------------------------------------------------------------------------------

    def _refuse(self, user: str, reason: str) -> None:
        """Log that a message does not count. The sockets answer it, as only they know its link."""
        self.state.log("message.refused", {"from": user, "error": reason})

    def _from_client(self, event: ev.FromClient, now: float) -> None:
        session = self.state.clients.get(event.client)
        is_its_own = session is not None and session.user == event.user
        if not is_its_own and owners.is_another_s(self.state, event.client, event.user):
            self._refuse(event.user, "this client session belongs to another key")
        else:
            self._on_client_message(event, session, now)

    def _on_client_message(self, event: ev.FromClient, session: ClientSession | None, now: float) -> None:
        client, message = event.client, event.message
        if isinstance(message, m.ClientHello):
            clients.on_hello(self.state, message, now, event.user)
            return
        if session is None:
            self.state.send(client, m.ClientRefused())
            return
        session.hear(now)
        if isinstance(message, m.Submit):
            submission.on_submit(self.state, self.ventilator, session, message, now)
            return
        match message:
            case m.ResultAck(epoch=epoch, number=number):
                submission.on_result_ack(self.state, session, epoch, number, now)
            case m.CancelTasks(seqs=seqs, unstarted=unstarted):
                submission.on_cancel(self.state, client, seqs, unstarted)
            case m.ClientBye(cancel=cancel):
                clients.on_bye(self.state, session, cancel=cancel)
            case m.ClientBeat():
                self._on_client_beat(session, message)
            case m.SinkReport():
                self._on_sink_report(session, message, now)
            case m.Query() | m.Command() | m.Fulfil() | m.PutSchedule() | m.DropSchedule():
                self._on_request(client, message, event.user, now)
            case _:
                assert_never(message)

    def _on_request(self, client: int, request: Request, user: str, now: float) -> None:
        answer: m.Answer | None = None
        match request:
            case m.Query():
                answer = letter_views.answer(self.state, request, user) or views.answer(
                    self.state, request, now, user
                )
            case m.Command():
                answer = letter_views.obey(self.state, request) or views.obey(self.state, request, now)
                if not answer.error:
                    fields: dict[str, object] = {"verb": request.verb, "target": request.target, "by": user}
                    self.state.log("operator.action", fields)
            case m.Fulfil():
                answer = promises.on_fulfil(self.state, client, request, now)
            case m.PutSchedule() | m.DropSchedule():
                answer = self._on_schedule(request, user)
            case _:
                assert_never(request)
        if answer is None or not answer.number:
            return
        is_of_pools = isinstance(request, m.Command) and request.verb in views.TO_POOLS
        if self.state.journal is None or is_of_pools or isinstance(request, m.Query):
            self.state.send(client, answer)
        else:
            journal_events.answer_when_written(self.state, self.state.journal, client, answer)

    def _on_schedule(self, request: m.PutSchedule | m.DropSchedule, user: str) -> m.Answer:
        if refusal := owners.refusal(self.state, request, user):
            return m.Answer(request.number, None, refusal)
        if isinstance(request, m.PutSchedule):
            return m.Answer(request.number, None, schedules.declare(self.state, request.declaration, user))
        return m.Answer(request.number, schedules.remove(self.state, request.name, "a program asked for it"))

    def _on_client_beat(self, session: ClientSession, beat: m.ClientBeat) -> None:
        """A client lives; it is to say hello if it waits for an earlier hub."""
        if beat.epoch in (0, self.config.epoch):
            clients.on_beat(self.state, session)
        else:
            self.state.send(session.client, m.ClientRefused())

    def _on_sink_report(self, session: ClientSession, report: m.SinkReport, now: float) -> None:
        """A client takes from a sink: tasks whose outcomes it has acknowledged have ended for theirs."""
        client = session.client
        if not owners.may_name(self.state, session):
            self.state.send(
                client, m.SinkReportAck(report.sink, report.generation, report.number, known=False)
            )
            return
        report = replace(report, sink=self.state.owned(client, report.sink))
        consumer, acked = self.state.sinks.report(client, report, now)
        after = max([collector.acknowledged(self.state, outcome) for outcome in acked], default=0)
        if acked:
            sink_values.go_on(self.state, report.sink)
            sink_values.wake(self.state)
        self.state.send(client, self.state.sinks.told(report, consumer, after))

    # --- links --------------------------------------------------------------------------------------------

    def _on_link(self, event: ev.LaneOpened | ev.LaneLost | ev.LinksLost | ev.ClientGone, now: float) -> None:
        match event:
            case ev.LaneOpened(session=session, endpoint=endpoint):
                pools.on_lane_opened(self.state, session, endpoint)
            case ev.LaneLost(session=session):
                pools.on_lane_lost(self.state, session)
            case ev.LinksLost(session=session):
                pools.on_links_lost(self.state, session, now)
            case ev.ClientGone(client=client):
                clients.on_gone(self.state, client)
            case _:
                assert_never(event)

    # --- time ---------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Advance the time. After a gap the hub has stood still: every lease is extended by it."""
        gap = now - self.state.now
        if gap > self.config.stall:
            self._extend(gap)
        if gap > 0:
            self.state.now = now

    def _extend(self, gap: float) -> None:
        pools.extend(self.state, gap)
        self.state.recovery.extend(gap)
        self.state.unclaimed.extend(gap)
        self.state.sinks.extend(gap)
        for session in self.state.clients.values():
            session.heard += gap

    def _sweep(self, now: float) -> None:
        """Do the periodic work: leases, silent clients, unacknowledged deliveries, eviction of specs."""
        config = self.config
        self._sweep_at = now + min(max(0.25, config.beat / 4), config.lease / 8)
        pools.check_leases(self.state, now)
        clients.count_slots_anew(self.state)
        self._recall(self.ventilator.overdue(now))
        self.state.out += self.ventilator.forget_unused(now)
        for session in list(self.state.clients.values()):
            if session.credit and not session.lost and now - session.heard >= config.client_grace:
                clients.on_silence(self.state, session, now)
            if now >= session.resend_deadline:
                self.state.out += session.again(now)
        self.state.out += self.state.sinks.sweep(now)
        sink_values.wake(self.state)
        clients.forget_absent(self.state, now)
        self.state.ledger.backlog.tidy(self.state.ledger.count)
        self.state.ledger.suspects.tidy(self.state.ledger.count)
        clients.drop_bound(self.state, now)
        self.state.unclaimed.sweep(now)
        attachments.sweep(self.state)
        if self.state.journal is not None:
            journal_events.sweep(self.state, self.state.journal)
        self._forget_specs()
        self.state.result_cache.sweep(now)
        self.state.letters.sweep(self.state.wall)

    def _forget_specs(self) -> None:
        """Drop specs that no live task needs, while they take more than their share of memory."""
        gone = self.state.ledger.resting.evict(MOST_SPECS, self.config.spec_bytes)
        for number in gone:
            del self.state.specs[number]
        for lane in self.state.lanes.values() if gone else ():
            lane.known_specs.difference_update(gone)

    def _expire(self, record: TaskRecord, cause: Cause) -> None:
        """It has not started in time, or before its client gave it up."""
        if cause is Cause.EXPIRE:
            collector.expire(self.state, record)
            return
        for task in record.more().unwanted:
            cancellations.cancel(self.state, client_of(task), seq_of(task))

    # --- views --------------------------------------------------------------------------------------------

    def snapshot(self) -> HubStatus:
        return views.status(self.state, self.state.now)

    def check(self) -> None:
        """Raise AssertionError when the machine's own books do not agree; for tests."""
        check_hub(self.state)
