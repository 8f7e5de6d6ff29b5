"""Real Kubernetes, with a network of its own: etcd, apiserver, controllers, scheduler, and a node or more.

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

from tests.harness import leaks
from tests.harness.requirement import require
from tests.harness.waiting import wait_until
from tests.helm.rendering import npm_tool
from tests.kube.machine import CONTROLLERS, Machine, remove_groups, remove_network, sweep, unmount
from tests.kube.node import PACKAGES, TOOLS, Node

NODE, NODE_IP = "node", Node.address(0)
ADMIN = "a-token-for-the-tests"
PREFIX = "taskmesh-kube"
API = "198.18.0.1"
"""Where pods find the API: the first address of the services' range, which is the node's own."""
LOOK = 0.3
"""Seconds between looks at the cluster: each one is a program that starts."""
PROGRAMS = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


class Cluster:
    """A cluster, of one node at first.

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
        self.nodes: list[Node] = []

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
            "--node-monitor-grace-period=20s",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.folder}/pki/apiserver.crt",
        )
        self._run("scheduler", TOOLS / "bin/kube-scheduler", *common)
        self._run(
            "dns", sys.executable, str(Path(__file__).with_name("names.py")), NODE_IP, str(self.kubeconfig)
        )
        self.add_node(NODE)

    def add_node(self, name: str) -> Node:
        """Starts another node; returns it when it is ready."""
        node = Node(name, len(self.nodes), self.folder / name, self.name)
        self.nodes.append(node)
        node.write_files()
        for controller in CONTROLLERS.iterdir():
            self._control_group(controller, f"{self.name}/{name}")
        if node.number:
            self._ip(f"addr add {node.ip}/24 dev node0")
        self._run(
            f"containerd-{name}",
            PACKAGES / "usr/bin/containerd",
            f"--config={node.folder}/containerd.toml",
            path=str(PACKAGES / "usr/bin"),
        )
        self._until(lambda: self.ctr("version", node=node, check=False).returncode == 0, 30, "containerd")
        self._run(f"kubelet-{name}", TOOLS / "bin/kubelet", *node.kubelet(self.kubeconfig))
        ready = "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        self._until(lambda: self.kubectl("get", "node", name, ready, check=False) == "True", 90, "the node")
        return node

    def kill_node(self, node: Node) -> None:
        """Ends all of a node at once, as a loss of power does: nobody is told."""
        started = dict(self._started)
        self._started = [each for each in self._started if not each[0].endswith(f"-{node.name}")]
        kubelet = started[f"kubelet-{node.name}"]
        kubelet.kill()
        kubelet.wait(10)
        self._empty_containerd(node)
        self._stop(f"containerd-{node.name}", started)
        self.nodes.remove(node)

    def _network(self) -> None:
        subprocess.run(f"ip netns add {self.name}".split(), check=True, timeout=10)
        for line in (
            "link set lo up",
            "link add node0 type bridge",
            f"addr add {NODE_IP}/24 dev node0",
            f"addr add {API}/32 dev node0",
            "link set node0 up",
            "route add default dev node0",
        ):
            self._ip(line)

    def _ip(self, line: str) -> None:
        subprocess.run(f"ip -n {self.name} {line}".split(), check=True, timeout=10)

    def _control_groups(self) -> None:
        for controller in CONTROLLERS.iterdir():
            self._control_group(controller, self.name)

    @staticmethod
    def _control_group(controller: Path, name: str) -> None:
        group = controller / name
        group.mkdir(exist_ok=True)
        if controller.name == "cpuset":  # empty in a new group, which nothing could join then
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((controller / file).read_text())

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

    def ctr(
        self, *arguments: str, node: Node | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """containerd's own command, the first node's unless another is given."""
        socket = ("--address", str((node or self.nodes[0]).socket), "--namespace", "k8s.io")
        return self.run(str(PACKAGES / "usr/bin/ctr"), *socket, *arguments, check=check, timeout=120)

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of a kind."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *arguments, "-o=json"))["items"]
        return found

    def running(self) -> set[str]:
        """The ids of the containers that run, on any node."""
        told = "".join(self.ctr("tasks", "list", node=node).stdout for node in self.nodes)
        rows = [line.split() for line in told.splitlines()]
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
        if self.nodes and any(name == "apiserver" for name, _ in self._started):
            self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", check=False)
        by_name = dict(self._started)
        for node in self.nodes:
            self._stop(f"kubelet-{node.name}", by_name)
            if f"containerd-{node.name}" in by_name:
                self._empty_containerd(node)
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
        found: set[str] = set()
        return found.union(*map(self._networks_on, self.nodes))

    def _networks_on(self, node: Node) -> set[str]:
        found = set()
        for container in self.ctr("containers", "list", "--quiet", node=node, check=False).stdout.split():
            told = self.ctr("containers", "info", container, node=node, check=False).stdout
            spec = json.loads(told or "{}").get("Spec", {})
            spaces = spec.get("linux", {}).get("namespaces", [])
            found |= {
                Path(each["path"]).name for each in spaces if each["type"] == "network" and "path" in each
            }
        return found - {""}

    def _empty_containerd(self, node: Node) -> None:
        networks = self._networks_on(node)
        for task in self.ctr("tasks", "list", "--quiet", node=node, check=False).stdout.split():
            self.ctr("tasks", "delete", "--force", task, node=node, check=False)
        for container in self.ctr("containers", "list", "--quiet", node=node, check=False).stdout.split():
            self.ctr("containers", "delete", container, node=node, check=False)
        for name in networks:
            remove_network(name)
