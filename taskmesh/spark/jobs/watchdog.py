"""Waiting for tasks, while the hub and a pool for them are there."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import Any, Final

from taskmesh.client.client import Client
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.options import TaskOptions
from taskmesh.errors import TaskMeshError
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps.errors import MeshGatewayLost, NoMeshWorkers

LOOK_S: Final = 0.5
"""Seconds without a result between two looks at what the hub has told, which it does each second."""

_ANSWER_S: Final = 2.0
_LEAVING: Final = ("draining", "cut")


class Watchdog:
    """Waits for the tasks of one Spark task. A result restarts the clocks.

    The hub tells every client that has tasks how many slots serve them: thousands of Spark tasks that wait
    ask it for nothing.

    Args:
        client: of the mesh.
        settings: of the job.
        options: of the tasks, with their queue and tags.
        speed_up: divides all time-outs: Spark's later tries must not take as long again.
    """

    def __init__(
        self, client: Client, settings: Settings, options: TaskOptions, speed_up: float = 1.0
    ) -> None:
        self._client = client
        self._queue = options.queue
        self._tags = frozenset(options.tags)
        self._patience = settings.no_worker_timeout / speed_up
        self._gateway_patience = settings.gateway_timeout / speed_up
        self._began = self._alone_since = 0.0
        self._lost_since: float | None = None

    @property
    def slots(self) -> int:
        """The number of slots that serve the tasks; 0 if no pool does, or the hub has not told so far."""
        return self._client.open().slots_of(self._queue, self._tags)[0]

    def wait(self, futures: Sequence[TaskFuture[Any]]) -> None:
        """Return when one of the tasks has ended.

        Raises:
            NoMeshWorkers: no pool for them for longer than `no_worker_timeout`.
            MeshGatewayLost: no hub for longer than `gateway_timeout`.
        """
        self.begin()
        done: set[Any] = set()
        while not done:
            done, _ = concurrent.futures.wait(futures, LOOK_S, concurrent.futures.FIRST_COMPLETED)
            if not done:
                self.look()
        self._lost_since = None

    def begin(self) -> None:
        """A wait begins: something has come before it."""
        self._began = self._alone_since = time.monotonic()

    def look(self) -> None:
        """Check that the hub is there, and has not said for too long that no pool serves the tasks.

        Raises:
            NoMeshWorkers, MeshGatewayLost: as `wait`.
        """
        port, address, now = self._client.open(), self._client.address, time.monotonic()
        if not port.connected:
            self._lost_since = self._lost_since or now - LOOK_S
            away = now - self._lost_since
            if away >= self._gateway_patience:
                raise MeshGatewayLost(
                    f"the hub at {address} has been away for {away:.0f} s (gateway_timeout): is one running "
                    f"there? `taskmesh hub --bind {address}` starts one"
                )
            return
        self._lost_since = None
        slots, told_at = port.slots_of(self._queue, self._tags)
        if slots:
            self._alone_since = now
        elif told_at > self._began and now - self._alone_since >= self._patience:
            raise NoMeshWorkers(self._complaint(now - self._alone_since))

    def _complaint(self, seconds: float) -> str:
        """Return what is missing, what is there, and the cure."""
        address = self._client.address
        tags = ",".join(sorted(self._tags))
        wanted = f"queue {self._queue!r}" + (f" and tags {', '.join(sorted(self._tags))}" if tags else "")
        option = f" --tags {tags}" if tags else ""
        return (
            f"no pool for {wanted} at {address} for {seconds:.0f} s (no_worker_timeout); pools there: "
            f"{self._pools()}. Start one: "
            f"`taskmesh worker --address {address} --queues {self._queue}{option}`"
        )

    def _pools(self) -> str:
        """Return the hub's pools and the queues that they serve; the only time that it is asked."""
        try:
            pools: Any = self._client.open().query("pools", limit=10_000, timeout=_ANSWER_S)
        except TaskMeshError:
            return "unknown, since the hub does not answer"
        there = [pool for pool in pools if pool["state"] not in _LEAVING]
        return "; ".join(f"{pool['pool']} serves {', '.join(pool['queues'])}" for pool in there) or "none"
