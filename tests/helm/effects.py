"""What each value of the chart does: set to something, where in the rendered objects that shows.

A row: the parameter, what it is set to, the object, the path in it, what stands there then, and other values
that it needs, always or only once it is set. `HAS(x)` is met by a list with x in it, `GONE` when there is
nothing at the path.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.helm.rendering import Object, Values, name_of

HUB, POOL, GATEWAY = "Deployment/m-hub", "Deployment/m-default", "Service/m-hub"
HUB_POD, POOL_POD = f"{HUB}:spec/template/spec", f"{POOL}:spec/template/spec"
HUB_BOX, BOX = f"{HUB_POD}/containers/0", f"{POOL_POD}/containers/0"
SCALED, HPA = "ScaledObject/m-default", "HorizontalPodAutoscaler/m-default"
OWN_KEYS, LET_IN = (f"volumes/0/projected/sources/{number}/secret" for number in (0, 1))
TOKEN = {"http": {"existingSecret": "tokens"}}
KEDA = {**TOKEN, "workerDefaults": {"autoscaling": {"type": "keda"}}}
ON_HPA = {"workerDefaults": {"autoscaling": {"type": "hpa"}}}
MONITORED = {**TOKEN, "metrics": {"podMonitor": {"enabled": True}}}
OUTSIDE = {"hub": {"enabled": False}, "externalHub": {"address": "tcp://elsewhere:5550"}}
IN_REDIS = {"hub": {"journal": {"existingSecret": "s"}}}
ON_VOLUME = {"hub": {"journal": {"persistence": {"enabled": True}}}}
CLAIM = "PersistentVolumeClaim/m-hub-journal"
HUB_RULES = "NetworkPolicy/m-hub:spec"
FRIEND = [{"namespaceSelector": {"matchLabels": {"friend": "yes"}}}]
RULE = {"ports": [{"port": 99, "protocol": "TCP"}]}
SHA = "sha256:" + "0" * 64
ANY = {"operator": "Exists"}
GONE = object()


@dataclass(frozen=True)
class HAS:
    """Met by a list that contains it."""

    item: Any


@dataclass(frozen=True)
class Effect:
    """One row."""

    parameter: str
    value: Any
    where: str
    expected: Any
    given: Values = field(default_factory=dict)
    along: Values = field(default_factory=dict)  # only together with it

    def shows(self, found: list[Object]) -> bool:
        """Whether it stands in the objects."""
        name, _, path = self.where.partition(":")
        at: Any = next((each for each in found if name_of(each) == name), GONE)
        for key in filter(None, path.split("/")):
            at = _below(at, key.replace("~", "/"))
        if isinstance(self.expected, HAS):
            return isinstance(at, list) and self.expected.item in at
        return at is GONE if self.expected is GONE else at == self.expected


def _below(at: Any, key: str) -> Any:
    if isinstance(at, list):
        return at[int(key)] if int(key) < len(at) else GONE
    return at.get(key, GONE) if isinstance(at, dict) else GONE


def _listed(role: str) -> Effect:
    item = {"key": f"authorized.{role}.ann.public", "path": f"authorized/{role}/ann.public"}
    return Effect(f"keys.authorized.{role}", ["ann"], f"{HUB_POD}/{LET_IN}/items", HAS(item))


def _timings(role: str, box: str) -> list[Effect]:
    timing = {"periodSeconds": 7, "timeoutSeconds": 8, "failureThreshold": 9}
    return [
        Effect(f"{role}.probes.{probe}", timing, f"{box}/{probe}Probe/periodSeconds", 7)
        for probe in ("startup", "liveness", "readiness")
    ]


def _worker(parameter: str, value: Any, where: str, expected: Any, given: Values | None = None) -> Effect:
    return Effect(f"workerDefaults.{parameter}", value, where, expected, given or {})


def _persistence(parameter: str, value: Any, where: str) -> Effect:
    return Effect(f"hub.journal.persistence.{parameter}", value, where, value, ON_VOLUME)


def _same(parameter: str, value: Any, where: str, given: Values | None = None) -> Effect:
    return Effect(parameter, value, where, value, given or {})


EFFECTS = [
    Effect("nameOverride", "grid", f"{HUB}:metadata/labels/app.kubernetes.io~name", "grid"),
    Effect("fullnameOverride", "n", "Deployment/n-hub:spec/replicas", 1),
    Effect("commonLabels", {"team": "a"}, f"{HUB}:spec/template/metadata/labels/team", "a"),
    Effect("image.repository", "r/t", f"{BOX}/image", "r/t:0.1.0"),
    Effect("image.tag", "9", f"{HUB_BOX}/image", "taskmesh:9"),
    Effect("image.digest", SHA, f"{BOX}/image", f"taskmesh@{SHA}"),
    _same("image.pullPolicy", "Always", f"{BOX}/imagePullPolicy"),
    _same("imagePullSecrets", [{"name": "s"}], f"{POOL_POD}/imagePullSecrets"),
    Effect(
        "config",
        {"hub": {"lease": 20, "max_bytes": "1GiB"}},
        "ConfigMap/m:data/taskmesh.toml",
        '# Made by the chart from `config`.\n[hub]\nlease = 20\nmax_bytes = "1GiB"\n',
    ),
    Effect("keys.existingSecret", "k", f"{POOL_POD}/{OWN_KEYS}/name", "k"),
    Effect("keys.hub.existingSecret", "k", f"{HUB_POD}/{OWN_KEYS}/name", "k"),
    Effect("keys.worker.existingSecret", "k", f"{POOL_POD}/{OWN_KEYS}/name", "k"),
    Effect("keys.client.existingSecret", "k", f"Pod/m-test:spec/{OWN_KEYS}/name", "k"),
    Effect("keys.authorized.existingSecret", "k", f"{HUB_POD}/{LET_IN}", {"name": "k"}),
    _listed("client"),
    _listed("worker"),
    _listed("operator"),
    Effect(
        "keys.signed",
        False,
        f"{POOL_POD}/{OWN_KEYS}/items",
        [{"key": f, "path": f} for f in ("hub.public", "worker.secret")],
    ),
    Effect("hub.enabled", False, HUB, GONE, along={"externalHub": {"address": "tcp://elsewhere:5550"}}),
    Effect("hub.image.repository", "own", f"{HUB_BOX}/image", "own:0.1.0"),
    Effect("hub.image.tag", "9", f"{HUB_BOX}/image", "taskmesh:9"),
    Effect("hub.image.digest", SHA, f"{HUB_BOX}/image", f"taskmesh@{SHA}"),
    Effect("hub.bindHost", "[::]", f"{HUB_BOX}/args", HAS("--bind=tcp://[::]:5550")),
    Effect("hub.port", 7000, f"{HUB_BOX}/args", HAS("--bind=tcp://0.0.0.0:7000")),
    Effect("hub.lanes.first", 6000, f"{HUB_BOX}/args", HAS("--lanes=6000-6799")),
    Effect("hub.lanes.last", 6100, f"{HUB_BOX}/args", HAS("--lanes=5600-6100")),
    Effect(
        "hub.journal.persistence.enabled",
        True,
        f"{HUB_BOX}/args",
        HAS("--journal=/var/lib/taskmesh/tasks.journal"),
    ),
    _persistence("existingClaim", "mine", f"{HUB_POD}/volumes/3/persistentVolumeClaim/claimName"),
    _persistence("storageClass", "fast", f"{CLAIM}:spec/storageClassName"),
    _persistence("accessModes", ["ReadWriteOncePod"], f"{CLAIM}:spec/accessModes"),
    _persistence("size", "20Gi", f"{CLAIM}:spec/resources/requests/storage"),
    Effect(
        "hub.journal.existingSecret",
        "s",
        f"{HUB_BOX}/args",
        HAS("--journal-file=/etc/taskmesh/journal/url"),
    ),
    Effect("hub.journal.urlKey", "k", f"{HUB_POD}/volumes/3/secret/items/0/key", "k", IN_REDIS),
    Effect("hub.journal.port", 7000, f"{HUB_RULES}/egress/1/ports/0/port", 7000, IN_REDIS),
    Effect("hub.journal.strict", True, f"{HUB_BOX}/args", HAS("--strict"), ON_VOLUME),
    _same("hub.service.type", "NodePort", f"{GATEWAY}:spec/type"),
    _same("hub.service.annotations", {"a": "b"}, f"{GATEWAY}:metadata/annotations"),
    Effect("hub.resources", {"limits": {"cpu": "3"}}, f"{HUB_BOX}/resources/limits/cpu", "3"),
    _same("hub.terminationGracePeriodSeconds", 5, f"{HUB_POD}/terminationGracePeriodSeconds"),
    Effect("hub.pdb.enabled", True, "PodDisruptionBudget/m-hub:spec/maxUnavailable", 0),
    Effect("hub.podAnnotations", {"a": "b"}, f"{HUB}:spec/template/metadata/annotations/a", "b"),
    _same("hub.nodeSelector", {"a": "b"}, f"{HUB_POD}/nodeSelector"),
    _same("hub.affinity", {"podAffinity": {}}, f"{HUB_POD}/affinity"),
    Effect("hub.tolerations", [ANY], f"{HUB_POD}/tolerations", HAS(ANY)),
    Effect(
        "hub.nodeFailureTolerationSeconds",
        5,
        f"{HUB_POD}/tolerations",
        HAS(
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 5,
            }
        ),
    ),
    _same("hub.priorityClassName", "high", f"{HUB_POD}/priorityClassName"),
    *_timings("hub", HUB_BOX),
    Effect("hub.extraEnv", [{"name": "A", "value": "b"}], f"{HUB_BOX}/env", HAS({"name": "A", "value": "b"})),
    Effect(
        "externalHub.address",
        "tcp://there:1",
        f"{BOX}/args",
        HAS("--address=tcp://there:1"),
        OUTSIDE,
    ),
    Effect("workerPools", {"more": {"replicas": 4}}, "Deployment/m-more:spec/replicas", 4),
    _worker("enabled", False, POOL, GONE, {"test": {"queue": "q"}}),
    _worker("image.repository", "own", f"{BOX}/image", "own:0.1.0"),
    _worker("image.tag", "cuda", f"{BOX}/image", "taskmesh:cuda"),
    _worker("image.digest", SHA, f"{BOX}/image", f"taskmesh@{SHA}"),
    _worker("modules", ["farm.tasks"], f"{BOX}/args/1", "farm.tasks"),
    _worker("tasksConfigMap", "code", f"{BOX}/workingDir", "/tasks"),
    _worker("queues", ["a", "b"], f"{BOX}/args", HAS("--queues=a,b")),
    _worker("tags", ["gpu", "big"], f"{BOX}/args", HAS("--tags=gpu,big")),
    _worker("concurrency", 3, f"{BOX}/env", HAS({"name": "TASKMESH_CONCURRENCY", "value": "3"})),
    _worker("replicas", 7, f"{POOL}:spec/replicas", 7),
    _worker("resources", {"limits": {"cpu": "3"}}, f"{BOX}/resources/limits/cpu", "3"),
    _worker("gpu.count", 2, f"{BOX}/resources/limits/nvidia.com~gpu", 2),
    _worker(
        "gpu.resourceName",
        "amd.com/gpu",
        f"{BOX}/resources/limits/amd.com~gpu",
        1,
        {"workerDefaults": {"gpu": {"count": 1}}},
    ),
    _worker("drain.timeoutSeconds", 20, f"{BOX}/args", HAS("--grace=20")),
    _worker("terminationGracePeriodSeconds", 300, f"{POOL_POD}/terminationGracePeriodSeconds", 300),
    _worker("strategy", {"type": "Recreate"}, f"{POOL}:spec/strategy/type", "Recreate"),
    _worker("autoscaling.type", "hpa", f"{POOL}:spec/replicas", GONE),
    _worker("autoscaling.min", 2, f"{HPA}:spec/minReplicas", 2, ON_HPA),
    _worker("autoscaling.max", 22, f"{SCALED}:spec/maxReplicaCount", 22, KEDA),
    _worker(
        "autoscaling.targetCPUUtilizationPercentage",
        55,
        f"{HPA}:spec/metrics/0/resource/target/averageUtilization",
        55,
        ON_HPA,
    ),
    _worker("autoscaling.metrics", [{"type": "Pods"}], f"{HPA}:spec/metrics", [{"type": "Pods"}], ON_HPA),
    _worker("autoscaling.tasksPerReplica", 9, f"{SCALED}:spec/advanced/scalingModifiers/target", "9", KEDA),
    _worker("autoscaling.pollingInterval", 3, f"{SCALED}:spec/pollingInterval", 3, KEDA),
    _worker("autoscaling.cooldownPeriod", 99, f"{SCALED}:spec/cooldownPeriod", 99, KEDA),
    _worker(
        "autoscaling.scaleDown.stabilizationWindowSeconds",
        30,
        f"{HPA}:spec/behavior/scaleDown/stabilizationWindowSeconds",
        30,
        ON_HPA,
    ),
    _worker(
        "autoscaling.scaleDown.podsPerMinute",
        6,
        f"{HPA}:spec/behavior/scaleDown/policies/0/value",
        6,
        ON_HPA,
    ),
    _worker("pdb.enabled", False, "PodDisruptionBudget/m-default", GONE),
    _worker("pdb.maxUnavailable", "25%", "PodDisruptionBudget/m-default:spec/maxUnavailable", "25%"),
    _worker("spread", False, f"{POOL_POD}/topologySpreadConstraints", GONE),
    _worker(
        "topologySpreadConstraints", [{"maxSkew": 5}], f"{POOL_POD}/topologySpreadConstraints/0/maxSkew", 5
    ),
    _worker("nodeSelector", {"a": "b"}, f"{POOL_POD}/nodeSelector", {"a": "b"}),
    _worker("affinity", {"podAffinity": {}}, f"{POOL_POD}/affinity", {"podAffinity": {}}),
    _worker("tolerations", [{"operator": "Exists"}], f"{POOL_POD}/tolerations", [{"operator": "Exists"}]),
    _worker("priorityClassName", "low", f"{POOL_POD}/priorityClassName", "low"),
    _worker("runtimeClassName", "nvidia", f"{POOL_POD}/runtimeClassName", "nvidia"),
    _worker("podAnnotations", {"a": "b"}, f"{POOL}:spec/template/metadata/annotations/a", "b"),
    _worker("podLabels", {"a": "b"}, f"{POOL}:spec/template/metadata/labels/a", "b"),
    _worker("extraEnv", [{"name": "A", "value": "b"}], f"{BOX}/env", HAS({"name": "A", "value": "b"})),
    _worker("extraEnvFrom", [{"secretRef": {"name": "s"}}], f"{BOX}/envFrom", [{"secretRef": {"name": "s"}}]),
    _worker("extraVolumes", [{"name": "d"}], f"{POOL_POD}/volumes", HAS({"name": "d"})),
    _worker("extraVolumeMounts", [{"name": "d"}], f"{BOX}/volumeMounts", HAS({"name": "d"})),
    _worker("initContainers", [{"name": "i"}], f"{POOL_POD}/initContainers", [{"name": "i"}]),
    _worker("sidecars", [{"name": "s"}], f"{POOL_POD}/containers/1", {"name": "s"}),
    _worker("scratch.sizeLimit", "9Gi", f"{POOL_POD}/volumes/2/emptyDir/sizeLimit", "9Gi"),
    _worker("scratch.medium", "Memory", f"{POOL_POD}/volumes/2/emptyDir/medium", "Memory"),
    *_timings("workerDefaults", BOX),
    _worker("podSecurityContext", {"runAsUser": 7}, f"{POOL_POD}/securityContext", {"runAsUser": 7}),
    _worker("securityContext", {"runAsUser": 7}, f"{BOX}/securityContext", {"runAsUser": 7}),
    Effect("podSecurityContext", {"runAsUser": 7}, f"{HUB_POD}/securityContext/runAsUser", 7),
    Effect("securityContext", {"runAsUser": 7}, f"{HUB_BOX}/securityContext/runAsUser", 7),
    Effect("serviceAccount.create", False, f"{POOL_POD}/serviceAccountName", "default"),
    Effect("serviceAccount.name", "mine", "ServiceAccount/mine:automountServiceAccountToken", False),
    _same("serviceAccount.annotations", {"a": "b"}, "ServiceAccount/m:metadata/annotations"),
    Effect("networkPolicy.enabled", False, "NetworkPolicy/m-workers", GONE),
    _same("networkPolicy.clientsFrom", FRIEND, "NetworkPolicy/m-hub:spec/ingress/0/from"),
    Effect("networkPolicy.workersFrom", FRIEND, "NetworkPolicy/m-hub:spec/ingress/1/from", HAS(FRIEND[0])),
    _same("networkPolicy.journalTo", FRIEND, f"{HUB_RULES}/egress/1/to", IN_REDIS),
    _same("networkPolicy.httpFrom", FRIEND, "NetworkPolicy/m-hub:spec/ingress/2/from", TOKEN),
    Effect("networkPolicy.extraIngress", [RULE], "NetworkPolicy/m-hub:spec/ingress", HAS(RULE)),
    Effect(
        "networkPolicy.restrictWorkers",
        True,
        "NetworkPolicy/m-workers:spec/policyTypes",
        ["Ingress", "Egress"],
    ),
    Effect(
        "networkPolicy.extraEgress",
        [RULE],
        "NetworkPolicy/m-workers:spec/egress",
        HAS(RULE),
        {"networkPolicy": {"restrictWorkers": True}},
    ),
    Effect("http.port", 81, f"{BOX}/args", HAS("--http=127.0.0.1:81")),
    Effect("http.existingSecret", "t", f"{HUB_BOX}/args", HAS("--http=0.0.0.0:5580")),
    Effect("http.tokenKey", "k", f"{HUB_POD}/volumes/3/secret/items/0/key", "k", TOKEN),
    Effect(
        "metrics.podMonitor.enabled",
        True,
        "PodMonitor/m:spec/podMetricsEndpoints/0/authorization/credentials/name",
        "tokens",
        TOKEN,
    ),
    _same("metrics.podMonitor.interval", "5s", "PodMonitor/m:spec/podMetricsEndpoints/0/interval", MONITORED),
    Effect("metrics.podMonitor.labels", {"a": "b"}, "PodMonitor/m:metadata/labels/a", "b", MONITORED),
    Effect("metrics.workers.enabled", True, f"{BOX}/args", HAS("--http=0.0.0.0:5580"), TOKEN),
    Effect("test.enabled", False, "Pod/m-test", GONE),
    Effect("test.queue", "q", "Pod/m-test:spec/containers/0/args", HAS("--queue=q")),
    Effect("test.podAnnotations", {"a": "b"}, "Pod/m-test:metadata/annotations/a", "b"),
    Effect("test.resources", {"limits": {"cpu": 3}}, "Pod/m-test:spec/containers/0/resources/limits/cpu", 3),
    _same("test.nodeSelector", {"a": "b"}, "Pod/m-test:spec/nodeSelector"),
    _same("test.tolerations", [ANY], "Pod/m-test:spec/tolerations"),
    Effect("test.timeoutSeconds", 7, "Pod/m-test:spec/containers/0/args", HAS("--timeout=7")),
]
