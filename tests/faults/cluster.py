"""A hub and pools as processes of their own, over tcp on loopback, with a lease of two seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.harness.program import Program
from tests.net.keyed import Ring

LEASE = 2.0
BEAT = 0.2
SETTINGS = {"TASKMESH_HUB__LEASE": str(LEASE), "TASKMESH_HUB__BEAT": str(BEAT)}
"""What every program of these tests gets in its environment."""
OVERRIDES = {"hub__lease": LEASE, "hub__beat": BEAT}
"""The same for a mesh in the test's own process."""


class Cluster:
    """One hub and its workers; ends all of them, and says what they wrote when a test fails.

    Attributes:
        ring: keys that everybody shows from now on, None for no keys.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ring: Ring | None = None
        self.programs: list[Program] = []
        self.address = ""
        self._keys: dict[tuple[str, str], str] = {}

    @property
    def hub(self) -> Program:
        """The hub that was started last."""
        return next(program for program in reversed(self.programs) if program.name.startswith("hub"))

    def start_hub(
        self, environ: Mapping[str, str] | None = None, prepare: Callable[[], None] | None = None
    ) -> Program:
        """Start a hub, at the address of the one before, if there was one."""
        bind = self.address or "tcp://127.0.0.1:0"
        keys = str(self.ring.hub.path) if self.ring is not None else ""
        hub = self.start(
            "hub",
            ["-m", "taskmesh.cli", "hub", "--bind", bind, "--json"],
            {**keyed(keys), **(environ or {})},
            prepare,
        )
        self.address = str(hub.ready()["gateway"])
        return hub

    def start_worker(
        self,
        name: str,
        *options: str,
        slots: int = 2,
        environ: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        wait: bool = True,
        address: str = "",
    ) -> Program:
        """Start a pool, and wait until its session is open; `address`: another way to the hub."""
        line = [
            "-m",
            "taskmesh.cli",
            "worker",
            "--json",
            "--address",
            address or self.address,
            "--name",
            name,
        ]
        line += ["--concurrency", str(slots), *options]
        keys = self.keys("worker", name)
        worker = self.start(name, line, {**keyed(keys), **(environ or {})}, prepare)
        if wait:
            worker.ready()
        return worker

    def start_workers(self, count: int, slots: int = 2) -> list[Program]:
        """Start pools named pool-0 and so on, all at once."""
        workers = [self.start_worker(f"pool-{i}", slots=slots, wait=False) for i in range(count)]
        for worker in workers:
            worker.ready()
        return workers

    def keys(self, role: str, name: str) -> str:
        """The directory of keys of somebody who is authorized, "" when no keys are in use.

        Who is started again has the keys that he had.
        """
        if self.ring is None:
            return ""
        if (role, name) not in self._keys:
            self._keys[role, name] = self.ring.peer(role, name)
        return self._keys[role, name]

    def start_client(self, name: str, *arguments: object) -> Program:
        """Start a client as a process of its own, see tests.faults.client_program."""
        return self.start(name, ["-m", "tests.faults.client_program", self.address, *map(str, arguments)])

    def start(
        self,
        name: str,
        line: list[str],
        environ: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Program:
        """Start any program with the settings of these tests."""
        times = sum(program.name.split("#")[0] == name for program in self.programs)
        label = f"{name}#{times}" if times else name
        program = Program(
            self.folder, label, line, {"PYTHONFAULTHANDLER": "1", **SETTINGS, **(environ or {})}, prepare
        )
        self.programs.append(program)
        return program

    def close(self, *, tell: bool = False) -> None:
        """End every program, the hub last."""
        for program in reversed(self.programs):
            program.close(tell=tell)

    def report(self) -> str:
        """What all programs wrote."""
        return "\n".join(filter(None, (program.report() for program in self.programs)))


def keyed(keys: str) -> dict[str, str]:
    """What tells a program its directory of keys."""
    return {"TASKMESH_KEYS": keys} if keys else {}


def pools_of(status: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """A hub's pools by name, from its status."""
    pools = status["pools"]
    assert isinstance(pools, list)
    return {str(pool["pool"]): pool for pool in pools}
