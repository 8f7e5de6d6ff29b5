"""Waiting for tasks, while checking that the hub and a pool for them are there."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskmesh.client.client import Client
from taskmesh.client.options import TaskOptions
from taskmesh.errors import HubUnreachable
from taskmesh.future import TaskFuture
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps.errors import MeshGatewayLost, NoMeshWorkers

LOOK_S: Final = 1.0
"""Seconds without a result between two queries to the hub."""

_ANSWER_S: Final = 2.0
_LEAVING: Final = ("draining", "cut")


class Watchdog:
    """Waits for the tasks of one Spark task. A result restarts the clocks.

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
        self._addresses = settings.address
        self._where = " or ".join(settings.address)
        self._options = options
        self._patience = settings.no_worker_timeout / speed_up
        self._gateway_patience = settings.gateway_timeout / speed_up
        self._alone_since: float | None = None
        self._lost_since: float | None = None

    def wait(self, futures: Sequence[TaskFuture[Any]]) -> None:
        """Return when one of the tasks has ended.

        Raises:
            NoMeshWorkers: no pool for them for longer than `no_worker_timeout`.
            MeshGatewayLost: no hub for longer than `gateway_timeout`.
        """
        done: set[Any] = set()
        while not done:
            done, _ = concurrent.futures.wait(futures, LOOK_S, concurrent.futures.FIRST_COMPLETED)
            if not done:
                self._look()
        self._alone_since = self._lost_since = None

    def _look(self) -> None:
        before = time.monotonic()
        try:
            pools = self._client.open().query("pools", limit=10_000, timeout=_ANSWER_S)
        except HubUnreachable as error:
            self._lost_since = self._lost_since or before - LOOK_S
            away = time.monotonic() - self._lost_since
            if away >= self._gateway_patience:
                raise MeshGatewayLost(
                    f"the hub at {self._where} has been away for {away:.0f} s (gateway_timeout): {error}"
                ) from error
            return
        self._lost_since = None
        there = [pool for pool in pools if isinstance(pool, Mapping)] if isinstance(pools, list) else []
        self._count([pool for pool in there if pool["state"] not in _LEAVING])

    def _count(self, pools: Sequence[Mapping[str, Any]]) -> None:
        """Check that one of the hub's pools serves the task's queue and tags."""
        need = set(self._options.tags)
        if any(self._options.queue in pool["queues"] and need <= set(pool["tags"]) for pool in pools):
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now - LOOK_S
        if now - self._alone_since >= self._patience:
            dialled = "".join(f" --address {address}" for address in self._addresses)
            tags = f" --tags {','.join(sorted(need))}" if need else ""
            wanted = f"queue {self._options.queue!r}" + (
                f" and tags {', '.join(sorted(need))}" if need else ""
            )
            seen = "; ".join(f"{pool['pool']} serves {', '.join(pool['queues'])}" for pool in pools) or "none"
            raise NoMeshWorkers(
                f"no pool for {wanted} at {self._where} for {now - self._alone_since:.0f} s "
                f"(no_worker_timeout); pools there: {seen}. Start one: "
                f"`taskmesh worker{dialled} --queues {self._options.queue}{tags}`"
            )
