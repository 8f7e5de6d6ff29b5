"""What goes wrong in a simulated world, when, and to whom; all of it is over when the world heals."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Protocol

from taskmesh.core.events import DrainRequested, LinkCut, LinkLost
from tests.simulation.client_host import ClientHost
from tests.simulation.host import Host
from tests.simulation.hub_host import HubHost
from tests.simulation.memory_journal import MemoryDisk, MemoryJournal
from tests.simulation.network import Link, Weather
from tests.simulation.pool_host import PoolHost
from tests.simulation.setting import Setting

CRASHES = ("hub", "pool", "client", "slot")
ROLES = ("hub", "pool", "client", "slot")
LINKS = ("gateway", "lane", "collector", "control", "beat")
WEATHERS = ("lost", "duplicated", "reordered", "delayed")
CUTS = ("in", "out", "both")

EXPECTED = (
    *((kind, link) for kind in WEATHERS for link in LINKS),
    *(("crash", role) for role in (*CRASHES, "hub with client", "hub that remembers", "hub of shared keys")),
    ("crash", "hub whose pools come back"),
    ("crash", "hub of tasks that age"),
    *((pause, role) for pause in ("short pause", "long pause") for role in ROLES),
    *((f"partition {way}", role) for way in CUTS for role in ("pool", "client")),
    ("reset", "lane"),
    ("reset", "pool"),
    ("reset", "gateway"),
    ("leave", "client"),
    ("left behind", "client"),
    ("leave and cancel", "client"),
    ("oom", "slot"),
    ("fork failure", "slot"),
    ("replaced", "slot"),
    ("drain", "pool"),
    ("cut off and told to leave", "pool"),
    ("scale-in", "pool"),
    ("sigterm", "pool"),
    ("name taken again", "pool"),
    *((what, "journal") for what in ("late", "away", "full", "unanswered", "second hub", "superseded")),
    *((what, "journal") for what in ("emptied", "older", "regressed")),
    ("loss of power", "hub"),
    ("crash", "client with its journal's hub"),
    ("crash", "hub and client of a journal"),
    ("crash", "hub whose outcomes are read twice"),
    ("dies unnoticed", "client"),
    ("too large", "call"),
    ("too large", "result"),
    ("place given", "slot"),
    ("place refused", "slot"),
    ("clock set", "hub"),
    ("runs again for its result", "task"),
    ("closes and opens again", "consumer"),
    ("waits for room", "value"),
)
"""Every fault (or rare event) with the role or link that it meets; a campaign must show each often enough."""


class World(Protocol):
    """What faults are done to."""

    setting: Setting
    hub: HubHost
    pools: list[PoolHost]
    clients: list[ClientHost]
    lease: float

    def replace_client(self, client: ClientHost) -> None:
        """A client has crashed: another takes its place in a while."""
        ...


class Faults:
    """Plans faults for the time until the world heals, and does them.

    Attributes:
        over: pools that leave now are not wanted back.
    """

    def __init__(self, world: World, until: float) -> None:
        self._world = world
        self._until = until
        self._chance: random.Random = world.setting.chance
        self._counts = world.setting.audit.faults
        self.over = False
        self._cut: dict[Link, None] = {}  # in order, which a set of objects has not
        self._twins = 0

    def plan(self, severity: float) -> None:
        """Chooses the weather and about `severity` events a second."""
        chance, world = self._chance, self._world
        if chance.random() < 0.7:
            scale = severity * chance.choice((0.002, 0.01, 0.03))
            shares = [scale * chance.random() for _ in WEATHERS]
            world.setting.network.weather = Weather(*shares)
        happenings = (
            (self._crash, 5),
            (self._pause, 5),
            (self._partition, 4),
            (self._reset, 4),
            (self._fork_failures, 1),
            (self._drain, 2),
            (self._leave, 1),
            (self._name_again, 1),
        )
        kinds, weights = [kind for kind, _ in happenings], [weight for _, weight in happenings]
        for _ in range(round(severity * self._until * (0.3 + 0.7 * chance.random()))):
            when = 0.3 + (self._until - 0.3) * chance.random()
            world.setting.timetable.at(when, self._happen, chance.choices(kinds, weights)[0])

    def _happen(self, what: object) -> None:
        if self._world.setting.timetable.now < self._until and callable(what):
            what()

    def heal(self) -> None:
        """Everything is mended: the weather is fair, ways are open, who was stopped or dead is back."""
        world = self._world
        for twin in [pool for pool in world.pools if pool.is_twin]:
            self._end_twin(twin)
        world.setting.network.weather = None
        if world.hub.disk is not None:
            world.hub.disk.away = ""
        for link in list(self._cut):
            world.setting.network.unblock(link)
        self._cut.clear()
        for pool in world.pools:
            pool.end.blocked_in = ""
            pool.fork_failures = 0
            for slot in pool.slots.values():
                slot.resume()
        hosts: list[Host[Any]] = [world.hub, *world.pools, *world.clients]
        for host in hosts:
            host.resume()
        self._start(world.hub)
        for pool in world.pools:
            self._replace(pool)
        self._keep_reviving()

    def _count(self, kind: str, role: str) -> None:
        self._counts[kind, role] += 1
        self._world.setting.note("FAULT", f"{kind} {role}")

    def _later(self, low: float, high: float) -> float:
        """A delay in which something is over; never after the healing, which does it itself."""
        return low + (high - low) * self._chance.random()

    # --- crashes ------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        role = self._chance.choices(CRASHES, (2, 4, 1, 4))[0]
        {
            "hub": self._crash_hub,
            "pool": self._crash_pool,
            "client": self._crash_client,
            "slot": self._kill_slot,
        }[role]()

    def _crash_hub(self) -> None:
        hub = self._world.hub
        if hub.up:
            self._count("crash", "hub")
            hub.kill()
            self.replace_hub()

    def replace_hub(self) -> None:
        """The hub has died, or is to end now: its peers may notice, and another one takes its place."""
        world, chance = self._world, self._chance
        if world.hub.up:
            world.hub.kill()
        for pool in world.pools:
            end = pool.end
            if end.lane is not None:
                end.lane_closed(end.lane, signalled=chance.random() < 0.5)
            for link in (end.collector, end.beat, end.control):
                if chance.random() < 0.5:
                    link.reset()
        self._cut_off_clients()
        if world.setting.timetable.now >= self._until:
            self._start(world.hub)
            return
        down = self._later(0.0, chance.choice((0.1, 1.0, 1.5 * world.lease)))
        world.setting.timetable.after(down, self._start, world.hub)

    def _cut_off_clients(self) -> None:
        """The hub's links to clients break; some of these notice."""
        world, chance = self._world, self._chance
        for client in world.clients:
            client.up_link.reset()
            if chance.random() < 0.5:
                client.down_link.reset()
            if chance.random() < 0.5:
                world.setting.timetable.after(0.01, client.tell, LinkLost())

    def _start(self, host: HubHost | PoolHost) -> None:
        if not host.up:
            host.start()

    def _crash_pool(self) -> None:
        pool = self._chance.choice(self._world.pools)
        if not pool.up:
            return
        self._count("crash", "pool")
        pool.kill()
        if self._world.hub.up and self._chance.random() < 0.5:
            self._world.setting.timetable.after(0.005, self._links_lost, pool, pool.instance)
        down = self._later(0.0, self._chance.choice((0.1, 1.0, 1.5 * self._world.lease)))
        self._world.setting.timetable.after(down, self._start, pool)

    def _links_lost(self, pool: PoolHost, instance: int) -> None:
        if not pool.up or pool.instance == instance:
            pool.end.reset_links()

    def _crash_client(self) -> None:
        client = self._chance.choice(self._world.clients)
        if client.up:
            self._count("crash", "client")
            client.kill()
            client.down_link.reset()
            self._world.replace_client(client)

    def _leave(self) -> None:
        """A client closes its mesh and ends, with its tasks or without; its last words may be lost."""
        client, cancel = self._chance.choice(self._world.clients), self._chance.random() < 0.5
        if client.up and not client.paused:
            self._count("leave and cancel" if cancel else "leave", "client")
            client.leave(cancel=cancel)
            client.kill()
            self._world.replace_client(client)

    def _name_again(self) -> None:
        """Another process asks for a pool's name for a while: perhaps the first had seemed to be gone."""
        world = self._world
        pool = self._chance.choice(world.pools)
        if pool.up and not pool.is_twin:
            self._count("name taken again", "pool")
            self._twins += 1
            twin = pool.twin(self._twins)
            world.pools.append(twin)
            twin.start()
            if self._chance.random() < 0.3:
                world.setting.timetable.after(0.2, self._happen, lambda: self._tell_to_drain(pool))
                world.setting.timetable.after(6.5, self._happen, lambda: self._replace(pool))
            world.setting.timetable.after(self._later(0.1, 2.0 * world.lease), self._end_twin, twin)

    def _end_twin(self, twin: PoolHost) -> None:
        if twin in self._world.pools:
            self._world.pools.remove(twin)
            twin.retired = True
            twin.kill()

    def plan_journal(self, chance: random.Random, hub: HubHost, disk: MemoryDisk) -> None:
        """Chooses what happens to a journal."""
        happenings = (
            partial(self._journal_away, chance, disk),
            partial(self._answers_lost, chance, disk),
            partial(self._journal_taken, disk),
            partial(self._journal_emptied, hub, disk),
            partial(self._journal_older, hub, disk),
            partial(self._power_lost, hub),
            partial(self._hub_and_client_die, chance, hub),
            partial(self._hub_and_client_die, chance, hub),
            partial(self._die_unnoticed, chance),
        )
        for _ in range(chance.randrange(6)):
            when = 0.3 + (self._until - 0.3) * chance.random()
            self._world.setting.timetable.at(when, self._happen, chance.choice(happenings))

    def _journal_away(self, chance: random.Random, disk: MemoryDisk) -> None:
        """Nobody reaches the journal for a while."""
        disk.away = "the link broke"

        def back() -> None:
            disk.away = ""

        self._world.setting.timetable.after(0.2 + 4.0 * chance.random(), back)

    def _answers_lost(self, chance: random.Random, disk: MemoryDisk) -> None:
        """The next transactions are stored, and the link breaks before anybody is told."""
        self._count("unanswered", "journal")
        disk.unanswered += chance.randint(1, 3)

    def _journal_taken(self, disk: MemoryDisk) -> None:
        """Another hub opens the journal, and ends at once."""
        if not disk.away:
            self._count("second hub", "journal")
            MemoryJournal(disk).open()

    def _journal_emptied(self, hub: HubHost, disk: MemoryDisk) -> None:
        """Somebody deletes the journal under its hub."""
        if hub.up:
            self._count("emptied", "journal")
            disk.erase()

    def _journal_older(self, hub: HubHost, disk: MemoryDisk) -> None:
        """The journal's server loses what it had not synced, and its hub goes on."""
        if hub.up:
            self._count("older", "journal")
            disk.lose_power()

    def _power_lost(self, hub: HubHost) -> None:
        """The hub's machine dies."""
        if hub.up:
            self._count("loss of power", "hub")
            hub.lose_power()
            self.replace_hub()

    def _hub_and_client_die(self, chance: random.Random, hub: HubHost) -> None:
        """A client dies with its hub, or a little before or after."""
        client = chance.choice(self._world.clients)
        if hub.up and client.up:
            self._count("crash", "client with its journal's hub")
            after = self._world.setting.timetable.after
            for end in (partial(self._end_client, client), partial(self._end_hub, hub)):
                after(0.5 * chance.random() * chance.randrange(2), self._happen, end)

    def _die_unnoticed(self, chance: random.Random) -> None:
        """A client stands still for seconds, and is killed: it has not fetched what has ended meanwhile."""
        client = chance.choice(self._world.clients)
        if client.up and not client.paused:
            self._count("dies unnoticed", "client")
            client.pause()
            timetable = self._world.setting.timetable
            most = min(3.0, max(0.0, self._until - timetable.now - 0.01))
            timetable.after(most * chance.random(), self._end_client, client)

    def _end_client(self, client: ClientHost) -> None:
        if client.up:
            client.kill()
            client.down_link.reset()
            self._world.replace_client(client)

    def _end_hub(self, hub: HubHost) -> None:
        if hub.up:
            hub.kill()
            self.replace_hub()

    def _kill_slot(self) -> None:
        pool = self._chance.choice(self._world.pools)
        alive = [slot for slot in pool.slots.values() if slot.alive]
        if alive:
            self._count("crash", "slot")
            self._chance.choice(alive).end(-9)

    def _fork_failures(self) -> None:
        self._chance.choice(self._world.pools).fork_failures += self._chance.randint(1, 4)
        self._kill_slot()

    def _drain(self) -> None:
        """An operator drains a pool, whose slot happens to be stopped, and puts another in its place."""
        pool = self._chance.choice(self._world.pools)
        if not pool.up or pool.paused or pool.left is not None:
            return
        alive = [slot for slot in pool.slots.values() if slot.alive and not slot.paused]
        after = self._world.setting.timetable.after
        if alive:
            slot = self._chance.choice(alive)
            slot.pause()
            after(2.5, slot.resume)
        after(0.7, self._happen, lambda: self._tell_to_drain(pool))
        after(6.5, self._happen, lambda: self._replace(pool))

    def _tell_to_drain(self, pool: PoolHost) -> None:
        client, chance = self._world.clients[0], self._chance
        verb = chance.choice(("sigterm", "drain", "scale-in"))
        if verb == "sigterm" and pool.up:
            self._count(verb, "pool")
            pool.tell(DrainRequested(chance.choice((0.5, 5.0))))
        elif verb != "sigterm" and not client.paused:
            self._count(verb, "pool")
            client.command(verb, pool.name if verb == "drain" else "1:pool")

    def revive(self) -> None:
        """Who leaves after the healing is started again: a command may have been long under way."""
        for pool in self._world.pools:
            if pool.up and pool.left is not None:
                pool.kill()
                pool.start()

    def _keep_reviving(self) -> None:
        if not self.over:
            self.revive()
            self._world.setting.timetable.after(1.0, self._keep_reviving)

    def _replace(self, pool: PoolHost) -> None:
        if pool.up and pool.machine.state == "draining":
            pool.kill()
        if not pool.up:
            pool.start()

    # --- pauses -------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        world, chance = self._world, self._chance
        role = chance.choices(ROLES, (2, 4, 2, 3))[0]
        long = chance.random() < 0.5
        lease = world.lease
        seconds = self._later(1.2 * lease, 2.0 * lease) if long else self._later(0.0, 0.9 * lease)
        if role == "slot":
            self._pause_slot(seconds, "long pause" if long else "short pause")
            return
        hosts: dict[str, list[Host[Any]]] = {
            "hub": [self._world.hub],
            "pool": [*world.pools],
            "client": [*world.clients],
        }
        host = chance.choice(hosts[role])
        if host.up and not host.paused:
            self._count("long pause" if long else "short pause", role)
            host.pause()
            world.setting.timetable.after(seconds, host.resume)

    def _pause_slot(self, seconds: float, kind: str) -> None:
        pool = self._chance.choice(self._world.pools)
        alive = [slot for slot in pool.slots.values() if slot.alive and not slot.paused]
        if alive:
            self._count(kind, "slot")
            slot = self._chance.choice(alive)
            slot.pause()
            self._world.setting.timetable.after(seconds / 4, slot.resume)

    # --- cuts ---------------------------------------------------------------------------------------------

    def _partition(self) -> None:
        world, chance = self._world, self._chance
        role, way = chance.choice(("pool", "pool", "client")), chance.choice(CUTS)
        links: list[Link] = []
        mode = chance.choice(("hold", "drop"))
        if role == "pool":
            pool = chance.choice(world.pools)
            links += pool.end.links_in() if way != "out" else []
            links += pool.end.links_out() if way != "in" else []
            if way != "out":
                pool.end.blocked_in = mode
        else:
            client = chance.choice(world.clients)
            links += [client.down_link] if way != "out" else []
            links += [client.up_link] if way != "in" else []
        self._count(f"partition {way}", role)
        for link in links:
            link.blocked = mode
        self._cut.update(dict.fromkeys(links))
        seconds = self._later(0.05, chance.choice((0.5, 1.0, 2.0)) * world.lease)
        world.setting.timetable.after(seconds, self._mend, links, pool if role == "pool" else None)

    def _mend(self, links: list[Link], pool: PoolHost | None) -> None:
        if pool is not None:
            pool.end.blocked_in = ""
            links = [*links, *pool.end.links_in()]
        for link in links:
            self._cut.pop(link, None)
            self._world.setting.network.unblock(link)

    def _reset(self) -> None:
        world, chance = self._world, self._chance
        role = chance.choice(("lane", "lane", "pool", "gateway"))
        if role == "gateway":
            client = chance.choice(world.clients)
            client.up_link.reset()
            client.down_link.reset()
            news = chance.choice((LinkLost(), LinkCut(), None))
            if news is not None:
                client.tell(news)
        else:
            pool = chance.choice(world.pools)
            end = pool.end
            if end.lane is None:
                return
            if role == "lane":
                end.reset_lane()
            else:
                end.reset_links()
        self._count("reset", role)
