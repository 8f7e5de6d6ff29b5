"""The chart on the test cluster: image, keys and tasks brought there; a workload checks what comes back."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests.containers.box import IMAGE, podman
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.helm.rendering import CHART, Values
from tests.kube.cluster import LOOK, NODE, Cluster
from tests.kube.node import TOOLS, Node

TAG = f"{IMAGE}:latest"
NAME = "m"
HUB = f"app.kubernetes.io/component=hub,app.kubernetes.io/instance={NAME}"
LET_IN = "let-in"
SELECTOR = f"app.kubernetes.io/component=worker,app.kubernetes.io/instance={NAME}"
FARM = Path(__file__).with_name("farm.py")
QUICK = {"periodSeconds": 3, "timeoutSeconds": 15, "failureThreshold": 20}
PATIENT = {"periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": 10}
"""A machine that does ten other things at the same time is no reason to restart a pod."""
PROBES = {"startup": QUICK, "readiness": {**QUICK, "failureThreshold": 2}, "liveness": PATIENT}
VALUES: Values = {
    "fullnameOverride": NAME,
    "image": {"repository": IMAGE, "tag": "latest", "pullPolicy": "Never"},
    "keys": {"existingSecret": "keys", "authorized": {"existingSecret": LET_IN}},
    "hub": {
        "nodeFailureTolerationSeconds": 2,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "probes": PROBES,
    },
    "workerDefaults": {
        "tasksConfigMap": "farm",
        "replicas": 2,
        "concurrency": 2,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2"}},
        "drain": {"timeoutSeconds": 25},
        "terminationGracePeriodSeconds": 40,
        "probes": PROBES,
    },
}


def lowered(folder: Path) -> Path:
    """A copy of the chart for the test's old apiserver, which lacks policy/v1 and port ranges in policies."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    for file in [copy / "Chart.yaml", *copy.rglob("templates/**/*.yaml")]:
        text = file.read_text().replace('kubeVersion: ">=1.25.0-0"', 'kubeVersion: ">=1.20.0-0"')
        text = re.sub(r"apiVersion: policy/v1$", "apiVersion: policy/v1beta1", text, flags=re.MULTILINE)
        file.write_text(re.sub(r"endPort: \{\{[^}]*\}\}, ", "", text))
    return copy


class Release:
    """One installation, and what it needs in the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._chart = lowered(folder)

    # --- before an installation ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Brings images, keys and tasks to the cluster."""
        self._import(TAG)
        pause = self._folder / "pause"
        pause.mkdir()
        shutil.copy(TOOLS / "bin" / "pause", pause / "pause")
        (pause / "Containerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        podman("build", "-q", "-t", "localhost/pause:1", str(pause))
        self._import("localhost/pause:1")
        self._keys()
        self.cluster.kubectl("create", "configmap", "farm", f"--from-file={FARM}")

    def _import(self, image: str, node: Node | None = None) -> None:
        archive = self._folder / "image.tar"
        podman("save", "--quiet", "--format=docker-archive", "--output", str(archive), image, timeout=120)
        self.cluster.ctr("images", "import", str(archive), node=node)
        archive.unlink()

    def add_node(self, name: str) -> Node:
        """Another node, with the images."""
        node = self.cluster.add_node(name)
        for image in (TAG, "localhost/pause:1"):
            self._import(image, node)
        return node

    def _keys(self) -> None:
        """As docs/kubernetes.md says."""
        programs = Programs(self._folder / "keys")
        hub, pool, mine = (self._folder / "keys" / each for each in ("HUB", "POOL", "MINE"))
        (self._folder / "keys").mkdir()
        for line in (
            ("hub", "--keys", hub),
            ("worker", "--keys", pool, "--hub", hub / "hub.public"),
            ("client", "--keys", mine, "--hub", hub / "hub.public", "--mesh", pool / "mesh.secret"),
            ("operator", "--keys", mine, "--hub", hub / "hub.public"),
        ):
            outcome = programs.run("keys", "new", *map(str, line))
            assert outcome.returncode == 0, outcome.stderr
        files = {
            **{each.name: each for each in (hub / "hub.secret", hub / "hub.public", pool / "worker.secret")},
            **{each.name: each for each in (mine / "client.secret", pool / "mesh.secret")},
            "operator.secret": mine / "operator.secret",
        }
        let_in = {
            "authorized.operator.ops.public": mine / "operator.public",
            "authorized.worker.mesh.public": pool / "worker.public",
            "authorized.client.mesh.public": mine / "client.public",
        }
        for secret, content in ("keys", files), (LET_IN, let_in):
            given = [f"--from-file={name}={file}" for name, file in content.items()]
            self.cluster.kubectl("create", "secret", "generic", secret, *given)

    def public_key(self, name: str) -> str:
        """A key of the Secret of those who are let in, as it stands there."""
        (secret,) = self.cluster.get("secrets", f"--field-selector=metadata.name={LET_IN}")
        found: str = secret["data"][name]
        return found

    def let_in(self, **keys: str | None) -> None:
        """Changes that Secret; None takes a key out of it."""
        self.cluster.kubectl("patch", "secret", LET_IN, "--type=merge", "-p", json.dumps({"data": keys}))

    # --- the installation ---------------------------------------------------------------------------------

    def helm(self, verb: str, *options: str, **values: str) -> str:
        """helm install or upgrade, which returns when all is ready."""
        file = self._folder / "values.json"
        file.write_text(json.dumps(VALUES))
        given = [f"--set={name.replace('__', '.')}={value}" for name, value in values.items()]
        line = (verb, NAME, str(self._chart), "-f", str(file), *given, "--wait", "--timeout=100s", *options)
        return self.cluster.helm(*line, timeout=120)

    def join(self, name: str) -> None:
        """Another release, of pools only, for a queue of its own; they join this one's hub."""
        hub = f"tcp://{NAME}-hub-pods.default.svc:5550"
        edge = {"queues": ["edge"], "replicas": 1}
        pools = {"default": None, "edge": edge}
        outside = {"hub": {"enabled": False}, "externalHub": {"address": hub}, "workerPools": pools}
        file = self._folder / "outside.json"
        file.write_text(json.dumps({**VALUES, **outside, "fullnameOverride": name}))
        line = ("install", name, str(self._chart), "-f", str(file), "--wait", "--timeout=100s")
        self.cluster.helm(*line, timeout=120)

    def pods(self, selector: str = SELECTOR) -> dict[str, dict[str, Any]]:
        """The pods, the pools' unless others are selected, by name.

        Without those that have ended: kubelet 1.20 keeps their objects for up to a minute.
        """
        running = self.cluster.running()
        return {
            each["metadata"]["name"]: each
            for each in self.cluster.get("pods", "-l", selector)
            if "deletionTimestamp" not in each["metadata"] or running & containers(each)
        }

    def ready(self, selector: str = SELECTOR) -> list[str]:
        """The names of the pods, the pools' unless others are selected, that are ready and stay."""
        return [
            name
            for name, pod in self.pods(selector).items()
            if "deletionTimestamp" not in pod["metadata"]
            and any(each["ready"] for each in pod["status"].get("containerStatuses", ()))
        ]

    def count(self, number: int, timeout: float = 60) -> None:
        """Waits until there are so many pods, all of them ready."""
        wait_until(
            lambda: len(self.ready()) == len(self.pods()) == number, timeout, f"{number} pods, ready", LOOK
        )


def containers(pod: dict[str, Any]) -> set[str]:
    """The ids of a pod's containers."""
    statuses = pod["status"].get("containerStatuses", ())
    return {each.get("containerID", "").removeprefix("containerd://") for each in statuses}


class Workload:
    """A pod that submits tasks from a client's keys until it is told to stop, and checks every result."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        cluster.kubectl("apply", "-f", "-", given=json.dumps(self._pod()))
        wait_until(lambda: self.finished() > 0, 60, f"{name} has its first results", LOOK)

    def _pod(self) -> dict[str, Any]:
        names = ("hub.public", "client.secret", "operator.secret", "mesh.secret")
        keys = [{"key": name, "path": name} for name in names]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": NODE},  # not one that a test kills
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {"runAsUser": 10001},
                "containers": [
                    {
                        "name": "client",
                        "image": TAG,
                        "imagePullPolicy": "Never",
                        "command": ["python", "farm.py"],
                        "workingDir": "/tasks",
                        "env": [
                            {"name": "TASKMESH_ADDRESS", "value": f"tcp://{NAME}-hub.default.svc:5550"},
                            {"name": "TASKMESH_KEYS", "value": "/keys"},
                        ],
                        "volumeMounts": [
                            {"name": "keys", "mountPath": "/keys", "readOnly": True},
                            {"name": "farm", "mountPath": "/tasks", "readOnly": True},
                        ],
                    }
                ],
                "volumes": [
                    # As Spark mounts it in its executors: with Kubernetes' own mode, 0644.
                    {"name": "keys", "secret": {"secretName": "keys", "items": keys}},
                    {"name": "farm", "configMap": {"name": "farm"}},
                ],
            },
        }

    def taskmesh(self, *line: str, check: bool = True) -> str:
        """What a `taskmesh LINE` of an operator prints, beside the client."""
        return self._cluster.kubectl("exec", self.name, "--", "taskmesh", *line, check=check)

    def finished(self) -> int:
        """How many tasks have come back."""
        lines = self._cluster.kubectl("logs", self.name, check=False).splitlines()
        counts = [json.loads(line)["finished"] for line in lines if line.startswith("{")]
        return counts[-1] if counts else 0

    def goes_on(self, more: int = 1, timeout: float = 40) -> None:
        """Waits until so many more have come back."""
        before = self.finished()
        wait_until(lambda: self.finished() >= before + more, timeout, f"more results of {self.name}", LOOK)

    def end(self) -> dict[str, Any]:
        """Stops it; returns its account."""
        self._cluster.kubectl("exec", self.name, "--", "touch", "/scratch/stop")
        phase = ("get", "pod", self.name, "-o=jsonpath={.status.phase}")
        wait_until(
            lambda: self._cluster.kubectl(*phase) in {"Succeeded", "Failed"}, 60, f"{self.name} ended", LOOK
        )
        log = self._cluster.kubectl("logs", self.name)
        self._cluster.kubectl("delete", "pod", self.name, "--wait=false")
        found: dict[str, Any] = json.loads(log.splitlines()[-1])
        return found
