"""One node of real Kubernetes, with a network of its own: etcd, apiserver, controllers, scheduler, kubelet.

Started once for all tests; everything it has made (processes, mounts, control groups, namespace, kernel
settings) is gone when it has ended.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import leaks
from tests.helm.rendering import npm_tool
from tests.kube.machine import CONTROLLERS, Machine, remove_groups, remove_network, sweep, unmount
from tests.requirement import require
from tests.waiting import wait_until

TOOLS = Path(sys.prefix) / "kube"
PACKAGES = TOOLS / "debian"
NODE, NODE_IP, PODS = "node", "192.0.2.1", "203.0.113.0/24"
ADMIN = "a-token-for-the-tests"
PREFIX = "taskmesh-kube"
API = "198.18.0.1"
"""Where pods find the API: the first address of the services' range, which is the node's own."""
LOOK = 0.3
"""Seconds between looks at the cluster: each one is a program that starts."""
PROGRAMS = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


class Cluster:
    """A cluster of one node.

    Args:
        folder: where its state and logs go.
    """

    def __init__(self, folder: Path) -> None:
        why = TOOLS / "missing"
        require(not why.exists(), f"a cluster: {why.read_text().strip() if why.exists() else ''}")
        built = os.geteuid() == 0 and (TOOLS / "bin" / "pause").exists()
        require(
            built and shutil.which("runc", path=PROGRAMS),
            "a cluster: root on Debian, and `make test-kube`, which builds one",
        )
        self.folder = folder
        self.name = f"{PREFIX}-{os.getpid()}"
        self._ended = False
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.before = Machine.now()
        self.kubeconfig = folder / "kubeconfig"
        self._containerd = folder / "containerd.sock"

    # --- starting -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything; returns when the node is ready."""
        sweep(PREFIX)
        self._network()
        self._control_groups()
        self._files()
        self._run("etcd", PACKAGES / "usr/bin/etcd", *self._etcd())
        self._run("apiserver", TOOLS / "bin/kube-apiserver", *self._apiserver())
        self._until(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", 90, "the apiserver")
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false")
        key = self.folder / "accounts.key"
        self._run(
            "controllers",
            TOOLS / "bin/kube-controller-manager",
            *common,
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.folder}/pki/apiserver.crt",
        )
        self._run("scheduler", TOOLS / "bin/kube-scheduler", *common)
        config = f"--config={self.folder}/containerd.toml"
        self._run("containerd", PACKAGES / "usr/bin/containerd", config, path=str(PACKAGES / "usr/bin"))
        self._run(
            "dns", sys.executable, str(Path(__file__).with_name("names.py")), NODE_IP, str(self.kubeconfig)
        )
        self._until(lambda: self.ctr("version", check=False).returncode == 0, 30, "containerd")
        self._run("kubelet", TOOLS / "bin/kubelet", *self._kubelet())
        ready = "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        self._until(lambda: self.kubectl("get", "node", NODE, ready, check=False) == "True", 90, "the node")

    def _network(self) -> None:
        for line in (
            f"ip netns add {self.name}",
            f"ip -n {self.name} link set lo up",
            f"ip -n {self.name} link add node0 type bridge",
            f"ip -n {self.name} addr add {NODE_IP}/24 dev node0",
            f"ip -n {self.name} addr add {API}/32 dev node0",
            f"ip -n {self.name} link set node0 up",
            f"ip -n {self.name} route add default dev node0",
        ):
            subprocess.run(line.split(), check=True, timeout=10)

    def _control_groups(self) -> None:
        for controller in CONTROLLERS.iterdir():
            top = controller / self.name
            top.mkdir(exist_ok=True)
            if controller.name == "cpuset":  # empty in a new group, which nothing could join then
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (top / file).write_text((controller / file).read_text())

    def _files(self) -> None:
        write = {
            "tokens.csv": f'{ADMIN},admin,admin,"system:masters"\n',
            "kubeconfig": json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
                    "clusters": [
                        {
                            "name": "it",
                            "cluster": {"server": "https://127.0.0.1:443", "insecure-skip-tls-verify": True},
                        }
                    ],
                    "users": [{"name": "admin", "user": {"token": ADMIN}}],
                }
            ),
            "containerd.toml": CONTAINERD.format(
                folder=self.folder, socket=self._containerd, packages=PACKAGES, pause="localhost/pause:1"
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
                        "subnet": PODS,
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
        key = ["openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True, timeout=30)

    def _etcd(self) -> Sequence[str]:
        return (
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        )

    def _apiserver(self) -> Sequence[str]:
        return (
            "--etcd-servers=http://127.0.0.1:2379",
            f"--cert-dir={self.folder}/pki",
            f"--advertise-address={NODE_IP}",
            "--secure-port=443",
            f"--service-cluster-ip-range={API}/24",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--allow-privileged",
            "--service-account-issuer=https://taskmesh.test",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            f"--service-account-key-file={self.folder}/accounts.key",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _kubelet(self) -> Sequence[str]:
        return (
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self.folder}/kubelet.json",
            f"--root-dir={self.folder}/kubelet",
            f"--cert-dir={self.folder}/kubelet-pki",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self._containerd}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_IP}",
        )

    def _kubelet_settings(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "enforceNodeAllocatable": ["pods"],
            "clusterDNS": [NODE_IP],
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

    def _until(self, what: Callable[[], bool], timeout: float, message: str) -> None:
        """Waits, while all programs run."""

        def look() -> bool:
            ended = [name for name, process in self._started if process.poll() is not None]
            return bool(ended) or what()

        wait_until(look, timeout, message, tick=LOOK)
        assert not [name for name, process in self._started if process.poll() is not None], self.logs()

    def _run(self, name: str, *line: object, path: str = "") -> None:
        environ = {key: value for key, value in os.environ.items() if key != leaks.MARK}
        environ["PATH"] = os.pathsep.join(filter(None, [path, PROGRAMS]))
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self._inside(*map(str, line)),
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append((name, process))

    def _inside(self, *line: str) -> list[str]:
        # Not `ip netns exec`: that hides the control groups' mounts.
        return ["nsenter", f"--net=/run/netns/{self.name}", *line]

    # --- using --------------------------------------------------------------------------------------------

    def run(
        self, *line: str, given: str = "", check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the cluster's network."""
        outcome = subprocess.run(
            self._inside(*line),
            input=given,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HELM_CACHE_HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert outcome.returncode == 0 or not check, f"{' '.join(line)}:\n{outcome.stdout}{outcome.stderr}"
        return outcome

    def kubectl(self, *arguments: str, given: str = "", check: bool = True, timeout: float = 60) -> str:
        """kubectl's output."""
        program = str(PACKAGES / "usr/bin/kubectl")
        return self.run(program, *arguments, given=given, check=check, timeout=timeout).stdout

    def helm(self, *arguments: str, timeout: float = 120, check: bool = True) -> str:
        """Helm 3's output."""
        return self.run(npm_tool("helm"), *arguments, timeout=timeout, check=check).stdout

    def ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """containerd's own command."""
        socket = ("--address", str(self._containerd), "--namespace", "k8s.io")
        return self.run(str(PACKAGES / "usr/bin/ctr"), *socket, *arguments, check=check, timeout=120)

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of a kind."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *arguments, "-o=json"))["items"]
        return found

    def running(self) -> set[str]:
        """The ids of the containers that run."""
        rows = [line.split() for line in self.ctr("tasks", "list").stdout.splitlines()]
        return {row[0] for row in rows if row[-1] == "RUNNING"}

    def logs(self) -> str:
        """The ends of all programs' logs."""
        ends = []
        for name, process in self._started:
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            fatal = [line for line in lines if line.startswith("F")]
            ends.append(f"--- {name} ({process.poll()})\n" + "\n".join(fatal[:5] + lines[-15:]))
        return "\n".join(ends)

    # --- ending -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends all programs and takes away what they have made; again: nothing."""
        if self._ended:
            return
        self._ended = True
        if self._containerd.exists() and any(name == "apiserver" for name, _ in self._started):
            self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", check=False)
        by_name = dict(self._started)
        self._stop("kubelet", by_name)
        if "containerd" in by_name:
            self._empty_containerd()
        for name in reversed(list(by_name)):
            self._stop(name, by_name)
        unmount(self.folder)
        remove_groups(self.name)
        remove_network(self.name)
        self.before.restore()

    def _stop(self, name: str, started: dict[str, subprocess.Popen[bytes]]) -> None:
        process = started.get(name)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def pod_networks(self) -> set[str]:
        """The names of the network namespaces that pods have."""
        found = set()
        for container in self.ctr("containers", "list", "--quiet", check=False).stdout.split():
            told = self.ctr("containers", "info", container, check=False).stdout
            spec = json.loads(told or "{}").get("Spec", {})
            spaces = spec.get("linux", {}).get("namespaces", [])
            found |= {
                Path(each["path"]).name for each in spaces if each["type"] == "network" and "path" in each
            }
        return found - {""}

    def _empty_containerd(self) -> None:
        networks = self.pod_networks()
        for task in self.ctr("tasks", "list", "--quiet", check=False).stdout.split():
            self.ctr("tasks", "delete", "--force", task, check=False)
        for container in self.ctr("containers", "list", "--quiet", check=False).stdout.split():
            self.ctr("containers", "delete", container, check=False)
        for name in networks:
            remove_network(name)


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
