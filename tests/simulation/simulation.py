"""A whole mesh in one thread: the production machines under a virtual clock, with everything going wrong.

`World(seed).run()` plays one seed: first faults, with every safety promise checked as things happen; then all
is mended, and everything that was accepted must find its end in bounded time; then every pool drains without
a loss. The same seed plays the same way, always.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

from taskmesh.core import events as ev
from taskmesh.errors import TaskMeshError
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.books.states import Cause, State
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DONE, FIRING, Spec
from taskmesh.messages.schedules import CATCHUPS, OVERLAPS, Declaration, Timing
from tests.simulation.audit import Violation
from tests.simulation.client_host import ClientHost
from tests.simulation.configs import (
    BEAT,
    LEASE,
    client_config,
    has_journal,
    has_sinks,
    has_values,
    hub_config,
    pool_config,
    pools_of,
    recycled,
)
from tests.simulation.consumer import Consumer
from tests.simulation.faults import Faults
from tests.simulation.hub_host import HubHost, LaneEnd
from tests.simulation.network import Link
from tests.simulation.pool_host import PoolHost
from tests.simulation.scenes import (
    aging,
    attached,
    chained,
    comeback,
    departure,
    inherited,
    orphans,
    plague,
    promises,
    read_twice,
    remembered,
    shared,
    turned_slow,
)
from tests.simulation.setting import Setting
from tests.simulation.stranger import Stranger, check_sessions
from tests.simulation.workload import SINKS, Plan

CHECK_EVERY = 150
"""Steps between two readings of the machines' books."""
BOUND = 20.0
"""Seconds after the healing in which everything must have its end."""
LOOK_EVERY = 15
"""Steps between two looks at silent pools."""
DETECTION = LEASE + BEAT
"""Seconds of a pool's silence after which what it held must have been taken from it."""
SETTLED = 4 * BEAT
"""Seconds after which a task that was given up unless it had started has started or ended."""
GRACE = 10.0
MAX_STEPS = 400_000
SCENES = 5
"""Every so many seeds have the same scene at their end, if any."""


class SimulationFailure(AssertionError):
    """A seed broke a promise. The text says which, and how to play it again."""


@dataclass(slots=True)
class Report:
    """What a seed has shown.

    Attributes:
        transitions: of the ledgers. faults: (kind, role). steps: how much happened; seconds: of virtual time.
    """

    seed: int
    tasks: int = 0
    steps: int = 0
    seconds: float = 0.0
    transitions: Counter[tuple[State, Cause]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)


class World:
    """A hub, three to five pools, two clients, and what happens to them.

    Where there are sinks three clients take from them.

    Args:
        seed: decides everything. calm: True plays it without faults (every twelfth seed is calm anyway).
        trace: keeps a line for every event and action in `trace`.
    """

    def __init__(self, seed: int, *, calm: bool | None = None, trace: bool = False) -> None:
        self.seed = seed
        self.lease = LEASE
        self.setting = Setting(seed)
        if trace:
            self.setting.trace = []
        chance = self.setting.chance
        self.calm = self.setting.calm = seed % 12 == 0 if calm is None else calm
        self.setting.audit.attempts.calm = self.calm
        self.setting.network.by_reference = seed % 4 == 1
        self._heal_at = 4.0 + 4.0 * chance.random()
        settings = hub_config(chance)
        if has_journal(seed):
            settings = replace(settings, journaled=True)
        self._has_sinks = has_sinks(seed)
        if self._has_sinks:
            self.setting.workload.use_sinks(values=has_values(seed))
        self.hub = HubHost(self.setting, self, settings)
        if self._has_sinks:
            room = chance.choice((0, 400, 4000))
            self.hub.sink_bytes = 2 * room if seed % 3 == 1 else room  # the stranger's sinks take a part
        pools = [recycled(pool_config(chance, index), seed) for index in range(pools_of(seed))]
        if seed % 7 == 3:
            pools = [
                replace(config, shared=1 + index % 2, max_tasks=0, stop_first=False)
                for index, config in enumerate(pools)
            ]
        self.pools = [PoolHost(self.setting, self.hub, config) for config in pools]
        self.clients: list[ClientHost] = []
        self._gateways: dict[int, ClientHost] = {}
        self._client_ids = 0
        self._credit = chance.choice((1 << 26, 1 << 26, 600))
        self._faults = Faults(self, self._heal_at)
        self._plans: list[Plan] = []
        self._gone: list[ClientHost] = []
        self._left_behind = 0

    @property
    def trace(self) -> list[str]:
        """What happened, when it was asked for."""
        return self.setting.trace or []

    # --- far ends -----------------------------------------------------------------------------------------

    def control(self, pool: str) -> list[Link]:
        """The hub's control links to one pool, or to all when `pool` is empty."""
        return [host.end.control for host in self.pools if pool in ("", host.name)]

    def gateway(self, client: int) -> Link | None:
        """The hub's link to a client, None when it is not there."""
        host = self._gateways.get(client)
        return host.down_link if host is not None and host.up else None

    def lane_closed(self, lane: LaneEnd) -> None:
        """The hub has closed a lane."""
        for pool in self.pools:
            if pool.name == lane.pool:
                pool.end.lane_closed(lane, signalled=self.setting.chance.random() < 0.7)

    def superseded(self) -> None:
        """Another hub has the journal: this one ends, and is started again."""
        self._faults.replace_hub()

    # --- clients ------------------------------------------------------------------------------------------

    def _new_client(self) -> ClientHost:
        self._client_ids += 1
        config = client_config(self._client_ids, self._credit)
        host = self._gateways[config.client] = ClientHost(self.setting, self.hub, config)
        self.clients.append(host)
        host.start()
        for sink in SINKS if self._has_sinks else ():
            Consumer(host, sink, idle=self.setting.chance.random() < 0.3)
        return host

    def replace_client(self, client: ClientHost) -> None:
        """A client has crashed: another takes its place at once, with an id of its own."""
        self.clients.remove(client)
        self._gone.append(client)
        self._new_client()

    # --- the course of events -----------------------------------------------------------------------------

    def run(self) -> Report:
        """Plays the seed.

        Raises:
            SimulationFailure: a promise was broken.
        """
        try:
            self._play()
        except (Violation, AssertionError, TaskMeshError, LookupError, TypeError, ValueError) as error:
            message = f"seed {self.seed} at {self.setting.timetable.now:.4f}: {type(error).__name__}: {error}"
            replay = f"python -m tests.simulation --start {self.seed} --seeds 1 --trace"
            raise SimulationFailure(f"{message}\n  play it again: {replay}") from error
        return self._report()

    def _play(self) -> None:
        timetable, chance = self.setting.timetable, self.setting.chance
        timetable.after(0.0, self.hub.start)
        for pool in self.pools:
            late = pool is not self.pools[0] and chance.random() < 0.1  # that one serves every queue
            timetable.after((self._heal_at if late else 0.2) * chance.random(), self._start, pool)
        for _ in range(3 if self._has_sinks else 2):
            self._new_client()
        self._plan_work()
        if self.seed % 4 == 2:
            self._plan_schedules(
                random.Random(self.seed)
            )  # other seeds play as they did before there were any
        if self.hub.disk is not None and not self.calm:
            self._faults.plan_journal(random.Random(self.seed), self.hub, self.hub.disk)
        if not self.calm:
            self._faults.plan(chance.choice((0.5, 1.0, 2.0, 4.0)))
        if self.seed % 3 == 1:
            Stranger(self.setting, self.hub, random.Random(self.seed)).plan(self._heal_at)
        self.until(self._heal_at)
        self._faults.heal()
        self.setting.audit.consumption.all_is_well = True
        self.hub.end_schedules()
        timetable.after(0.0, self._ask_status)
        self.finish("tasks have not ended", BOUND)
        self._check_answers()
        self._check_sinks()
        self._check_left_behind()
        self.setting.audit.check_blocked()
        self.finish("tasks have not ended", BOUND)  # a client that stood still may have submitted meanwhile
        self._check_numbers()
        self._play_scenes()
        self.setting.audit.check_blocked()
        if self.calm:
            self.setting.audit.check_once(self._plans)
        self._drain()

    def _play_scenes(self) -> None:
        self._faults.over = True
        self._await_pools()
        if self.calm:
            self._play_calm_scene(self.seed % SCENES)
        else:
            self._play_foul_scene(self.seed % SCENES)

    def _play_calm_scene(self, scene: int) -> None:
        if scene in (0, 1):
            self._plans += departure(self, foul=False)
        elif scene == 2:
            self._plans += turned_slow(self)
        elif scene == 3:
            plague(self)
        else:
            promises(self, foul=False)
            attached(self, foul=False)

    def _play_foul_scene(self, scene: int) -> None:
        chance = self.setting.chance
        if self.hub.disk is not None and self.seed // SCENES % 2:
            chance.choice((inherited, read_twice))(self)
        elif scene == 0:
            comeback(self)
        elif scene == 1:
            chance.choice((shared, aging, chained, partial(attached, foul=True)))(self)
        elif scene == 2:
            orphans(self)
        elif scene == 3:
            departure(self, foul=True)
        elif self.seed // SCENES % 2:
            promises(self, foul=True)
        else:
            remembered(self)

    def _await_pools(self) -> None:
        """Wait until every pool has its session, and none is about to leave."""
        deadline = self.setting.timetable.now + LEASE + 4 * BEAT
        while away := [pool.name for pool in self.pools if not self._is_in(pool)]:
            self._faults.revive()
            self.setting.audit.require(
                self.setting.timetable.now < deadline, "a pool has no session, or has not left", away
            )
            self._step()

    def _is_in(self, pool: PoolHost) -> bool:
        """Return True if the pool has its session with the hub, and is to stay."""
        lane = self.hub.machine.state.lane_of(pool.name)
        if lane is None or lane.session != pool.machine.session:
            return False
        return "draining" not in (pool.machine.state, lane.wished)

    def _start(self, pool: PoolHost) -> None:
        if not pool.up:
            pool.start()

    def _plan_work(self) -> None:
        chance = self.setting.chance
        left = 200 + chance.randrange(60)
        while left > 0:
            count = min(left, chance.choice((1, 3, 10, 30, 60)))
            left -= count
            when = 0.01 + (self._heal_at - 1.0) * chance.random() ** 2
            self.setting.timetable.at(when, self._submit, count)
        for _ in range(chance.randrange(6)):
            self.setting.timetable.at(self._heal_at * chance.random(), self._cancel)
        if chance.random() < 0.5:
            self.setting.timetable.at(self._heal_at * chance.random(), self._cancel_unstarted)
        if chance.random() < 0.3:
            self.setting.timetable.at(self._heal_at * chance.random(), self._command)

    def _plan_schedules(self, chance: random.Random) -> None:
        """Clients put schedules and replace them; somebody sets the clock on the hub's wall."""
        until = self._heal_at - 1.0
        for _ in range(chance.randrange(1, 8)):
            timing = Timing(
                period=chance.choice((0.05, 0.3, 1.0)),
                overlap=chance.choice(OVERLAPS),
                catchup=chance.choice(CATCHUPS),
            )
            name, which = chance.choice("ab"), chance.randrange(2)
            self.setting.timetable.at(until * chance.random(), self._put_schedule, which, name, timing)
        for _ in range(chance.randrange(4) if not self.calm else 0):
            step, when = chance.choice((-20_000.0, -3600.0, -3.0, 0.2, 100.0)), until * chance.random()
            self.setting.timetable.at(when, self.hub.set_clock, step)

    def _put_schedule(self, which: int, name: str, timing: Timing) -> None:
        client = self.clients[which]
        client.asked += 1
        spec = Spec(b"tick", "tick", kind=FIRING)
        client.tell(ev.Requested(m.PutSchedule(client.asked, Declaration(name, timing, spec, b"call" * 5))))

    def _submit(self, count: int) -> None:
        client = self.setting.chance.choice(self.clients)
        if client.paused:
            self.setting.timetable.after(0.1, self._submit, count)
            return
        self._plans += client.submit(count)

    def _cancel(self) -> None:
        client = self.setting.chance.choice(self.clients)
        if not client.paused:
            client.cancel(self.setting.chance.choice((1, 2, 8)))

    def _cancel_unstarted(self) -> None:
        client = self.setting.chance.choice(self.clients)
        if not client.paused:
            plans = client.cancel_unstarted(self.setting.chance.choice((3, 30, 1000)))
            if self.calm:
                sinks = self.hub.machine.state.sinks
                self.setting.timetable.after(SETTLED, self.setting.audit.settled, plans, sinks)

    def _command(self) -> None:
        client = self.clients[0]
        pool = self.setting.chance.choice([*(pool.name for pool in self.pools), "all"])
        if not client.paused:
            client.command("pause", pool)
        self.setting.timetable.at(self._heal_at + 0.1, self._resume_pools)

    def _resume_pools(self) -> None:
        self.clients[-1].command("resume", "all")
        self.setting.timetable.after(1.0, self._insist)

    def _insist(self) -> None:
        """The operator keeps looking: a pause that was long under way comes after what was to end it."""
        if any(pool.machine.state == "paused" for pool in self.pools if pool.up and pool.left is None):
            self._resume_pools()
        elif self.setting.timetable.now < self._heal_at + BOUND / 2:
            self.setting.timetable.after(1.0, self._insist)

    def until(self, when: float) -> None:
        """Plays on to a moment."""
        timetable = self.setting.timetable
        timetable.at(when, _nothing)
        while timetable.now < when:
            self._step()

    def _step(self) -> None:
        timetable = self.setting.timetable
        timetable.step()
        if timetable.steps % LOOK_EVERY == 0:
            self._check_silent()
        if timetable.steps % CHECK_EVERY == 0:
            self._check()
            if timetable.steps > MAX_STEPS:
                raise Violation("the world does not come to rest")

    def _check(self) -> None:
        """The machines' own books."""
        if self.hub.up:
            self.hub.machine.check()
            check_sessions(self.hub.machine)
        for pool in self.pools:
            if pool.up:
                pool.machine.check()

    def _check_silent(self) -> None:
        """A pool that has been silent for its lease holds nothing any more, for a hub that was awake."""
        now, hub = self.setting.timetable.now, self.hub
        if not hub.up or hub.paused or now - hub.resumed <= DETECTION:
            return
        for lane in hub.machine.state.lanes.values():
            silence = now - hub.heard.get(lane.pool, 0.0)
            late = silence > DETECTION and lane.outstanding
            self.setting.audit.require(not late, "a silent pool still holds tasks", lane.pool, silence)

    # --- liveness -----------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        machine = self.hub.machine
        tasks = any(tasks_by_id(machine.state.ledger)) or machine.state.awaited.late
        return not tasks and not any(client.table.plans for client in self.clients)

    def finish(self, promise: str, bound: float) -> None:
        """Waits until every task has its outcome; breaks the promise when that takes longer than `bound`."""
        timetable = self.setting.timetable
        deadline = timetable.now + bound
        while not self._settled():
            if timetable.now > deadline:
                raise Violation(f"{promise} within {bound:g} s: {self._left()}")
            for _ in range(20):
                self._step()
        self._check()

    def _left(self) -> str:
        ledger = [
            (
                record.client,
                record.seq,
                record.state.name,
                record.attempt,
                record.spec.spec.name,
            )
            for _, record in tasks_by_id(self.hub.machine.state.ledger)
        ]
        waiting = {client.name: sorted(client.table.plans)[:10] for client in self.clients}
        pools = [pool.machine.snapshot() for pool in self.pools]
        return f"ledger {ledger[:10]}, clients {waiting}, pools {pools}"

    def _check_left_behind(self) -> None:
        """Check that accepted tasks of clients that are gone have run, if the hub or its journal lived on."""
        audit, plans = self.setting.audit, self.setting.workload.plans
        written = audit.durability
        durable = written.accepted - written.excused - written.ended if self.hub.disk is not None else set()
        for client in self._gone:
            for seq, epoch in client.accepted.items():
                plan = plans[client.client, seq]
                spec = plan.kind.spec
                excused = spec.expires or spec.acks == "early" or spec.on_client_loss == "cancel" or plan.key
                excused = excused or (plan.client, plan.seq) in audit.unwanted
                excused = excused or bool(
                    plan.upstream and plan.when != DONE
                )  # it may be blocked, or skipped
                # A chunk that pools died with was left to its client, which goes without splitting it.
                excused = excused or audit.outcomes.get((plan.client, plan.seq)) == "crash"
                lives = epoch == self.hub.epoch or (client.client, seq) in durable
                if lives and not excused and (client.client, seq) not in audit.cancelled:
                    self._left_behind += 1
                    taken = plan.is_value and (plan.client, plan.seq) in audit.consumption.acknowledged
                    audit.require(plan.runs > 0 or taken, "accepted and never run", plan)

    def _check_numbers(self) -> None:
        """A hub that was there from the start knows all finished tasks of a client as one interval."""
        if self.hub.epoch > 1 or self.hub.machine.config.result_ttl < BOUND:  # it forgets clients
            return
        deadline = self.setting.timetable.now + BOUND
        while waiting := [client.name for client in self.clients if client.machine.under_way]:
            in_time = self.setting.timetable.now < deadline  # what was given up is said last, perhaps again
            self.setting.audit.require(in_time, "Submits that nobody acknowledges", waiting)
            self._step()
        for client in self.clients:
            account = self.hub.machine.state.ledger.accounts.get(client.client)
            pieces = account.finished.pieces if account is not None else 0
            self.setting.audit.require(
                pieces <= 1, "numbers of finished tasks are left out", client.name, pieces
            )

    def _check_sinks(self) -> None:
        """Wait until the sinks are empty, but for a stranger's: consumers take and acknowledge everything."""
        deadline = self.setting.timetable.now + BOUND
        while full := [
            sink for sink in self.hub.machine.state.sinks.view() if sink["bytes"] and not sink["key"]
        ]:
            self.setting.audit.require(
                self.setting.timetable.now < deadline, "nobody takes what is in a sink", full
            )
            self._step()

    def _ask_status(self) -> None:
        for client in self.clients:
            client.answers.clear()
            client.ask("status")

    def _check_answers(self) -> None:
        """A question asked when all is well is answered."""
        for client in self.clients:
            self._wait_for(client, client.ask("pools"))

    def _wait_for(self, client: ClientHost, number: int) -> None:
        deadline = self.setting.timetable.now + 5.0
        while number not in client.answers:
            if self.setting.timetable.now > deadline:
                raise Violation(f"{client.name} got no answer within 5 s")
            self._step()

    def _drain(self) -> None:
        """Pools leave one after the other under load, the last when all is done; nothing is lost."""
        timetable = self.setting.timetable
        self.until(timetable.now + 2 * BEAT)
        self._await_pools()
        # What clients that are gone had said may have come only now.
        self.finish("tasks have not ended", BOUND)
        burst = self.setting.workload.calm_burst
        plans = [plan for client in self.clients for plan in client.submit_all(burst, 12)]
        first, *others = self.pools  # it serves every queue and stays to the last
        for pool in (*others, first):
            if pool is first or self.setting.chance.random() < 0.3:
                self.finish("tasks have not ended before the last pool leaves", BOUND)
            pool.tell(ev.DrainRequested(GRACE))
            deadline = timetable.now + GRACE + 2.0
            while pool.left is None:
                if timetable.now > deadline:
                    raise Violation(f"{pool.name} did not leave: {pool.machine.snapshot()}")
                self._step()
        self.setting.audit.check_once(plans)
        deadline = timetable.now + LEASE + 1.0  # a pool that left without a session has said no goodbye
        while left := [lane.pool for lane in self.hub.machine.state.lanes.values()]:
            self.setting.audit.require(timetable.now < deadline, "sessions of pools that left", left)
            self._step()
        self._check()

    def _report(self) -> Report:
        self.hub.take_counts()
        timetable = self.setting.timetable
        report = Report(self.seed, len(self.setting.workload.plans), timetable.steps, timetable.now)
        report.transitions += self.hub.transitions
        report.faults["left behind", "client"] += self._left_behind
        report.faults += self.setting.audit.faults + self.setting.network.faults
        return report


def _nothing() -> None:
    """Only the time passes."""
