"""What a cluster has made is gone when it has ended: the last of this folder's tests ends it."""

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.harness.requirement import require
from tests.harness.waiting import wait_until
from tests.kube.cluster import LOOK, PREFIX, Cluster
from tests.kube.machine import CONTROLLERS, Machine, groups, mounts, network_namespaces, processes, sweep
from tests.kube.node import TOOLS
from tests.kube.release import Release

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


def test_what_a_killed_run_has_left_is_swept_away(tmp_path: Path):
    require(os.geteuid() == 0 and (TOOLS / "bin" / "pause").exists(), "root, and `make test-kube`")
    name = f"{PREFIX}-{2**22 + 1}"  # no process id is as high
    subprocess.run(f"ip netns add {name}".split(), check=True, timeout=10)
    group = CONTROLLERS / "memory" / name / "pod"
    group.mkdir(parents=True)
    line = ["nsenter", f"--net=/run/netns/{name}", str(TOOLS / "bin" / "pause")]
    left = subprocess.Popen(line, cwd=tmp_path)
    mount = tmp_path / "mounted"
    mount.mkdir()
    subprocess.run(f"mount -t tmpfs none {mount}".split(), check=True, timeout=10)
    wait_until(lambda: psutil.Process(left.pid).name() == "pause")
    (group / "cgroup.procs").write_text(f"{left.pid}")

    sweep(PREFIX)

    wait_until(lambda: left.poll() is not None)
    assert (name in network_namespaces(), groups(name), mounts(tmp_path)) == (False, [], [])


def test_a_cluster_leaves_nothing_behind(cluster: Cluster, release: Release):
    cluster.kubectl("create", "-f", "-", given=json.dumps(POD))
    phase = ("get", "pod", "last", "-o=jsonpath={.status.phase}")
    wait_until(lambda: cluster.kubectl(*phase) == "Running", 90, "a pod runs", LOOK)
    assert list(processes(cluster.folder))
    assert groups(cluster.name)
    assert mounts(cluster.folder)
    assert cluster.name in network_namespaces()
    networks = cluster.pod_networks()
    assert networks & set(network_namespaces())

    cluster.end()

    assert list(processes(cluster.folder)) == []
    assert groups(cluster.name) == []
    assert mounts(cluster.folder) == []
    assert not {cluster.name, *networks} & set(network_namespaces())
    now = Machine.now()
    assert (now.settings, now.rules) == (cluster.before.settings, cluster.before.rules)
    assert now.interfaces <= cluster.before.interfaces
