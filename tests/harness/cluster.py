"""A hub, its pools and its clients as processes of their own, with keys or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable
from tests.harness.keys import Ring
from tests.harness.ports import lasting_address
from tests.harness.program import Program, command
from tests.harness.programs import Programs

LEASE = 2.0
BEAT = 0.2
SETTINGS = {"TASKMESH_HUB__LEASE": str(LEASE), "TASKMESH_HUB__BEAT": str(BEAT)}
"""The environment of programs that soon take a silent peer for dead."""
ENVIRONMENT = {"PYTHONFAULTHANDLER": "1", **SETTINGS}
"""The same, and what makes a program that is aborted say where its threads stand."""
OVERRIDES = {"hub__lease": LEASE, "hub__beat": BEAT}
"""The settings for a mesh in the test's own process."""


class Cluster:
    """One hub, which may be replaced, and its pools.

    Attributes:
        programs: starts them, and ends them when the test is over.
        ring: keys that everybody shows from now on; None for no keys.
        hub: the hub that was started last.
        pools: those that were started last under each name.
        address: of the hub's gateway.
    """

    hub: Program

    def __init__(self, programs: Programs, ring: Ring | None = None) -> None:
        self.programs = programs
        self.ring = ring
        self.pools: dict[str, Program] = {}
        self.address = ""
        self._keys: dict[tuple[str, str], str] = {}

    @classmethod
    def keyed(cls, programs: Programs, ring: Ring, bind: str = "") -> Self:
        """Start a hub with keys and a pool of one slot, `first`."""
        cluster = cls(programs, ring)
        cluster.start_hub(bind=bind)
        cluster.start_worker("first", slots=1)
        return cluster

    @property
    def folder(self) -> Path:
        """The directory in which the programs run and write."""
        return self.programs.folder

    @property
    def client(self) -> str:
        """The directory of keys of the client that `mesh` is by default."""
        return self.keys("client", "alice")

    def start_hub(
        self,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        bind: str = "",
    ) -> Program:
        """Start a hub, at the address of the one before, if there was one."""
        keys = str(self.ring.hub.path) if self.ring is not None else ""
        line = ("hub", "--bind", bind or self.address or lasting_address(), "--json")
        self.hub = self.start("hub", *line, env={**key_environment(keys), **(env or {})}, prepare=prepare)
        self.address = str(self.hub.ready()["gateway"])
        return self.hub

    def start_worker(
        self,
        name: str,
        *options: str,
        slots: int = 2,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        wait: bool = True,
        address: str = "",
    ) -> Program:
        """Start a pool, and wait until its session is open; `address`: another way to the hub."""
        line = ["worker", "--json", "--address", address or self.address, "--name", name]
        line += ["--concurrency", str(slots), *options]
        keys = self.keys("worker", name)
        worker = self.start(name, *line, env={**key_environment(keys), **(env or {})}, prepare=prepare)
        self.pools[name] = worker
        if wait:
            worker.ready()
        return worker

    def start_workers(self, count: int, slots: int = 2) -> list[Program]:
        """Start pools named pool-0 and so on, all at once."""
        workers = [self.start_worker(f"pool-{i}", slots=slots, wait=False) for i in range(count)]
        for worker in workers:
            worker.ready()
        return workers

    def start_client(
        self,
        name: str,
        *arguments: object,
        module: str = "tests.faults.client_program",
        prepare: Callable[[], None] | None = None,
        address: str = "",
    ) -> Program:
        """Start a client as a process of its own, from a module of the tests."""
        line = ["-m", module, address or self.address, *map(str, arguments)]
        return self.programs.launch(name, line, key_environment(self.keys("client", name)), prepare)

    def start(
        self,
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Program:
        """Start `taskmesh ARGUMENTS` under a name."""
        return self.programs.launch(name, command(*arguments)[1:], env, prepare)

    def keys(self, role: str, name: str) -> str:
        """Return the directory of keys of an authorized peer; "" where no keys are in use."""
        if self.ring is None:
            return ""
        if (role, name) not in self._keys:
            self._keys[role, name] = self.ring.peer(role, name)
        return self._keys[role, name]

    def mesh(self, keys: str = "", **settings: Any) -> Mesh:
        """Open a mesh to the hub, with a directory of keys."""
        return Mesh(self.address, keys=keys or self.client, **{"open_timeout": 20, **settings})


def key_environment(keys: str) -> dict[str, str]:
    """Return the environment that names a directory of keys."""
    return {"TASKMESH_KEYS": keys} if keys else {}


def pools_of(status: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return a hub's pools by name, from its status."""
    pools = status["pools"]
    assert isinstance(pools, list)
    return {str(pool["pool"]): pool for pool in pools}


def pool_states(mesh: Mesh) -> dict[str, str]:
    """Return the states of a hub's pools by name; nothing while there is no hub."""
    try:
        return {name: str(pool["state"]) for name, pool in pools_of(mesh.status(timeout=0.5)).items()}
    except HubUnreachable:
        return {}


@pytest.fixture
def cluster(programs: Programs) -> Cluster:
    """A cluster that soon takes a silent peer for dead; nothing of it runs yet."""
    programs.env |= SETTINGS
    return Cluster(programs)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    """The keys of a mesh."""
    return Ring(tmp_path)


@pytest.fixture
def keyed(programs: Programs, ring: Ring) -> Cluster:
    """A hub with keys, and the pool `first`."""
    return Cluster.keyed(programs, ring)
