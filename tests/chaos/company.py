"""Who takes part in an episode: a hub, pools and clients as processes, started again when they have ended."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.client_program import STOP
from tests.harness.cluster import ENVIRONMENT, Cluster
from tests.harness.keys import Ring
from tests.harness.program import Program, exists
from tests.harness.programs import Programs

KILLED = -signal.SIGKILL
CLIENTS = 2
POOLS = 2


@dataclass
class Life:
    """One client from its start to its end.

    Attributes:
        seed: what its errands are made from. killed: when it was killed, if it was.
    """

    program: Program
    seed: int
    killed: float | None = None


@dataclass
class Record:
    """What was done to the company, for the judge; moments are those of time.monotonic().

    Attributes:
        hub_kills: when the hub was killed, or has ended. hub_starts: when one was ready.
        struck: slots that were killed, or whose pool was.
        cancelled: ids of tasks that an operator has cancelled, with the moment of the command.
        confirmed: those of them that the hub has answered for.
    """

    hub_kills: list[float] = field(default_factory=list)
    hub_starts: list[float] = field(default_factory=list)
    struck: set[int] = field(default_factory=set)
    cancelled: dict[str, float] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


class Company:
    """Starts everybody, keeps them going, and notes whoever ends without a reason.

    Attributes:
        hub, pools, clients: who is there now; some may just have been killed.
        lives: every client there has been. draining: pools that were told to go, once or again.
        spared: clients and pools of which nobody kills the process itself.

    Args:
        program: The module of the clients' program.
    """

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        only: Sequence[str],
        *,
        keys: bool = False,
        program: str = "tests.chaos.client_program",
    ) -> None:
        self.folder = folder
        self.cluster = Cluster(Programs(folder, ENVIRONMENT))
        if keys:
            self.cluster.ring = Ring(folder)
        self.record = Record()
        self.pools: dict[str, Program] = {}
        self.clients: dict[str, Program] = {}
        self.lives: list[Life] = []
        self.draining: set[str] = set()
        self.spared: frozenset[str] = frozenset()
        self._chance = chance
        self._only = ",".join(only)
        self._client_program = program
        self._names = (f"client-{number}" for number in itertools.count())
        self._turns = itertools.count()  # of what is due at the same moment
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._frozen: list[tuple[float, int, Sequence[int]]] = []

    @property
    def hub(self) -> Program:
        return self.cluster.hub

    @property
    def address(self) -> str:
        return self.cluster.address

    def start(self) -> None:
        """Start everybody, and wait until they are ready."""
        self._start_hub()
        for number in range(POOLS):
            self._start_pool(f"pool-{number}")
        for _ in range(CLIENTS):
            self._start_client()
        for program in (*self.pools.values(), *self.clients.values()):
            program.ready()

    def _start_hub(self) -> None:
        self.cluster.start_hub()
        self.record.hub_starts.append(time.monotonic())

    def _start_pool(self, name: str) -> None:
        slots = 2 + self._chance.randint(0, 1)
        self.pools[name] = self.cluster.start_worker(name, slots=slots, wait=False)

    def _start_client(self) -> None:
        name, seed = next(self._names), self._chance.getrandbits(30)
        self.clients[name] = self.cluster.start_client(
            name, self.folder, name, seed, self._only, module=self._client_program
        )
        self.lives.append(Life(self.clients[name], seed))

    # --- strikes --------------------------------------------------------------------------------------------

    def freeze(self, pids: Sequence[int], seconds: float) -> None:
        """SIGSTOP now, SIGCONT in so many seconds."""
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        heapq.heappush(self._frozen, (time.monotonic() + seconds, next(self._turns), pids))

    def kill_hub(self) -> None:
        self.hub.kill()
        self.record.hub_kills.append(time.monotonic())
        self._later(self._chance.random() * 3, self._start_hub)

    def kill_pool(self, name: str, *, whole: bool) -> None:
        """Kill its supervisor, or all of its processes."""
        pool = self.pools[name]
        self.record.struck.update(pool.slots())
        pool.kill_all() if whole else pool.kill()
        self._later(self._chance.random() * 3, lambda: self._start_pool(name))

    def kill_client(self, name: str) -> None:
        self.clients.pop(name).kill()
        self.lives_of(name).killed = time.monotonic()
        self._later(self._chance.random() * 2, self._start_client)

    def kill_slot(self, pid: int) -> None:
        self.record.struck.add(pid)
        _send(pid, signal.SIGKILL)

    def lives_of(self, name: str) -> Life:
        return next(life for life in self.lives if life.program.name == name)

    # --- between strikes ------------------------------------------------------------------------------------

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._turns), what))

    def tend(self) -> None:
        """Let those go on whose time is over, start those that are due, note who has ended."""
        now = time.monotonic()
        self.thaw(now)
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        for name, pool in self.pools.items():
            if not pool.alive and pool.process.returncode != KILLED and not self._due:
                if pool.process.returncode or name not in self.draining:
                    self.note(f"{pool.name} has ended with {pool.process.returncode}")
                self._later(0.5, lambda name=name: self._start_pool(name))
        for name, client in list(self.clients.items()):
            if not client.alive and not (self.folder / STOP).exists():
                self.note(f"{name} has ended with {client.process.returncode}")
                self.lives_of(name).killed = now
                del self.clients[name]
                self._later(0, self._start_client)
        if not self.hub.alive and self.hub.process.returncode != KILLED and not self._due:
            self.note(f"the hub has ended with {self.hub.process.returncode}")
            self.record.hub_kills.append(now)
            self._later(0, self._start_hub)

    def thaw(self, now: float) -> None:
        """Let those go on whose time was over by then."""
        while self._frozen and self._frozen[0][0] <= now:
            for pid in heapq.heappop(self._frozen)[2]:
                _send(pid, signal.SIGCONT)

    def heal(self) -> None:
        """Everybody goes on or is started again, at once."""
        self.thaw(math.inf)
        self._due = [(-math.inf, turn, what) for _, turn, what in self._due]
        self.tend()

    def is_frozen(self, pid: int) -> bool:
        return any(pid in pids for _, _, pids in self._frozen)

    def note(self, problem: str) -> None:
        self.record.problems.append(problem)


def _send(pid: int, number: int) -> None:
    """A signal to a process that may be gone; never to one whose id is nobody's of ours any more."""
    if exists(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
