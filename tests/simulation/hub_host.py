"""The simulated hub: binds lanes, pushes, publishes, and is killed; its journal outlives it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

import msgspec

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.ids import plain
from taskmesh.hub.machine import schedules
from taskmesh.hub.machine.books.journal import without
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.books.limits import Limits
from taskmesh.hub.machine.books.result_cache import CachedOutcome, ResultCache
from taskmesh.hub.machine.books.sinks import Consumer as SinkConsumer
from taskmesh.hub.machine.books.sinks import Sinks, keys_of
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalKept, JournalOutcome
from taskmesh.messages.runs import ATTACHMENT, DoneRun, Failed, Run
from tests.simulation.configs import LIMITS
from tests.simulation.host import Host
from tests.simulation.journal import AGAIN, SimulatedJournal
from tests.simulation.memory_journal import MemoryDisk
from tests.simulation.network import Link, unpacked
from tests.simulation.setting import Setting

_FROM_CLIENT = msgspec.msgpack.Decoder(m.ClientMessage).decode
_FROM_POOL = msgspec.msgpack.Decoder(m.PoolMessage).decode


FAR = 1 << 40
"""Above any epoch."""
STRANGER = 0xBAD
"""The client's id of the holder of another key."""
WALL = 1_795_392_000.0
"""The time that the clocks on the walls of hubs show when a world begins."""


class LaneEnd:
    """A bound lane: what is pushed before the pool has dialled it waits here."""

    def __init__(self, session: int, pool: str) -> None:
        self.session = session
        self.pool = pool
        self.link: Link | None = None
        self.waiting: list[m.Tasks] = []
        self.dead = False


class Far(Protocol):
    """The far ends of a hub's links."""

    def control(self, pool: str) -> list[Link]:
        """The hub's control links to one pool, or to all when `pool` is empty."""
        ...

    def gateway(self, client: int) -> Link | None:
        """The hub's link to a client, None when it is not there."""
        ...

    def lane_closed(self, lane: LaneEnd) -> None:
        """The hub has closed a lane."""
        ...

    def superseded(self) -> None:
        """Another hub has the journal."""
        ...


class HubHost(Host[HubMachine]):
    """One hub and its successors.

    Attributes:
        lanes: endpoint -> lane, of the present life. transitions: those of all lives.
        heard: when anything came from a pool, in the world's time.
        disk: their journal, if they have one; strict: what is confirmed there outlives a loss of power.
        dismissed: pools that were told to leave, as often as they were.
        falling: its clock goes back between two lives, and with it the epochs.
        wall: what the clock on its wall shows at the world's time 0. set_back: it has been set back.
        schedules_over: no schedule is taken any more.
        stranger_hears: takes what is sent to the stranger.
        sink_bytes: what its sinks may hold; 0 for as much as other outcomes that it keeps.
    """

    gathers = True

    def __init__(self, setting: Setting, far: Far, config: HubSettings) -> None:
        super().__init__("hub", setting)
        self.lanes: dict[str, LaneEnd] = {}
        self.transitions: Counter[tuple[State, Cause]] = Counter()
        self.records: Counter[str] = Counter()
        self.started = 0.0
        self.resumed = 0.0
        self.heard: dict[str, float] = {}
        self.disk = MemoryDisk() if config.journaled else None
        self.strict = config.journaled and setting.chance.random() < 0.5
        self._journal: SimulatedJournal | None = None
        self.dismissed: list[str] = []
        self._far = far
        self._config = config
        self._lives = 1
        self.wall = WALL
        self.set_back = False
        self.schedules_over = False
        self.sink_bytes = 0
        self.stranger_hears: Callable[[m.ToClient], None] = lambda message: None
        self.falling = setting.chance.random() < 0.3
        self._by_session: dict[int, LaneEnd] = {}
        self._instances: dict[str, int] = {}
        self._impersonated: set[int] = set()  # clients as which the stranger spoke last: it has the answer
        self._linked: set[int] = set()  # clients whose links have said Hello to the present life
        self._acked: dict[tuple[int, str, int], list[tuple[int, list[tuple[int, int]]]]] = {}

    @property
    def epoch(self) -> int:
        """Of the present or the next life."""
        return self._config.epoch

    def start(self) -> None:
        """Starts, with another epoch if it was there before; does nothing if it is there.

        A start that was put off may come while a later death is to be mended, or after it has been.
        """
        if self.up:
            return
        if self.disk is not None and self.disk.away:
            self.setting.timetable.after(AGAIN, self.start)
            return
        self.offset = 1000.0 * self.setting.chance.randrange(1, 50)
        self.setting.audit.limits.append(self._config.max_payload)
        self.started = self.resumed = self.setting.timetable.now
        machine = HubMachine(self._config, self.clock())
        if self.sink_bytes:
            machine.state.sinks = Sinks(
                replace(self._config, result_bytes=self.sink_bytes), machine.state.ledger.weigh
            )
        self._watch_permits(machine.state.ledger.limits)
        self._watch_reruns(machine.state)
        self._watch_cache(machine.state.result_cache)
        self._watch_sinks(machine.state.sinks)
        life = self._life + 1
        if self.disk is not None:
            self._journal = self._open(self.disk, life)
        self.boot(machine)
        if self._journal is not None:
            self._read(self._journal)
        self.tell(ev.Clock(self.wall - self.offset))
        if self.schedules_over:
            self.end_schedules()  # the word of it may not have been written

    def _open(self, disk: MemoryDisk, life: int) -> SimulatedJournal:
        """Take the journal over."""
        self.setting.audit.durability.began()
        return SimulatedJournal(
            self.setting,
            disk,
            strict=self.strict,
            tell=self.tell,
            alive=lambda: self.up and self._life == life,
            superseded=self._far.superseded,
        )

    def _read(self, journal: SimulatedJournal) -> None:
        """Tell the machine what is written."""
        audit, read = self.setting.audit, journal.read(self.setting.timetable.now + self.wall)
        audit.cancel_known.clear()  # that a task is over is written a little later
        entries = dict(read.entries)
        for entry in entries.values():
            if isinstance(entry, JournalKept) and entry.key and not entry.user:
                audit.kept((entry.name, entry.key), entry.until - self.wall)
        self.tell(read)
        self.turn()
        audit.attempts.over |= audit.durability.reloaded(self.machine, entries)

    def lose_power(self) -> None:
        """The machine dies, and what was not synced with it."""
        self.kill()
        if self.disk is not None:
            before = dict(self.disk.entries)
            self.set_back = bool(self.disk.lose_power()) or self.set_back  # ticks may come again
            self.setting.audit.durability.lost_power(before, self.disk)

    def _watch_cache(self, cache: ResultCache) -> None:
        """Notes until when outcomes answer those who submit under a key."""
        put, offset = cache._put, self.offset

        def note(cached: CachedOutcome) -> bool:
            if cached.key is not None:
                self.setting.audit.kept(cached.key, cached.until - offset)
            return put(cached)

        cache._put = note  # type: ignore[method-assign]

    def _watch_permits(self, limits: Limits) -> None:
        """Notes what is handed back unstarted."""
        end = limits.end

        def note(record: TaskRecord, cause: Cause | None = None) -> None:
            if cause is Cause.RETURN:
                self.setting.audit.handed_back(record.id, record.attempt)
            end(record, cause)

        limits.end = note  # type: ignore[method-assign]

    def _watch_reruns(self, state: HubState) -> None:
        """Notes which tasks that have ended are taken in once more, when they are."""
        reopen, ledger, epoch = state.dependencies.reopen, state.ledger, self.epoch

        def note(client: int, runs: Iterable[Run]) -> None:
            reopen(client, runs)
            known, finished = ledger.tasks_of(client).keys(), ledger.account(client).finished
            new = [
                without(run, {seq for seq in run.seqs if seq in known or seq in finished})
                for run in runs
                if run.rerun
            ]
            self.setting.audit.reopened(epoch, client, new, state.clients[client].submitted + 1)

        state.dependencies.reopen = note  # type: ignore[method-assign]

    def _watch_sinks(self, sinks: Sinks) -> None:
        """Notes which outcomes count as acknowledged, and which bad ends go to sinks."""
        put, epoch = sinks.put, self.epoch
        take, self._acked = sinks.report, {}

        def note_put(sink: str, name: str, outcome: DoneRun | Failed) -> None:
            if outcome.client == STRANGER:
                pass  # nobody of this world has it
            elif isinstance(outcome, Failed):
                self.setting.audit.failed.add((outcome.client, outcome.seq))
            else:
                plans = [self.setting.workload.plans[outcome.client, seq] for seq in outcome.seqs]
                self.setting.audit.consumption.put(epoch, plans)
            put(sink, name, outcome)

        def note_report(
            client: int, report: m.SinkReport, now: float
        ) -> tuple[SinkConsumer | None, list[DoneRun | Failed]]:
            consumer, acked = take(client, report, now)
            for outcome in acked:
                if outcome.client != STRANGER:
                    self.setting.audit.consumption.settled(epoch, outcome)
            if acked:
                tasks = [key for outcome in acked for key in keys_of(outcome)]
                known = self._acked.setdefault((client, plain(report.sink), report.generation), [])
                known.append((report.number, tasks))
            return consumer, acked

        sinks.report = note_report  # type: ignore[method-assign]
        sinks.put = note_put  # type: ignore[method-assign]

    def resume(self) -> None:
        """SIGCONT: what it had in hand while it stood still is nobody's fault."""
        self.resumed = self.setting.timetable.now
        super().resume()

    def kill(self) -> None:
        """Kill -9: the next life has another epoch, and no memory but what is stored."""
        self.take_counts()
        durability = self.setting.audit.durability
        if self._journal is not None and self._journal.is_lost:  # memory alone had it
            durability.lost()
            self.set_back = True  # ticks may come again
        self._journal = None
        super().kill()
        self.lanes.clear()
        self._by_session.clear()
        self._instances.clear()
        self._linked.clear()
        limit = self._config.max_payload and self.setting.chance.choice(LIMITS)
        self._lives += 1
        epoch = FAR - self._lives if self.falling else self._lives
        self._config = replace(self._config, epoch=epoch, max_payload=limit)

    def take_counts(self) -> None:
        """Adds the present life's transitions to the others'."""
        if self.up:
            self.transitions.update(self.machine.state.ledger.counts)
            self.machine.state.ledger.counts.clear()

    def _take(self, event: object) -> None:
        if isinstance(event, ev.FromClient):
            speaking = self._impersonated.add if event.user else self._impersonated.discard
            speaking(event.client)
        if isinstance(event, ev.FromClient | ev.FromPool) and event.user:
            super()._take(event)  # the stranger's, who is promised nothing
            return
        self._take_own(event)

    def _take_own(self, event: object) -> None:
        """Take in what does not come from the stranger, and note what it promises."""
        beat = event.message if type(event) is ev.FromPool else None
        if isinstance(beat, m.Beat) and beat.state == "draining":
            self.setting.audit.draining.add((beat.epoch, beat.session))
        hello = event.message if isinstance(event, ev.FromClient) else None
        if isinstance(hello, m.ClientHello) and hello.client not in self.machine.state.clients:
            self.setting.audit.welcomed(self.epoch, hello.client)
        if isinstance(hello, m.ClientHello):
            self.setting.audit.durability.started_over(hello.client, hello.first)
        if isinstance(event, ev.FromClient) and isinstance(event.message, m.Submit):
            self._asked(event.client, event.message)
            session = self.machine.state.clients.get(event.client)  # without one it is refused
            passed = session.submitted if session is not None and not session.user else math.inf
            if event.message.epoch in (0, self.epoch) and event.message.number > passed:
                self.setting.audit.durability.submitted(event.client, event.message)
        super()._take(event)
        if isinstance(event, ev.FromClient) and isinstance(event.message, m.Submit):
            now = self.setting.timetable.now
            self.setting.audit.taken_in(self.machine, event.client, event.message.runs, now)
        if isinstance(beat, m.Hello):
            lane = self.machine.state.lane_of(beat.pool)
            if lane is not None and (lane.hello.instance, lane.hello.number) == (beat.instance, beat.number):
                self.setting.audit.attempts.joined(self.epoch, f"{beat.pool}:{beat.instance}", beat)

    def _asked(self, client: int, submit: m.Submit) -> None:
        if submit.epoch != self.epoch:
            return
        tasks = self.machine.state.ledger.tasks_of(client)
        seqs = [seq for run in submit.runs if run.again for seq in run.seqs]
        new = [(client, seq) for seq in seqs if seq not in tasks]
        self.setting.audit.attempts.asked(self.epoch, new)

    # --- what comes in ------------------------------------------------------------------------------------

    def from_client(self, client: int, data: object) -> None:
        """A message off the gateway, if its link has said Hello to this hub: `hub.sockets` refuses others."""
        if self.up:
            message = unpacked(data, _FROM_CLIENT)
            if isinstance(message, m.ClientHello):
                self._linked.add(client)
            if client not in self._linked:
                self._reply(client, m.ClientRefused())
                return
            if isinstance(message, m.ClientBye):
                self._linked.discard(client)
            if isinstance(message, m.PutSchedule) and self.schedules_over:
                return
            if isinstance(message, m.Submit) and message.epoch == self.epoch:
                self.setting.audit.received(message.runs)
            self.tell(ev.FromClient(client, message))

    def from_pool(self, pool: str, data: object) -> None:
        """A message off the collector."""
        self.heard[pool] = self.setting.timetable.now
        if self.up:
            message = unpacked(data, _FROM_POOL)
            if isinstance(message, m.Results) and message.epoch == self.epoch:
                self.setting.audit.received(message.done)
            self.tell(ev.FromPool(message))

    # --- actions ------------------------------------------------------------------------------------------

    def perform(self, actions: list[object]) -> None:
        """Does what the machine wants done, in order."""
        pushes: list[act.PushTasks] = []
        self._note_written([action for action in actions if isinstance(action, act.WriteJournal)])
        for action in actions:
            match action:
                case act.PushTasks(session=session, message=message):
                    pushes.append(action)
                    self._fired(message)
                    self._push(session, message)
                case act.SendClient(client=client, message=message):
                    self._send_client(client, message)
                case act.Publish(pool=pool, message=message):
                    self._publish(pool, message)
                case act.OpenLane(session=session, pool=pool):
                    self._open_lane(session, pool)
                case act.CloseLane(session=session):
                    self._close(session)
                case act.LogEvent() | act.WriteJournal():
                    self._note(action)
                case _:
                    raise TypeError(f"not an action of a hub: {action!r}")
        if pushes:
            self._check(pushes)
        elif withheld := self.machine.state.ledger.backlog.withheld:
            self.setting.fairness.excuse(withheld)

    def _note(self, action: act.LogEvent | act.WriteJournal) -> None:
        if isinstance(action, act.LogEvent):
            self.records[action.kind] += 1
            if action.kind == "outcomes.dropped":
                self.setting.audit.durability.gone(int(str(action.fields["client"]), 16))
        elif self._journal is not None:
            self._journal.write(action)

    def _note_written(self, actions: list[act.WriteJournal]) -> None:
        """Notes what is to be written, before anything is said that rests on it."""
        audit = self.setting.audit
        for action in actions:
            audit.durability.handed(action)
            for entry in action.changes.values():
                if isinstance(entry, JournalOutcome) and (end := entry.failed) is not None:
                    self._note_bad_end(end.client, end.seq, end.upstream)
                elif isinstance(entry, JournalKept) and entry.failed is not None:
                    for client, seq in entry.tasks:
                        self._note_bad_end(client, seq, entry.failed.upstream)

    def _note_bad_end(self, client: int, seq: int, cause: int) -> None:
        """Note a bad end that is written, and that of its cause if it waits here for the client.

        That one is not written while its client is there: if the hub dies now, the cause runs again, as any
        task does of whose end nobody has heard, and may end well.
        """
        session = self.machine.state.clients.get(client)
        waiting = session.unacknowledged({cause}) if session is not None else []
        causes = [(client, end.seq) for end, _ in waiting if isinstance(end, Failed)]
        self.setting.audit.failed.update([(client, seq), *causes])

    def _check_accepted(self, client: int, number: int) -> None:
        if self._journal is not None:
            self.setting.audit.durability.acknowledged(client, number, self._journal.confirmed)

    def _fired(self, message: m.Tasks) -> None:
        """Plans the tasks that schedules have made, and notes the names of their ticks."""
        house = self.machine.state.house.clients.get("", 0)
        for run in message.runs:
            for seq, payload in zip(run.seqs, run.payloads, strict=True) if run.client == house else ():
                record = self.machine.state.ledger.tasks_of(house)[seq]
                key = record.extra.key[1]
                spec = self.machine.state.specs[run.spec].spec
                self.setting.workload.firing(house, seq, run.spec, spec, payload, key)
                self.setting.audit.fired(self._life if self.set_back else 0, key, (house, seq))

    def set_clock(self, step: float) -> None:
        """Somebody sets the clock on the wall."""
        self.set_back = self.set_back or step < 0
        self.wall += step
        self.setting.audit.clock_moved = self.setting.audit.clock_moved or self.disk is not None
        self.setting.audit.faults["clock set", "hub"] += 1
        if self.up:
            self.tell(ev.Clock(self.wall - self.offset))

    def end_schedules(self) -> None:
        """Nothing runs by the clock any more."""
        self.schedules_over = True
        for name in list(self.machine.state.schedules.records) if self.up else ():
            schedules.remove(self.machine.state, name, "the end")

    def _check(self, pushes: list[act.PushTasks]) -> None:
        audit = self.setting.audit
        if self.setting.calm:  # nothing goes wrong: order can be held against what was asked for
            audit.ordered(self.machine, [run for push in pushes for run in push.message.runs])
        runs = [run for push in pushes for run in push.message.runs]
        audit.let_go(self.machine, runs, self.setting.timetable.now)
        self.setting.fairness.pushed(self.machine, pushes)
        by_lane: dict[int, list[m.Tasks]] = {}
        for push in pushes:
            by_lane.setdefault(push.session, []).append(push.message)
        here = dict(tasks_by_id(self.machine.state.ledger))
        late = self.machine.state.awaited.early.keys() & here.keys()
        audit.require(not late, "an attachment waits for a task that is there", late)
        for session, messages in by_lane.items():
            audit.pushed(self.machine, self.machine.state.lanes[session], messages)

    def _send_client(self, client: int, message: m.ToClient) -> None:
        is_answer = isinstance(message, m.ClientWelcome | m.ClientRefused)
        if client == STRANGER or (is_answer and client in self._impersonated):
            self.stranger_hears(message)
            return
        if isinstance(message, m.Accepted):
            self._check_accepted(client, message.number)
        if isinstance(message, m.Deliver):
            self._check_accepted(client, message.accepted)
            self.setting.audit.delivered(message.epoch, message.number, message.done, message.failed)
            self.setting.audit.failed.update((client, failure.seq) for failure in message.failed)
            self._told_others(client, message)
        if isinstance(message, m.SinkDeliver):
            self.setting.audit.consumption.delivered(self.epoch, client, message)
        if isinstance(message, m.SinkDeliver | m.SinkReportAck):
            self._confirmed(client, message)
        if not self._reply(client, message) and self.setting.chance.random() < 0.3:
            self._linked.discard(client)
            self.tell(ev.ClientGone(client))

    def _reply(self, client: int, message: m.ToClient) -> bool:
        """Send a message over a client's link; return False if there is none."""
        link = self._far.gateway(client)
        if link is not None:
            self.setting.network.send(link, message)
        return link is not None

    def _told_others(self, client: int, message: m.Deliver) -> None:
        """Notes of which tasks a client hears that are another's."""
        workload = self.setting.workload
        plans = [workload.plans[client, seq] for run in message.done for seq in run.seqs]
        theirs = [workload.attached_to(plan) for plan in plans if plan.kind.spec.kind == ATTACHMENT]
        if self._journal is not None:
            self.setting.audit.durability.told_others(theirs)

    def _confirmed(self, client: int, message: m.SinkDeliver | m.SinkReportAck) -> None:
        """Notes which acknowledgements a consumer may believe to be taken in."""
        line = client, message.sink, message.generation
        known = self._acked.get(line, []) if not isinstance(message, m.SinkReportAck) or message.known else []
        tasks = [task for number, tasks in known if number <= message.reports for task in tasks]
        if tasks:
            self._acked[line] = [(number, tasks) for number, tasks in known if number > message.reports]
            audit, plans = self.setting.audit, self.setting.workload.plans
            audit.consumption.confirmed(self.epoch, tasks, self.setting.timetable.now)
            if self._journal is not None:
                audit.durability.told_others(plans[task] for task in tasks)

    def _publish(self, pool: str, message: m.ToPool) -> None:
        if isinstance(message, m.PoolCommand):
            instance = self._instances.get(pool, message.instance)  # its lease may be over by now
            self.setting.audit.commanded.add((pool, instance))
            if message.verb == "drain":
                self.dismissed.append(pool)
        for link in self._far.control(pool):
            self.setting.network.send(link, message)

    def _open_lane(self, session: int, pool: str) -> None:
        held = self.machine.state.lanes.get(session)
        if held is not None:
            self._instances[pool] = held.hello.instance
        endpoint = f"{self.epoch}:{session}"
        self.lanes[endpoint] = self._by_session[session] = LaneEnd(session, pool)
        self.tell(ev.LaneOpened(session, endpoint))

    def _push(self, session: int, message: m.Tasks) -> None:
        lane = self._by_session[session]
        if lane.link is None:
            lane.waiting.append(message)
        elif not lane.dead:
            self.setting.network.send(lane.link, message)

    def _close(self, session: int) -> None:
        lane = self._by_session.pop(session, None)
        if lane is not None:
            del self.lanes[f"{self.epoch}:{session}"]
            self._far.lane_closed(lane)

    def connected(self, lane: LaneEnd, link: Link) -> None:
        """A pool has dialled a lane: what waited goes."""
        lane.link = link
        waiting, lane.waiting = lane.waiting, []
        for message in waiting:
            self.setting.network.send(link, message)
