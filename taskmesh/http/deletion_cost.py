"""Deletion costs of pods: of a Deployment that shrinks, Kubernetes ends those first that lose least.

The hub writes them, for it runs no task code: the number of tasks that a pod's pool runs, and -1 for one that
drains or has left. After an operator's drain (`taskmesh scale-in`) the pod's worker waits for Kubernetes
to end it (`taskmesh worker --stay`).
"""

from __future__ import annotations

import http.client
import json
import math
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

from taskmesh.errors import ConfigError
from taskmesh.http.hub_metrics import LEAVING
from taskmesh.http.requests import NoAnswer

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOOK = 0.5
"""Seconds between two looks at the pools."""
CHANGE = 15.0
"""Seconds between changes of one annotation: each is a write to the API's store. A drain is immediate."""
MOST = 50
"""Most changes in one look."""
REMEMBERED = 600.0
"""Seconds for which a pool that has left is remembered: started again and idle, it is to end first."""
TIMEOUT = 5.0


class ClusterError(Exception):
    """Internal: the cluster's API does not answer, or refuses."""


class Pods:
    """The pods of this process's own namespace, as the cluster's API knows them.

    Args:
        account: the mounted folder of the service account.
        api: host and port of the API; if None, those that Kubernetes has put into the environment.

    Raises:
        ConfigError: this process has no token of the API.
    """

    def __init__(self, account: Path = ACCOUNT, api: tuple[str, int] | None = None) -> None:
        if not (account / "token").exists():
            raise ConfigError(
                "--deletion-cost is for a hub in a Kubernetes pod that has a token of the cluster's API, and "
                f"{account}/token is not there: leave the option out, or mount the token of its account"
            )
        given = os.environ.get
        self._api = api or (
            given("KUBERNETES_SERVICE_HOST", ""),
            int(given("KUBERNETES_SERVICE_PORT", "443")),
        )
        self._account = account
        self._link: http.client.HTTPSConnection | None = None

    def write(self, pod: str, cost: int) -> None:
        """Write a pod's deletion cost; a pod that does not exist is skipped.

        The request changes the pod's status: this right allows to annotate pods, and not to change what they
        run. The token is read each time, for Kubernetes renews it.

        Raises:
            ClusterError: the API does not answer, or refuses.
        """
        try:
            namespace = (self._account / "namespace").read_text().strip()
            status, found = self._patch(
                f"/api/v1/namespaces/{namespace}/pods/{quote(pod, safe='')}/status",
                {"metadata": {"annotations": {ANNOTATION: str(cost)}}},
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            where = self._api[0] or "an unknown address"
            raise ClusterError(f"the cluster's API at {where} does not answer: {error}") from None
        if status not in {200, 404}:
            raise ClusterError(f"the cluster's API refuses: {status} {found.get('message', '')}")

    def _patch(self, path: str, change: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        token = (self._account / "token").read_text().strip()
        if self._link is None:
            trusted = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            self._link = http.client.HTTPSConnection(*self._api, timeout=TIMEOUT, context=trusted)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        self._link.request("PATCH", path, body=json.dumps(change), headers=headers)
        answer = self._link.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        """Close the connection; the next write makes another."""
        if self._link is not None:
            self._link.close()
            self._link = None


@dataclass(slots=True)
class WrittenCost:
    """The cost that a pod has, and the time at which it was written."""

    cost: int = 0
    at: float = field(default=-math.inf)


class DeletionCosts:
    """Keeps the deletion costs of pods while a hub runs, in a thread of its own.

    Args:
        deployments: names of Deployments; the pool in a pod has the pod's name, DEPLOYMENT-anything.
        pods: writes the costs.
        look: returns the cost of each pool by its name; raises NoAnswer while it is not known.
        record: logs errors, each once.
    """

    def __init__(
        self,
        deployments: tuple[str, ...],
        pods: Pods,
        look: Callable[[], object],
        record: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._prefixes = tuple(f"{name}-" for name in deployments)
        self._pods = pods
        self._costs = look
        self._record = record
        self._written: dict[str, WrittenCost] = {}
        self._complaint = ""
        self._after = -math.inf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskmesh-deletion-cost", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            try:
                self._look(time.monotonic())
            except NoAnswer:  # it starts, ends, or is busy
                continue
            except ClusterError as error:
                self._after = time.monotonic() + CHANGE
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    self._record("deletion_cost", {"error": f"pods' costs are not up to date: {error}"})

    def _look(self, now: float) -> None:
        if now < self._after:
            return
        for pool in [pool for pool, past in self._written.items() if now - past.at > REMEMBERED]:
            if self._written[pool].cost == LEAVING:
                del self._written[pool]
        found = cast("dict[str, int]", self._costs())
        costs = {pool: cost for pool, cost in found.items() if pool.startswith(self._prefixes)}
        costs.update(dict.fromkeys(self._written.keys() - costs.keys(), LEAVING))
        due = [pool for pool, cost in costs.items() if self._due(pool, cost, now)]
        due.sort(key=lambda pool: (costs[pool] != LEAVING, self._written.get(pool, WrittenCost()).at))
        try:
            for pool in due[:MOST]:
                self._pods.write(pool, costs[pool])
                self._written[pool] = WrittenCost(costs[pool], now)
        finally:
            self._pods.close()

    def _due(self, pool: str, cost: int, now: float) -> bool:
        """Return True if a cost is to be written now."""
        written = self._written.get(pool)
        if written is None:  # a former hub may have written one
            return True
        if cost == written.cost or (cost == 0 and written.cost == LEAVING):
            return False  # drained before, started again, idle: still the one to end
        return cost == LEAVING or now - written.at >= CHANGE
