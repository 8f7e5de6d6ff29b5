"""A hub with its journal on a PersistentVolume: what it has accepted outlives its pod, and the release."""

import json
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from tests.kube.cluster import LOOK, NODE
from tests.kube.release import HUB, NAME, Release, Workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.leaks(reason="the cluster and the release live through all tests of this file"),
]
CLAIM, CLASS = f"{NAME}-hub-journal", "disks"
ON_VOLUME = {
    "hub__journal__persistence__enabled": "true",
    "hub__journal__persistence__storageClass": CLASS,
    "hub__journal__persistence__size": "1Gi",
    "hub__journal__strict": "true",
}
DELAY = "25"
"""Seconds before which a task does not start: longer than its hub has to live."""


def disk(release: Release) -> dict[str, Any]:
    """A disk of the node as a volume, of root's as a new one is."""
    path = release.cluster.folder / "disk"
    path.mkdir(mode=0o755)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


@pytest.fixture(scope="module")
def installed(release: Release) -> Release:
    release.cluster.kubectl("create", "-f", "-", given=json.dumps(disk(release)))
    release.helm("install", **ON_VOLUME)
    return release


def left_behind(client: Workload) -> str:
    """The id of a detached task that waits when its client has gone."""
    line = ("submit", "platform:node", "--delay", DELAY, "--detach", "--json")
    task_id: str = json.loads(client.taskmesh(*line))["task_id"]
    return task_id


def ends(client: Workload, task_id: str) -> bool:
    """Return True if the task's result can be had, from a pool."""
    told = json.loads(client.taskmesh("result", task_id, "--wait", "60", "--json"))
    return str(told["worker"]).startswith(f"{NAME}-default")


def claim(release: Release) -> dict[str, Any]:
    (found,) = [each for each in release.cluster.get("pvc") if each["metadata"]["name"] == CLAIM]
    return found


def test_the_claim_is_bound_and_the_hub_writes_to_it_as_a_user(installed: Release):
    installed.count(2)

    assert claim(installed)["status"]["phase"] == "Bound"
    (hub,) = installed.pods(HUB)
    told = installed.cluster.kubectl("exec", hub, "--", "ls", "-ln", "/var/lib/taskmesh").split()
    assert "tasks.journal" in told
    assert told.count("10001") >= 2  # its owner and group


def test_accepted_tasks_outlive_the_hub_s_pod(installed: Release):
    client = Workload(installed.cluster, "leaving")
    task_id = left_behind(client)
    (former,) = installed.pods(HUB)

    installed.cluster.kubectl("delete", "pod", former, "--grace-period=0", "--force")
    wait_until(lambda: set(installed.ready(HUB)) - {former}, 60, "another hub pod, ready", LOOK)

    assert ends(client, task_id)
    account = client.end()
    assert account["finished"] == account["submitted"]
    assert (account["wrong"], account["failed"]) == (0, 0), account


def test_they_outlive_the_release(installed: Release):
    client = Workload(installed.cluster, "back")
    task_id = left_behind(client)
    client.end()
    before = claim(installed)["metadata"]["uid"]

    installed.cluster.helm("uninstall", NAME, "--wait", "--timeout=60s")
    wait_until(lambda: not installed.pods() and not installed.pods(HUB), 60, "no container is left", LOOK)
    installed.helm("install", **ON_VOLUME)

    assert claim(installed)["metadata"]["uid"] == before
    client = Workload(installed.cluster, "again")
    assert ends(client, task_id)
    client.end()


def test_uninstalled_for_good(installed: Release):
    installed.cluster.helm("uninstall", NAME, "--wait", "--timeout=60s")
    wait_until(lambda: not installed.pods() and not installed.pods(HUB), 60, "no container is left", LOOK)

    installed.cluster.kubectl("delete", "pvc", CLAIM, "--timeout=60s", timeout=90)

    assert not [each for each in installed.cluster.get("pvc") if each["metadata"]["name"] == CLAIM]
