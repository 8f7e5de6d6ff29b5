"""A pod's deletion cost: of a Deployment that shrinks, Kubernetes ends the pods first that lose least.

The worker writes it onto its own pod: as many as it runs, and less than nothing once it drains. After an
operator's drain (`taskmesh scale-in`) it stays until Kubernetes ends the pod, or it would be started anew.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskmesh.net.side_client import SideClient, SidePortUnreachable

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LEAVING = -1
LOOK = 0.5
"""Seconds between looks at what the pool does."""
CHANGE = 15.0
"""Seconds between changes of the annotation: each is a write to the API's store. A drain is told at once."""
HOLD = 30.0
"""Seconds that a drained pod stays for Kubernetes to end it."""
TIMEOUT = 5.0
ENDS = frozenset({signal.SIGTERM, signal.SIGINT})


class ClusterError(Exception):
    """Internal: the cluster's API does not do what it is asked for."""


class OwnPod:
    """The pod that this process runs in, as the cluster's API knows it.

    Args:
        name: the pod's.
        account: the mounted folder of its service account.
        api: HOST and PORT of the API; those that Kubernetes has put into the environment if None.
    """

    def __init__(self, name: str, account: Path = ACCOUNT, api: tuple[str, int] | None = None) -> None:
        given = os.environ.get
        self._api = api or (
            given("KUBERNETES_SERVICE_HOST", ""),
            int(given("KUBERNETES_SERVICE_PORT", "443")),
        )
        self._account = account
        self._name = name

    @property
    def cost(self) -> int:
        """What is written there; 0 if nothing is, or no number."""
        annotations = self._ask("GET")["metadata"].get("annotations") or {}
        try:
            return int(annotations.get(ANNOTATION, "0"))
        except ValueError:
            return 0

    @cost.setter
    def cost(self, cost: int) -> None:
        self._ask("PATCH", {"metadata": {"annotations": {ANNOTATION: str(cost)}}})

    @property
    def ends(self) -> bool:
        """Whether Kubernetes has begun to end it."""
        return "deletionTimestamp" in self._ask("GET")["metadata"]

    def _ask(self, method: str, change: dict[str, object] | None = None) -> dict[str, Any]:
        """The pod, after a change if there is one. The token is read each time: Kubernetes renews it.

        Raises:
            ClusterError: with the reason.
        """
        try:
            namespace = (self._account / "namespace").read_text().strip()
            token = (self._account / "token").read_text().strip()
            trusted = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            link = http.client.HTTPSConnection(*self._api, timeout=TIMEOUT, context=trusted)
            try:
                link.request(
                    method,
                    f"/api/v1/namespaces/{namespace}/pods/{self._name}",
                    body=json.dumps(change) if change else None,
                    headers={
                        "Authorization": f"Bearer {token}",
                        "Content-Type": "application/merge-patch+json",
                    },
                )
                answer = link.getresponse()
                found: dict[str, Any] = json.loads(answer.read())
            finally:
                link.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            where = self._api[0] or "an unknown address"
            raise ClusterError(f"the cluster's API at {where} does not answer: {error}") from None
        if answer.status != 200:
            raise ClusterError(f"the cluster's API refuses: {answer.status} {found.get('message', '')}")
        return found


class DeletionCost:
    """Keeps a pod's deletion cost while its pool runs, in a thread of its own.

    Args:
        pod: whose cost it is. side: the pool's side port. news: told what goes wrong, each thing once.
    """

    def __init__(self, pod: OwnPod, side: SideClient, news: Callable[[str, str], None]) -> None:
        self._pod = pod
        self._side = side
        self._news = news
        self._written: int | None = None
        self._since = -math.inf
        self._complaint = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deletion-cost", daemon=True)

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
            except ClusterError as error:
                self._since = time.monotonic()
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    self._news("deletion-cost", f"the pod's deletion cost is not up to date: {error}")

    def _look(self, now: float) -> None:
        try:
            status, text = self._side.ask("GET", "/drain")
        except SidePortUnreachable:  # not yet, or not any more
            return
        if status == 503:  # the worker is ending
            return
        if status != 200:
            raise ClusterError(f"the pool's side port says {status}: {text}")
        view = json.loads(text)
        drains = view["state"] == "draining"
        if now - self._since < CHANGE and not drains:
            return
        if self._written is None:
            self._written = self._pod.cost
        cost = LEAVING if drains else int(view["running"])
        if cost == self._written or (cost == 0 and self._written == LEAVING):
            return  # drained before, started anew, idle: still the one to take
        self._pod.cost = cost
        self._written, self._since = cost, now


def hold(pod: OwnPod, seconds: float = HOLD) -> None:
    """Waits until Kubernetes ends the pod, unless it does so already; in the main thread, after the drain."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        if not pod.ends:
            pod.cost = LEAVING  # an idle pool has drained before anybody could look
            signal.sigtimedwait(ENDS, seconds)
    except ClusterError:
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
