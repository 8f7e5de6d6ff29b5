"""What a cluster has made is gone when it has ended: the last of this folder's tests ends it."""

import json

import pytest

from tests.kube.cluster import LOOK, Cluster
from tests.kube.machine import Machine, groups, mounts, network_namespaces, processes
from tests.kube.release import Release
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.leaks(reason="the cluster is older than this test, and ends in it"),
]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "last"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "it", "image": "localhost/pause:1", "imagePullPolicy": "Never"}],
    },
}


def test_a_cluster_leaves_nothing_behind(cluster: Cluster, release: Release):
    cluster.kubectl("create", "-f", "-", given=json.dumps(POD))
    phase = ("get", "pod", "last", "-o=jsonpath={.status.phase}")
    wait_until(lambda: cluster.kubectl(*phase) == "Running", 90, "a pod runs", LOOK)
    assert list(processes(cluster.folder))
    assert groups(cluster.name)
    assert mounts(cluster.folder)
    assert cluster.name in network_namespaces()

    cluster.end()

    assert list(processes(cluster.folder)) == []
    assert groups(cluster.name) == []
    assert mounts(cluster.folder) == []
    assert cluster.name not in network_namespaces()
    now = Machine.now()
    assert (now.settings, now.rules) == (cluster.before.settings, cluster.before.rules)
    assert now.interfaces <= cluster.before.interfaces
