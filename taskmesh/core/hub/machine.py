"""The hub machine: ledger, ventilator, collector and sessions behind one `handle`."""

from __future__ import annotations

from typing import Any

from taskmesh.core import events as ev
from taskmesh.core.actions import LogEvent, Publish, SendClient, StoreOutcomes
from taskmesh.core.hub.cancellations import Cancellations
from taskmesh.core.hub.client_session import ClientSession
from taskmesh.core.hub.collector import NOBODY, Collector
from taskmesh.core.hub.intake import Intake
from taskmesh.core.hub.invariants import check_hub
from taskmesh.core.hub.lanes import Lane
from taskmesh.core.hub.ledger import Ledger, SpecEntry
from taskmesh.core.hub.pools import PoolSessions
from taskmesh.core.hub.result_cache import ResultCache
from taskmesh.core.hub.roster import Recovery
from taskmesh.core.hub.settings import HubSettings
from taskmesh.core.hub.states import Cause, TaskRecord
from taskmesh.core.hub.unclaimed import Unclaimed
from taskmesh.core.hub.ventilator import Ventilator
from taskmesh.core.hub.views import Views
from taskmesh.core.specs import evicted
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Progress

MOST_SPECS = 999
"""Specs that are kept, but for those of live tasks."""


class HubMachine:
    """Decides everything that a hub does; performs nothing.

    The same events at the same times give the same actions. Call `handle` with a Tick no later than
    `deadline`.
    """

    def __init__(self, config: HubSettings, now: float) -> None:
        self.config = config
        self.ledger = Ledger()
        self.specs: dict[int, SpecEntry] = {}
        self.clients: dict[int, ClientSession] = {}
        self.lanes: dict[int, Lane] = {}
        self.unclaimed = Unclaimed(config, self.ledger, now)
        self.result_cache = ResultCache(config.kept_bytes, stored=config.stored)
        self.collector = Collector(
            self.ledger,
            self.lanes,
            self.clients,
            lambda report: self.unclaimed.reported(report, self._now),
            result_cache=self.result_cache,
            crash_limit=config.crash_limit,
            oom_limit=config.oom_limit,
            pool_loss_limit=config.pool_loss_limit,
            silence=config.silent_beats * config.beat,
        )
        self.recovery = Recovery(self.ledger, config.epoch, now + config.lease)
        self.pools = PoolSessions(
            config, self.ledger, self.collector, self.lanes, self.unclaimed, self.recovery
        )
        self.collector.out = self.pools.out
        self.ventilator = Ventilator(self.ledger, self.specs, config.epoch)
        self.ventilator.lanes = self.lanes
        self.cancellations = Cancellations(
            self.ledger, self.clients, collector=self.collector, pools=self.pools
        )
        self.intake = Intake(
            config,
            self.ledger,
            self.specs,
            self.clients,
            collector=self.collector,
            pools=self.pools,
            ventilator=self.ventilator,
            result_cache=self.result_cache,
            cancellations=self.cancellations,
        )
        self.views = Views(
            self.ledger,
            self.pools,
            self.intake,
            self.clients,
            collector=self.collector,
            cancellations=self.cancellations,
            epoch=config.epoch,
        )
        self._now = now
        self._sweep_at = now

    # --- the machine contract -----------------------------------------------------------------------------

    def handle(self, event: Any, now: float) -> list[object]:
        """Takes in one event; returns what is to be done, in order."""
        gap = now - self._now
        if gap > self.config.stall:
            self._extend(gap)
        self._now = self.result_cache.now = max(now, self._now)
        kind = type(event)  # a class pattern that takes fields, or fails, takes three times as long
        if kind is ev.FromPool:
            self._from_pool(event.message, event.user, now)
        elif kind is ev.FromClient:
            self._from_client(event.client, event.message, event.user, now)
        elif kind is not ev.Tick:
            self._from_others(event, now)
        return self._finish(now)

    def _from_others(self, event: object, now: float) -> None:
        match event:
            case ev.LaneOpened() | ev.LaneLost() | ev.LinksLost() | ev.ClientGone():
                self._from_links(event, now)
            case ev.Restored() | ev.StoreTold():
                self._from_store(event)
            case ev.OverRate():
                self._over_rate(event, now)
            case ev.Revoked(users=users):
                self.intake.revoked(users)
            case ev.Shortage(text=text):
                self.views.shortage = text
            case _:
                raise TypeError(f"not an event of a hub: {event!r}")

    @property
    def deadline(self) -> float:
        """When a Tick is due at the latest."""
        if self.cancellations.pending:
            return self._now
        first = min(self._sweep_at, self._now + self.config.stall / 2)
        timer = self.ledger.timers.deadline
        if timer is not None:
            first = min(first, timer)
        if self.recovery.waiting:
            first = min(first, self.recovery.deadline(self._now))
        if self.intake.owing:
            first = min(first, next(iter(self.intake.owing.values())))
        if len(self.lanes) > 1 and self.ledger.tasks:
            recall = self.ventilator.recall_deadline(self._now)
            if recall is not None:
                first = min(first, recall)
        return first

    def _finish(self, now: float) -> list[object]:
        if now >= self._sweep_at:
            self._sweep(now)
        if self.cancellations.pending or self.recovery.waiting:
            self._go_on(now)
        self.ledger.due(now, self._expire)  # what was given up while it waited ends before anything is sent
        self.pools.publish_cancels()
        actions: list[object] = []
        if self.pools.out:
            self._take_out(self.pools.out, actions, now)
        if self.intake.owing:
            self.intake.acknowledge_due(now)
        if self.intake.out:
            self._take_out(self.intake.out, actions, now)
        news = self.collector.news
        if news:
            self._deliver(news, actions, now)  # before what tells pools that they need not keep them any more
        if self.ledger.backlog.routes or self.ledger.suspects.routes:
            actions += self.ventilator.dispatch(now)
        if len(self.lanes) > 1 and self.ledger.tasks:
            actions += self._recalls(self.ventilator.recalls(now))
        if self.result_cache.fresh or self.collector.records:
            self._report(actions)
        return actions

    def _go_on(self, now: float) -> None:
        """Does the next portion of what takes longer than one event may."""
        self.intake.go_on()
        self.recovery.release(now)

    def _report(self, actions: list[object]) -> None:
        """Hands over the news for the store and the log."""
        actions += self.collector.records
        self.collector.records = []
        if self.result_cache.fresh:
            actions.append(StoreOutcomes(self.result_cache.fresh))
            self.result_cache.fresh = []

    def _recalls(self, recalls: list[tuple[Lane, int]]) -> list[Publish]:
        epoch = self.config.epoch
        return [Publish(lane.pool, m.Recall(epoch, lane.session, count)) for lane, count in recalls]

    def _deliver(self, news: set[int], actions: list[object], now: float) -> None:
        """Sends clients what they may have of their outcomes.

        A client that is there and takes no results gets no more made: completions are always taken in.
        """
        withheld, most = self.ledger.backlog.withheld, self.intake.most_kept
        for client in news:
            session = self.clients.get(client)
            if session is not None and session.size > most and session.linked:
                withheld.add(client)
            elif withheld and client not in self.cancellations.pending:
                withheld.discard(client)
            if session is not None:
                deliveries = session.deliveries(now)
                if deliveries:
                    actions += deliveries
                    self.intake.owing.pop(client, None)  # they say it
        news.clear()

    def _take_out(self, out: list[object], actions: list[object], now: float) -> None:
        """Takes over what a part of the machine wants done."""
        for action in out:
            if type(action) is LogEvent:
                self.views.remember(action, now)
        actions += out
        out.clear()

    # --- pools --------------------------------------------------------------------------------------------

    def _from_pool(self, message: m.PoolMessage, user: str, now: float) -> None:
        if isinstance(message, m.Results):
            self._results(message, now)
            return
        match message:
            case m.Beat():
                notice = self.pools.beat(message, now)
                if notice is not None:
                    self._tell(notice)
            case m.Hello():
                self.pools.hello(message, now, user)
            case m.Misrouted():
                self.pools.out.append(
                    LogEvent("pool.misrouted", {"pool": message.pool, "session": message.session})
                )
            case _:
                lane = self.pools.current(message.epoch, message.session)
                if lane is not None:
                    self._in_session(lane, message)

    def _in_session(self, lane: Lane, message: m.Bye | m.PoolNeedSpec | m.SlotGone) -> None:
        match message:
            case m.Bye(sent=sent):
                self.pools.bye(lane.session, sent)
            case m.PoolNeedSpec(specs=specs):
                lane.known_specs.difference_update(specs)
            case m.SlotGone(pid=pid):
                self.intake.slot_gone(f"{lane.pool}/{pid}")

    def _results(self, results: m.Results, now: float) -> None:
        lane = self.pools.current(results.epoch, results.session)
        if lane is None:
            ours = results.epoch == self.config.epoch and results.session > 0
            over = results.session if ours else NOBODY
            for run in results.done:
                self.collector.done(run, over)
            return
        lane.heard = now
        if results.done or results.failed:
            lane.progress = now
        if not lane.reports.take(results.number):
            return
        lane.latency(now - results.echo - results.held if results.echo else None, results.lag)
        if results.done or results.failed:
            lane.recalls = 0
        if results.told and (notice := self.pools.last_progress(lane, results.told)) is not None:
            self._tell(notice)
        for run in results.done:
            self.collector.done(run, lane.session)
        for failure in results.failed:
            self.collector.failed(failure, lane.session, now)
        for held in results.returned:
            self.collector.returned(held, lane.session)

    def _tell(self, notice: m.Notice) -> None:
        by_client: dict[int, list[Progress]] = {}
        for progress in notice.progress:
            by_client.setdefault(progress.client, []).append(progress)
        for client, progress_list in by_client.items():
            session = self.clients.get(client)
            if session is not None and session.present:
                self.pools.out.append(SendClient(client, m.Notice(progress_list)))

    # --- clients ------------------------------------------------------------------------------------------

    def _from_client(self, client: int, message: m.ClientMessage, user: str, now: float) -> None:
        if type(message) is m.ClientHello:
            self.intake.hello(message, now, user)
            return
        session = self.clients.get(client)
        if session is None:
            self.intake.out.append(SendClient(client, m.ClientRefused()))
            return
        session.heard, session.present, session.lost, session.greeted = now, True, False, True
        if type(message) is m.Submit:
            self.intake.submit(session, message, now)
            return
        match message:
            case m.ResultAck(epoch=epoch, number=number):
                self.intake.taken(session, epoch, number, now)
            case m.CancelTasks(seqs=seqs, unstarted=unstarted):
                self.intake.give_up(client, seqs, unstarted)
            case m.ClientBye(cancel=cancel):
                self.intake.bye(session, cancel=cancel)
            case m.ClientBeat(epoch=epoch):
                self._beat(session, epoch)
            case m.Query() | m.Command():
                self._answer(client, message, now)

    def _beat(self, session: ClientSession, epoch: int) -> None:
        """A client waits: it is told how far it is; or to say hello, if it waits for an earlier hub."""
        if epoch in (0, self.config.epoch):
            self.intake.out.append(SendClient(session.client, m.Accepted(session.submitted)))
            self.collector.news.add(session.client)
        else:
            self.intake.out.append(SendClient(session.client, m.ClientRefused()))

    def _answer(self, client: int, question: m.Query | m.Command, now: float) -> None:
        if isinstance(question, m.Query):
            answer = self.views.answer(question, now)
        else:
            actions, answer = self.views.obey(question, now)
            self.intake.out += actions
        self.intake.out.append(SendClient(client, answer))

    def _over_rate(self, over: ev.OverRate, now: float) -> None:
        """Messages were dropped: who may have said them waits, and says again what is not acknowledged."""
        self.views.over_rate(over.user, over.dropped, over.cap)
        for session in over.sessions:
            self.pools.slow_down(session, over.wait, now)
        for client in over.clients:
            self.intake.slow_down(client, over.wait, now)

    # --- links --------------------------------------------------------------------------------------------

    def _from_links(
        self, event: ev.LaneOpened | ev.LaneLost | ev.LinksLost | ev.ClientGone, now: float
    ) -> None:
        match event:
            case ev.LaneOpened(session=session, endpoint=endpoint):
                self.pools.lane_opened(session, endpoint)
            case ev.LaneLost(session=session):
                self.pools.lane_lost(session, now)
            case ev.LinksLost(session=session):
                self.pools.links_lost(session, now)
            case ev.ClientGone(client=client):
                self.intake.gone(client)

    # --- the store ----------------------------------------------------------------------------------------

    def _from_store(self, event: ev.Restored | ev.StoreTold) -> None:
        if isinstance(event, ev.Restored):
            self.result_cache.restore(event.entries)
            return
        self.views.store = event.view
        self.pools.out += [LogEvent(kind, fields) for kind, fields in event.news]

    # --- time ---------------------------------------------------------------------------------------------

    def _extend(self, gap: float) -> None:
        self.pools.extend(gap)
        self.unclaimed.extend(gap)
        for session in self.clients.values():
            session.heard += gap

    def _sweep(self, now: float) -> None:
        """What need not be done at once: leases, silent clients, deliveries to repeat, specs to forget."""
        config = self.config
        self._sweep_at = now + min(0.25, config.lease / 8)
        self.pools.check_leases(now)
        self.pools.tell_roster(now)
        self.pools.out += self._recalls(self.ventilator.overdue(now))
        for session in list(self.clients.values()):
            if session.credit and not session.lost and now - session.heard >= config.client_grace:
                self.intake.silent(session, now)
            resend = session.resend_deadline
            if resend is not None and now >= resend:
                self.intake.out += session.again(now)
        self.intake.forget_absent(now)
        self.ledger.backlog.tidy(len(self.ledger.tasks))
        self.ledger.suspects.tidy(len(self.ledger.tasks))
        self.intake.drop_bound(now)
        self.unclaimed.sweep(now)
        self._forget_specs()
        self.result_cache.sweep()

    def _forget_specs(self) -> None:
        """Drops the oldest specs that no live task needs, while they take more than their share of memory."""
        sizes = {number: entry.size for number, entry in self.specs.items()}
        gone = evicted(
            sizes,
            lambda number: self.specs[number].live,
            most=MOST_SPECS,
            most_bytes=self.config.spec_bytes,
        )
        for number in gone:
            del self.specs[number]
        for lane in self.lanes.values() if gone else ():
            known = [number for number in gone if number in lane.known_specs]
            if known:
                lane.known_specs.difference_update(known)
                self.pools.out.append(
                    Publish(lane.pool, m.ForgetSpecs(self.config.epoch, lane.session, known))
                )

    def _expire(self, record: TaskRecord, cause: Cause) -> None:
        """It has not started in time, or before its client gave it up."""
        if cause is Cause.EXPIRE:
            self.collector.expire(record)
            return
        for task in record.more().unwanted:
            self.cancellations.cancel(task)

    # --- views --------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """A view in plain data: counts by state, pools, clients."""
        return self.views.status(self._now)

    def check(self) -> None:
        """Raises AssertionError when the machine's own books do not agree; for tests."""
        check_hub(self)
