"""What strikes an episode's company: kills, freezes, resets, and operators' commands, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable

import psutil

from tests.chaos.company import Company
from tests.chaos.operators import Operators
from tests.harness.cluster import LEASE
from tests.harness.program import Program, can_reset

Strike = Callable[[], str]
GENTLE = 0.5
"""Of a lease: how long a pool may stand still and keep all that it has, on a busy machine too."""
HARSH = 3.0


class Strikes:
    """By chance one of them after the other.

    Gentle ones cost only time: none but clients is killed, pools stand still for less than a lease.
    """

    def __init__(self, company: Company, operators: Operators, chance: random.Random, *, harsh: bool) -> None:
        self._company = company
        self._operators = operators
        self._chance = chance
        self._longest = HARSH if harsh else GENTLE
        self._table: list[tuple[float, Strike]] = [
            (2, self._freeze_slot),
            (2, self._freeze_pool),
            (2, self._freeze_hub),
            (1, self._freeze_client),
            (1, self._kill_client),
            (4, operators.act),
        ]
        if can_reset():
            self._table.append((2, self._reset))
        if harsh:
            self._table += [
                (3, self._kill_slot),
                (2, self._kill_pool),
                (2.5, self._kill_hub),
                (0.6, self._kill_fork_server),
            ]

    def strike(self) -> str:
        """Do one; return it in words."""
        weights, strikes = zip(*self._table, strict=True)
        return self._chance.choices(strikes, weights)[0]()

    def _seconds(self, most: float) -> float:
        return self._chance.uniform(0.2, most) * LEASE

    def _pool(self, *, mortal: bool = False) -> tuple[str, Program]:
        pools = self._company.pools.items()
        return self._chance.choice(
            [pair for pair in pools if not mortal or pair[0] not in self._company.spared]
        )

    def _freeze(self, name: str, pids: list[int], most: float) -> str:
        pids = [pid for pid in pids if not self._company.is_frozen(pid)]
        seconds = self._seconds(most)
        self._company.freeze(pids, seconds)
        return f"freeze {name} for {seconds:.1f} s" if pids else f"freeze {name}: nothing is there to freeze"

    def _freeze_slot(self) -> str:
        name, pool = self._pool()
        slots = pool.slots()
        return self._freeze(f"a slot of {name}", [self._chance.choice(slots)] if slots else [], self._longest)

    def _freeze_pool(self) -> str:
        name, pool = self._pool()
        if not pool.alive:
            return f"freeze {name}: it is not there"
        family = pool.family() if self._chance.random() < 0.5 else []
        return self._freeze(name + " and its slots" * bool(family), [pool.pid, *family], self._longest)

    def _freeze_hub(self) -> str:
        """However long: leases are extended by the gap. But a pool that leaves waits for a hub no longer."""
        hub = self._company.hub
        most = self._longest if self._company.draining else HARSH
        return self._freeze("the hub", [hub.pid] if hub.alive else [], most)

    def _freeze_client(self) -> str:
        name, client = self._chance.choice(list(self._company.clients.items()) or [("", self._company.hub)])
        if not name:
            return "freeze a client: there is none"
        return self._freeze(name, [client.pid] if client.alive else [], self._longest)

    def _reset(self) -> str:
        company = self._company
        victim = self._chance.choice([company.hub, *company.pools.values(), *company.clients.values()])
        count = victim.reset_connections() if victim.alive else 0
        return f"reset {count} connections of {victim.name}"

    def _kill_client(self) -> str:
        mortal = [name for name in self._company.clients if name not in self._company.spared]
        name = self._chance.choice(mortal or [""])
        if not name or not self._company.clients[name].alive:
            return "kill a client: there is none"
        self._company.kill_client(name)
        return f"kill {name}"

    def _kill_slot(self) -> str:
        name, pool = self._pool()
        slots = pool.slots()
        if not slots:
            return f"kill a slot of {name}: it has none"
        pid = self._chance.choice(slots)
        self._company.kill_slot(pid)
        return f"kill slot {pid} of {name}"

    def _kill_pool(self) -> str:
        name, pool = self._pool(mortal=True)
        if not pool.alive:
            return f"kill {name}: it is not there"
        whole = self._chance.random() < 0.5
        self._company.kill_pool(name, whole=whole)
        return f"kill {name}" + " and its slots" * whole

    def _kill_hub(self) -> str:
        if not self._company.hub.alive:
            return "kill the hub: it is not there"
        self._company.kill_hub()
        return "kill the hub"

    def _kill_fork_server(self) -> str:
        name, pool = self._pool()
        servers = psutil.Process(pool.pid).children() if pool.alive else []
        if not servers:
            return f"kill the fork server of {name}: there is none"
        self._company.record.struck.update(pool.slots())
        servers[0].kill()
        return f"kill the fork server of {name}"


class Kills(Strikes):
    """Kills alone, of whatever is not spared."""

    def __init__(self, company: Company, operators: Operators, chance: random.Random) -> None:
        super().__init__(company, operators, chance, harsh=True)
        self._table = [
            (2, self._kill_slot),
            (2, self._kill_pool),
            (3, self._kill_hub),
            (1, self._kill_client),
            (1, self._kill_fork_server),
        ]

    def spare_hub(self) -> None:
        """Kill no hub from now on."""
        self._table = [(weight, strike) for weight, strike in self._table if strike != self._kill_hub]
