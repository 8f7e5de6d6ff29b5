"""The chart on a real apiserver, scheduler and kubelet, through a release's life and under a workload."""

import json

import pytest

from tests.harness.waiting import wait_until
from tests.kube.cluster import LOOK, NODE, Cluster
from tests.kube.farm import AHEAD
from tests.kube.release import HUB, NAME, Release, Workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.leaks(reason="the cluster and the release live through all tests of this file"),
]
POOL = f"{NAME}-default"
RECOVERY = 7.0
"""Seconds until more has come back than pools held when the hub went, as much as the client has under way."""
LONGEST_GAP = 6.0
"""Seconds without a result while pools drain: results are taken in turn, and the longest task takes 3 s."""


@pytest.fixture(scope="module")
def installed(release: Release) -> Release:
    release.helm("install")
    return release


@pytest.fixture(scope="module")
def workload(installed: Release) -> Workload:
    """Runs from here until the test that asks for its account."""
    return Workload(installed.cluster, "drained")


def gone(release: Release, names: set[str]) -> None:
    wait_until(lambda: not names & set(release.pods()), 90, f"{names} are gone", LOOK)


def test_installed_and_ready(installed: Release):
    installed.count(2)
    (hub,) = installed.pods(HUB).values()

    assert all(not status["restartCount"] for status in hub["status"]["containerStatuses"])


def test_helm_test_runs_a_task(installed: Release):
    told = installed.cluster.helm("test", NAME, "--logs", "--timeout=90s", timeout=120)

    assert "Succeeded" in told
    line = next(line for line in told.splitlines() if line.startswith("{"))
    assert json.loads(line)["worker"].startswith(POOL)


def test_a_release_without_a_hub_joins_this_one(installed: Release):
    installed.join("n")

    told = installed.cluster.helm("test", "n", "--logs", "--timeout=90s", timeout=120)
    installed.cluster.helm("uninstall", "n", "--wait", "--timeout=60s")

    line = next(line for line in told.splitlines() if line.startswith("{"))
    assert json.loads(line)["worker"].startswith("n-edge-")


def test_who_is_added_and_revoked_in_the_secret_needs_no_restart(installed: Release, workload: Workload):
    """The kubelet once kept the files of a revoked key, and hung the next hub's pod."""

    def admitted() -> bool:
        return "pools" in workload.taskmesh("status", "--timeout", "3", check=False)

    assert admitted()
    before = {name: pod["status"]["containerStatuses"] for name, pod in installed.pods(HUB).items()}
    operator = installed.public_key("authorized.operator.ops.public")

    installed.let_in(**{"authorized.operator.ops.public": None})
    wait_until(lambda: not admitted(), 60, "the operator is revoked", LOOK)
    installed.let_in(**{"authorized.operator.ops.public": operator})
    wait_until(admitted, 60, "the operator is let in", LOOK)

    after = {name: pod["status"]["containerStatuses"] for name, pod in installed.pods(HUB).items()}
    assert after == before
    workload.goes_on()


def test_upgrade_and_rollback_replace_pods_under_load(installed: Release, workload: Workload):
    before = set(installed.pods())

    installed.helm("upgrade", workerDefaults__podAnnotations__round="two")
    gone(installed, before)
    installed.count(2)
    workload.goes_on()
    second = set(installed.pods())
    installed.cluster.helm("rollback", NAME, "1", "--wait", "--timeout=100s")
    gone(installed, second)

    installed.count(2)
    workload.goes_on()


def test_scale_out_and_scale_in_of_a_busy_pool(installed: Release, workload: Workload):
    installed.cluster.kubectl("scale", f"deployment/{POOL}", "--replicas=4")
    installed.count(4)
    workload.goes_on()
    before = set(installed.pods())

    installed.cluster.kubectl("scale", f"deployment/{POOL}", "--replicas=2")

    installed.count(2)
    assert set(installed.pods()) < before
    workload.goes_on()


def test_no_pod_has_a_token_of_the_cluster(installed: Release):
    """A task could change other pods of the namespace, with its own pod's token."""
    for pod in (*installed.ready(HUB), *installed.ready()):
        found = installed.cluster.kubectl("exec", pod, "--", "ls", "/var/run/secrets", check=False)
        assert "kubernetes.io" not in found


def evict(cluster: Cluster, pod: str) -> bool:
    """Whether the budget lets a pod be evicted."""
    name = {"name": pod, "namespace": "default"}
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": name}
    path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
    return bool(cluster.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction), check=False))


def test_the_budget_lets_one_pod_go_at_a_time(installed: Release, workload: Workload):
    first, second = installed.ready()

    assert evict(installed.cluster, first)
    assert not evict(installed.cluster, second)

    gone(installed, {first})
    installed.count(2)
    workload.goes_on()


def test_a_drained_pod_waits_and_a_cordoned_node_takes_no_other(installed: Release, workload: Workload):
    cluster = installed.cluster
    cluster.kubectl("cordon", NODE)
    victim = installed.ready()[0]
    workload.taskmesh("drain", victim, "--wait", "40")
    (status,) = installed.pods()[victim]["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)  # it waits to be taken
    cluster.kubectl("delete", "pod", victim, "--wait=false")
    gone(installed, {victim})
    workload.goes_on()
    assert len(installed.ready()) == 1

    cluster.kubectl("uncordon", NODE)

    installed.count(2)


def test_no_drain_lost_failed_or_repeated_a_task(workload: Workload):
    account = workload.end()

    assert account["finished"] == account["submitted"] > 100
    assert (account["wrong"], account["failed"], account["repeated"]) == (0, 0, 0), account
    assert account["longest_gap"] < LONGEST_GAP, account


def another_hub(release: Release, former: str, timeout: float = 60) -> str:
    """The name of another hub's pod, once it is ready."""

    def found() -> list[str]:
        return [name for name in release.ready(HUB) if name != former]

    wait_until(found, timeout, "another hub pod, ready", LOOK)
    return found()[0]


def test_the_hub_pod_is_replaced_and_nothing_is_lost(installed: Release):
    again = Workload(installed.cluster, "replaced")
    (former,) = installed.pods(HUB)

    installed.cluster.kubectl("delete", "pod", former, "--grace-period=0", "--force")
    another_hub(installed, former)
    again.goes_on(AHEAD + 1, RECOVERY)  # it waits for the pools, not for the lease of 10 s
    account = again.end()

    assert account["finished"] == account["submitted"]
    assert (account["wrong"], account["failed"]) == (0, 0), account
    assert all(
        not status["restartCount"]
        for pod in installed.pods().values()
        for status in pod["status"]["containerStatuses"]
    )


def test_a_hub_whose_node_dies_starts_on_another_one(installed: Release):
    """As a StatefulSet's pod it stayed away until somebody deleted it."""
    cluster = installed.cluster
    doomed = installed.add_node("doomed")
    cluster.kubectl("cordon", NODE)
    (first,) = installed.pods(HUB)
    cluster.kubectl("delete", "pod", first, "--wait=false")
    second = another_hub(installed, first)
    cluster.kubectl("uncordon", NODE)
    assert (
        cluster.get("pods", f"--field-selector=spec.nodeName={doomed.name}")[0]["metadata"]["name"] == second
    )
    again = Workload(cluster, "bereft")

    cluster.kill_node(doomed)

    another_hub(installed, second, 90)
    again.goes_on()
    account = again.end()
    assert account["finished"] == account["submitted"]
    assert (account["wrong"], account["failed"]) == (0, 0), account
    cluster.kubectl("delete", "pod", second, "--grace-period=0", "--force")
    cluster.kubectl("delete", "node", doomed.name)


def test_uninstalled_within_the_grace(installed: Release):
    """Containers, not pods' objects: those are the kubelet's to clean up (55 s here)."""
    installed.cluster.helm("uninstall", NAME, "--wait", "--timeout=60s")

    wait_until(lambda: not installed.pods() and not installed.pods(HUB), 30, "no container is left", LOOK)
