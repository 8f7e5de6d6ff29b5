"""One node of the test cluster: the settings of its containerd and kubelet. All nodes share one network."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOOLS = Path(sys.prefix) / "kube"
PACKAGES = TOOLS / "debian"
PODS = "203.0.113"
SHARE = 60
"""Addresses of pods that a node has."""


class Node:
    """A node, named and numbered from 0.

    Args:
        folder: where its state goes.
        group: the control group of the whole cluster.
    """

    def __init__(self, name: str, number: int, folder: Path, group: str) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self.ip = self.address(number)
        self.socket = folder / "containerd.sock"
        self._group = group

    @staticmethod
    def address(number: int) -> str:
        """The address of a node."""
        return f"192.0.2.{number + 1}"

    def write_files(self) -> None:
        """Writes the settings of its programs."""
        write = {
            "containerd.toml": CONTAINERD.format(
                folder=self.folder, socket=self.socket, packages=PACKAGES, pause="localhost/pause:1"
            ),
            "cni/bridge.conf": json.dumps(
                {
                    "cniVersion": "0.4.0",
                    "name": "pods",
                    "type": "bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "subnet": f"{PODS}.0/24",
                        "rangeStart": f"{PODS}.{2 + SHARE * self.number}",
                        "rangeEnd": f"{PODS}.{1 + SHARE * (self.number + 1)}",
                        "dataDir": f"{self.folder}/addresses",
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ),
            "kubelet.json": json.dumps(self._kubelet_settings()),
            "resolv.conf": "",
        }
        for name, text in write.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def kubelet(self, kubeconfig: Path) -> Sequence[str]:
        """The kubelet's arguments."""
        return (
            f"--kubeconfig={kubeconfig}",
            f"--config={self.folder}/kubelet.json",
            f"--root-dir={self.folder}/kubelet",
            f"--cert-dir={self.folder}/kubelet-pki",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.socket}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.ip}",
        )

    def _kubelet_settings(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "port": 10250 + 100 * self.number,  # the scheduler has the next one
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}/{self.name}",
            "enforceNodeAllocatable": ["pods"],
            "clusterDNS": [self.address(0)],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{self.folder}/resolv.conf",
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
            "nodeStatusUpdateFrequency": "2s",
        }


CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{packages}/usr/lib/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
