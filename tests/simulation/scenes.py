"""Scenes for a world that is well again: what must be seen to the end, with nothing else going wrong."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from taskmesh.core.events import LinkLost
from taskmesh.hub.machine.recovery import QUIET_BEATS
from taskmesh.messages.runs import Held
from taskmesh.pool.machine.machine import CANCEL_GRACE
from tests.simulation.client_host import ClientHost
from tests.simulation.configs import BEAT, LEASE
from tests.simulation.host import Host
from tests.simulation.hub_host import HubHost
from tests.simulation.network import Weather
from tests.simulation.pool_host import PoolHost
from tests.simulation.setting import Setting
from tests.simulation.workload import PROMISED_FOR, SLOW_SECONDS, Act, Plan

TASKS = 8
STARTED = 1.0
"""Seconds in which some of them start."""
FOUL = 4.0
"""Seconds of bad weather from the death on: pools are told to drop what is bound to the client in them."""
GONE = 4.0
"""Seconds after that in which every pool has been told to drop what was bound to the client."""


KEYED = 4
PROMISES = 3
BACK = 0.5
"""Seconds in which everybody is back: what was submitted before waits for what pools may hold of it."""

BACK_AGAIN = 4 * BEAT
"""Seconds in which pools that have not died with their hub are back, though nobody told them of its death."""

UNSERVED = 6
LIVES = 1.0
"""Seconds in which a hub dies: the second death often comes more than LATE after the tasks."""
LATE = 1.0
"""Seconds after the end of its time in which a client knows of a task that has not started in it."""
SHARED = 5
ATTACHED = 3
CHAIN = 6
APART = 0.6
"""Share of a lease that one comes back after another, at most, to a hub that is started again."""

PLAGUE_OVER = 40.0
"""Seconds in which a task that kills its pool is given up, after five pools or so that were waited for."""
QUICK = 30
SLOW = 4
"""Tasks that take long after those that took no time, for each slot."""
CALLED_BACK = 1.5
"""Seconds after which those that have not started are in the hub again."""

LEAVES = 14.0
"""Seconds in which a pool leaves whose operator wants it to: what it runs takes no longer."""

JOINS = 2.0
"""Seconds in which one that is started has its session."""


class World(Protocol):
    """What scenes are played in."""

    setting: Setting
    hub: HubHost
    pools: list[PoolHost]
    clients: list[ClientHost]

    def replace_client(self, client: ClientHost) -> None:
        """A client has crashed: another takes its place."""
        ...

    def until(self, when: float) -> None:
        """Plays on to a moment."""
        ...

    def finish(self, promise: str, bound: float) -> None:
        """Plays on until every task has its outcome."""
        ...


def orphans(world: World) -> None:
    """A client and the hub die together; what was bound to the client is dropped, and runs no more."""
    setting, hub = world.setting, world.hub
    timetable, chance, audit = setting.timetable, setting.chance, setting.audit
    client = chance.choice(world.clients)
    plans = client.submit_all(setting.workload.bound_burst, TASKS)
    world.until(timetable.now + STARTED * chance.random())
    audit.faults["crash", "hub with client"] += 1
    hub.kill()
    client.kill()
    client.down_link.reset()
    world.replace_client(client)
    for pool in world.pools:
        if pool.end.lane is not None:
            pool.end.lane_closed(pool.end.lane, signalled=chance.random() < 0.5)
    setting.network.weather = Weather(chance.choice((0.0, 0.1, 0.3)))
    timetable.after(chance.random(), hub.start)
    world.until(timetable.now + FOUL)
    setting.network.weather = None
    world.until(timetable.now + GONE)
    latest = timetable.now + TASKS * CANCEL_GRACE
    while (left := _held_for(world, client)) and timetable.now < latest:
        world.until(timetable.now + 1.0)  # one may be cleaning up, with others behind it
    audit.require(not left, "pools hold what is bound to a client that is gone", left)
    audit.orphaned.update((plan.client, plan.seq) for plan in plans)
    unclaimed = len(hub.machine.state.unclaimed)
    audit.require(not unclaimed, "the hub still counts on a client that is gone", unclaimed)


def _held_for(world: World, client: ClientHost) -> list[Held]:
    """What pools hold for a client, without what they have cancelled."""
    inventories = [pool.machine.scheduler.inventory() for pool in world.pools]
    return [held for inventory in inventories for held in inventory if held.client == client.client]


def remembered(world: World) -> None:
    """Tasks under a key have ended, and come again to the next hub, which knows nothing of them."""
    setting = world.setting
    timetable, chance = setting.timetable, setting.chance
    client = chance.choice(world.clients)
    client.submit_all(setting.workload.keyed_burst, KEYED)
    world.finish("tasks have not ended", LEAVES)
    setting.audit.faults["crash", "hub that remembers"] += 1
    _replace_hub(world)
    world.until(timetable.now + BACK)
    client.submit_all(setting.workload.keyed_burst, KEYED)
    world.finish("tasks have not ended", LEASE + LEAVES)


def promises(world: World, *, foul: bool) -> None:
    """A promise has the first value that anybody gave it, for all who wait, whatever dies meanwhile.

    Args:
        foul: messages are lost meanwhile, and the hub dies.
    """
    setting = world.setting
    timetable, chance = setting.timetable, setting.chance
    for client in world.clients:
        made = client.submit_all(setting.workload.promised_burst, PROMISES)
        waiting = client.submit_all(setting.workload.calm_burst, PROMISES, after=[plan.seq for plan in made])
        setting.audit.faults["waits for a promise", "task"] += len(waiting)
    if foul:
        setting.network.weather = Weather(lost=chance.choice((0.1, 0.3)), delayed=0.2)
    for turn in range(2):
        for index in range(PROMISES):
            client = chance.choice(world.clients)
            world.until(timetable.now + 0.3 * chance.random())
            if turn or chance.random() < 0.6:
                value = b"" if chance.random() < 0.2 else b"%d-%d-%d" % (client.client, turn, index)
                client.fulfil(f"promise-{index}", value, PROMISED_FOR)
        if foul and not turn:
            setting.audit.faults["crash", "hub that knows promises"] += 1
            _replace_hub(world)
    setting.network.weather = None
    world.until(timetable.now + BACK)
    for index in range(PROMISES):  # a hub that died may have taken a value along that nobody had yet
        world.clients[0].fulfil(f"promise-{index}", b"last-%d" % index, PROMISED_FOR)
    world.finish("promises have not ended", LEASE + LEAVES)


def comeback(world: World) -> None:
    """Pools that come back after the hub's death keep nothing waiting for longer than two beats."""
    setting, hub = world.setting, world.hub
    timetable, chance = setting.timetable, setting.chance
    world.until(hub.started + LEASE + 2 * BEAT)  # the pools have been here for a while
    client = chance.choice(world.clients)
    slots = sum(len(pool.machine.slots) for pool in world.pools)
    client.submit_all(setting.workload.steady_burst, 4 * slots)
    world.until(timetable.now + 0.1 * chance.random())
    setting.audit.faults["crash", "hub whose pools come back"] += 1
    hub.kill()
    for pool in world.pools:
        if pool.end.lane is not None:
            pool.end.lane_closed(pool.end.lane, signalled=chance.random() < 0.7)
    world.until(timetable.now + BEAT * chance.random())
    hub.start()
    for other in world.clients:
        other.tell(LinkLost())
    world.until(timetable.now + BACK_AGAIN + QUIET_BEATS * BEAT)
    waiting = len(hub.machine.state.recovery.waiting)
    setting.audit.require(not waiting, "the pools are back, and what was submitted again waits")
    world.finish("tasks have not ended after the pools came back", LEAVES)


def shared(world: World) -> None:
    """Two clients wait for tasks of the same keys, and the hub starts again: each has its outcome.

    Who comes back first to the new hub differs: a pool may hold a task under the id of whoever comes second.
    """
    setting = world.setting
    timetable, chance = setting.timetable, setting.chance
    clients = chance.sample(world.clients, 2)
    for client in clients:
        client.submit_all(setting.workload.shared_burst, SHARED)
        world.until(timetable.now + 0.3 * chance.random())
    setting.audit.faults["crash", "hub of shared keys"] += 1
    hosts: list[Host[Any]] = [*clients, *world.pools]
    for host in hosts:
        if chance.random() < 0.5:
            host.pause()
            timetable.after(APART * LEASE * chance.random(), host.resume)
    _replace_hub(world)
    world.finish("tasks have not ended", LEASE + LEAVES)


def attached(world: World, *, foul: bool) -> None:
    """A client that waits for another's task by its id has its outcome, whoever comes back first.

    Args:
        foul: the hub dies meanwhile.
    """
    setting = world.setting
    timetable, chance, workload = setting.timetable, setting.chance, setting.workload
    owner, other = chance.sample(world.clients, 2)
    plans = owner.submit_all(workload.slow_steady_burst, ATTACHED)
    came = timetable.now + LEAVES
    while not all(plan.seq in owner.accepted for plan in plans) and timetable.now < came:
        world.until(timetable.now + 0.01)  # its caps may be reached
    attachments = other.submit_all(partial(workload.attached_burst, plans), ATTACHED)
    other.submit_all(workload.calm_burst, ATTACHED, after=[plan.seq for plan in attachments])
    setting.audit.faults["waits for another's task", "client"] += 1
    world.until(timetable.now + 0.5 * chance.random())
    if foul:
        setting.audit.faults["crash", "hub of attachments"] += 1
        late = chance.choice((owner, other))
        late.pause()
        timetable.after(APART * LEASE * chance.random(), late.resume)
        _replace_hub(world)
    world.finish("tasks have not ended", LEASE + LEAVES)


def inherited(world: World) -> None:
    """Client and hub die together; another client has all accepted tasks' outcomes, by their ids."""
    setting, hub = world.setting, world.hub
    timetable, chance, workload = setting.timetable, setting.chance, setting.workload
    owner, heir = chance.sample(world.clients, 2)
    first = owner.submit_all(workload.slow_steady_burst, ATTACHED)
    plans = first + owner.submit_all(workload.linked_burst, ATTACHED, after=[plan.seq for plan in first])
    came = timetable.now + LEAVES
    while not all(plan.seq in owner.accepted for plan in plans) and timetable.now < came:
        world.until(timetable.now + 0.01)  # its caps may be reached, or its journal is slow
    world.until(timetable.now + 1.5 * chance.random())
    plans = [plan for plan in plans if plan.seq in owner.accepted and not _is_dropped(world, plan)]
    setting.audit.faults["crash", "hub and client of a journal"] += 1
    owner.kill()
    owner.down_link.reset()
    world.replace_client(owner)
    hub.kill()
    world.until(timetable.now + chance.choice((0.0, 0.5, 2.0 * LEASE)) * chance.random())
    for pool in world.pools:
        if pool.end.lane is not None:
            pool.end.lane_closed(pool.end.lane, signalled=chance.random() < 0.7)
    hub.start()
    for other in world.clients:
        other.tell(LinkLost())
    world.until(timetable.now + BACK)
    heirlooms = heir.submit_all(partial(workload.attached_burst, plans), len(plans))
    world.finish("an heir's outcomes have not come", 3 * LEASE + LEAVES)
    for plan, left in zip(heirlooms, plans, strict=True):
        ended = setting.audit.outcomes.get((plan.client, plan.seq))
        taken = (left.client, left.seq) in setting.audit.outcomes  # before it died
        dropped = _is_dropped(world, left)
        setting.audit.require(
            ended == "done" or taken or dropped, "nobody has the outcome of an accepted task", left, ended
        )


def read_twice(world: World) -> None:
    """A client stands still and dies, others have read its outcomes before and read them at the next hub."""
    setting = world.setting
    timetable, chance, workload = setting.timetable, setting.chance, setting.workload
    outcomes = setting.audit.outcomes
    owner, reader = chance.sample(world.clients, 2)
    plans = owner.submit_all(workload.slow_steady_burst, ATTACHED)
    came = timetable.now + LEAVES
    while not all(plan.seq in owner.accepted for plan in plans) and timetable.now < came:
        world.until(timetable.now + 0.01)  # its caps may be reached, or its journal is slow
    plans = [plan for plan in plans if plan.seq in owner.accepted and not _is_dropped(world, plan)]
    owner.pause()
    world.until(timetable.now + 0.5 * chance.random())
    first = reader.submit_all(partial(workload.attached_burst, plans), len(plans))
    came = timetable.now + LEAVES
    while any((plan.client, plan.seq) not in outcomes for plan in first) and timetable.now < came:
        world.until(timetable.now + 0.01)
    setting.audit.faults["crash", "hub whose outcomes are read twice"] += 1
    owner.kill()
    owner.down_link.reset()
    world.replace_client(owner)
    world.until(timetable.now + LEASE * chance.random() * chance.randrange(2))
    _replace_hub(world)
    world.until(timetable.now + BACK)
    later = world.clients[-1]
    second = later.submit_all(partial(workload.attached_burst, plans), len(plans))
    world.finish("a later reader's outcomes have not come", 3 * LEASE + LEAVES)
    for plan, before, after in zip(plans, first, second, strict=True):
        ends = [outcomes.get((each.client, each.seq)) for each in (before, after)]
        taken = (plan.client, plan.seq) in outcomes
        setting.audit.require(
            ends[0] != "done" or ends[1] == "done" or taken or _is_dropped(world, plan),
            "two readers have heard two ends",
            plan,
            ends,
        )


def _is_dropped(world: World, plan: Plan) -> bool:
    """Return True if its client's outcomes had no room, or nobody promises them for another reason."""
    return (plan.client, plan.seq) in world.setting.audit.durability.excused


def chained(world: World) -> None:
    """A client comes back to another hub with a chain of which pools have ended a task meanwhile."""
    setting = world.setting
    timetable, chance = setting.timetable, setting.chance
    client = chance.choice(world.clients)
    (first,) = client.submit_all(setting.workload.linked_burst, 1)
    client.submit_all(setting.workload.linked_burst, CHAIN, after=range(first.seq, first.seq + CHAIN))
    world.until(timetable.now + 0.1 * CHAIN * chance.random())
    client.pause()
    setting.audit.faults["crash", "hub of a chain"] += 1
    _replace_hub(world)
    world.until(timetable.now + APART * LEASE * chance.random())
    client.resume()
    world.finish("tasks have not ended", LEASE + LEAVES)


def turned_slow(world: World) -> list[Plan]:
    """Tasks that were sent ahead turn out slow: they return, and an urgent one starts next.

    Returns:
        the tasks of the scene.
    """
    setting = world.setting
    timetable, audit = setting.timetable, setting.audit
    client = setting.chance.choice(world.clients)
    plans = client.submit_all(setting.workload.quick_burst, QUICK)
    world.finish("tasks have not ended", LEAVES)
    slots = sum(len(pool.machine.slots) for pool in world.pools)
    plans += client.submit_all(setting.workload.slow_burst, SLOW * slots)
    world.until(timetable.now + CALLED_BACK)
    urgent = client.submit_all(setting.workload.steady_burst, 1)
    for lane in world.hub.machine.state.lanes.values():
        stays = lane.outstanding > lane.slots
        audit.require(not stays, "sent ahead, and not called back", lane.pool, lane.outstanding)
    world.until(timetable.now + BACK)
    came = urgent[0].seq in world.hub.machine.state.ledger.tasks_of(
        client.client
    )  # else its caps are reached
    world.until(timetable.now + SLOW_SECONDS + JOINS - CALLED_BACK - BACK)
    starts = urgent[0].runs > 0 or not came
    audit.require(starts, "urgent, and behind what was sent ahead", urgent[0])
    world.finish("tasks have not ended", 2 * SLOW * SLOW_SECONDS + LEAVES)  # some wait for tasks of their own
    return plans + urgent


def plague(world: World) -> None:
    """A task that kills each pool that runs it is given up, and all others are done."""
    setting, audit = world.setting, world.setting.audit
    setting.calm = audit.attempts.calm = False
    client = setting.chance.choice(world.clients)
    slots = sum(len(pool.machine.slots) for pool in world.pools)
    plans = client.submit_all(setting.workload.plague_burst, 4 * slots)
    world.finish("tasks have not ended among dying pools", PLAGUE_OVER)
    limit = world.hub.machine.config.pool_loss_limit
    for plan in plans:
        ended = audit.outcomes[plan.client, plan.seq]
        guilty = plan.act is Act.PLAGUE
        audit.require(ended == ("crash" if guilty else "done"), "the wrong task is given up", plan, ended)
        audit.require(plan.runs <= limit, "a task kills pool after pool", plan)


def aging(world: World) -> None:
    """The time that tasks have to start in goes on with the next hub, once a hub has accepted them."""
    setting = world.setting
    timetable, chance = setting.timetable, setting.chance
    client = chance.choice(world.clients)
    plans = client.submit_all(setting.workload.unserved_burst, UNSERVED)
    began = timetable.now
    for _ in range(chance.choice((1, 2))):
        world.until(timetable.now + LIVES * chance.random())
        while not _has_all(client) and timetable.now < began + LEAVES:
            world.until(timetable.now + 0.01)
        setting.audit.faults["crash", "hub of tasks that age"] += 1
        _replace_hub(world)
    came = max(plan.arrived or timetable.now for plan in plans)
    world.until(max(timetable.now, came + plans[0].kind.spec.expires + LATE))
    for plan in plans:
        told = setting.audit.outcomes.get((plan.client, plan.seq))
        setting.audit.require(told == "expired", "a task has more time to start in than it asked for", plan)
    world.finish("tasks have not ended", 2 * LEASE + LEAVES)


def _has_all(client: ClientHost) -> bool:
    """Return True if the client has heard that all its tasks are accepted."""
    return client.machine.open and not client.machine.under_way


def _replace_hub(world: World) -> None:
    """The hub dies, everybody is told at once, and another starts in its place."""
    world.hub.kill()
    for pool in world.pools:
        if pool.end.lane is not None:
            pool.end.lane_closed(pool.end.lane, signalled=True)
    world.hub.start()
    for other in world.clients:
        other.tell(LinkLost())


def _cut_off(world: World, pool: PoolHost) -> None:
    """Nothing passes between a pool and its hub for longer than its lease."""
    timetable, network = world.setting.timetable, world.setting.network
    links = pool.end.links_in() + pool.end.links_out()
    pool.end.blocked_in = "drop"
    for link in links:
        link.blocked = "drop"

    def mend() -> None:
        pool.end.blocked_in = ""
        for link in dict.fromkeys(links + pool.end.links_in()):
            network.unblock(link)

    world.setting.audit.faults["cut off and told to leave", "pool"] += 1
    timetable.after(LEASE + 2 * BEAT, mend)


def departure(world: World, *, foul: bool) -> list[Plan]:
    """An operator has a pool leave: it does, nothing is lost, and the pool in its place gets work.

    Args:
        foul: messages are lost meanwhile, or the pool is cut off for longer than its lease.

    Returns:
        the tasks that went on meanwhile.
    """
    setting, hub = world.setting, world.hub
    timetable, chance, audit = setting.timetable, setting.chance, setting.audit
    client = chance.choice(world.clients)
    plans = client.submit_all(setting.workload.calm_burst, 60)
    verb, pool = chance.choice(("drain", "scale-in")), chance.choice(world.pools)
    world.until(timetable.now + 0.1 * chance.random())
    while not client.machine.open:  # else its command waits for a welcome, which the weather may take
        world.until(timetable.now + 0.01)
    audit.faults[verb, "pool"] += 1
    before = len(hub.dismissed)
    if foul and verb == "drain" and chance.random() < 0.5:
        _cut_off(world, pool)
    client.command(verb, pool.name if verb == "drain" else "1:pool")
    if foul:  # the command is on its way already
        setting.network.weather = Weather(chance.choice((0.3, 0.6)))
    world.until(timetable.now + 0.01)
    named = sorted(set(hub.dismissed[before:]))
    audit.require(len(named) == 1, "not one pool was told to leave", verb, named)
    (leaver,) = (pool for pool in world.pools if pool.name == named[0])
    world.until(timetable.now + 1.5)
    setting.network.weather = None
    deadline = timetable.now + LEAVES
    while leaver.left is None:
        audit.require(timetable.now < deadline, "a pool was told to leave, and has not", verb, leaver.name)
        world.until(timetable.now + 0.5)
    leaver.kill()
    leaver.start()
    world.until(timetable.now + LEASE + JOINS)  # its goodbye may be lost, and nobody told of its links
    world.finish("tasks have not ended after a departure", LEAVES)
    slots = sum(len(pool.machine.slots) for pool in world.pools)
    plans += client.submit_all(setting.workload.steady_burst, 3 * slots)
    world.finish("tasks have not ended after a return", LEAVES)
    lane = hub.machine.state.lane_of(leaver.name)
    audit.require(lane is not None and lane.sequence > 0, "a pool came late, and gets no work", leaver.name)
    return plans
