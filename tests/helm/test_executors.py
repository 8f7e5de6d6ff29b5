"""The two halves of Spark on Kubernetes: pools and hub of workers/pools/spark, executors of workers/spark."""

import re
from functools import cache
from typing import Any

from taskmesh.config import Config
from tests.helm.executors import EXECUTOR, SPARK, conf, policy
from tests.helm.rendering import CHART, ROOT, Object, chart, name_of, objects, pod_specs, values_of

RELEASE = NAMESPACE = "mesh"
COLD_START_S = 120
"""Seconds that a node may take to come, its image to be pulled, and a pool to start."""


def constant(module: str, name: str) -> float:
    """A number that a module of the Spark bridge defines; it cannot be imported without PySpark."""
    text = (ROOT / "taskmesh/spark/jobs" / module).read_text()
    (found,) = re.findall(rf"^ *{name}: .* = (.+)$", text, re.MULTILINE)
    return float(eval(found))  # noqa: S307  our own code


def later_tries_faster() -> float:
    """The part of a time-out that Spark's later tries wait."""
    return constant("engine.py", "LATER_TRIES_FASTER")


@cache
def pools() -> dict[str, Object]:
    """The objects of the pools' half, by name."""
    values = values_of(ROOT / "workers/pools/spark/values.yaml")
    files = chart().render(values, name=RELEASE, namespace=NAMESPACE)
    found = objects(text for path, text in files.items() if not path.endswith("NOTES.txt"))
    return {name_of(each): each for each in found}


def notes(values: Any) -> str:
    """The text that an install prints."""
    text: str = chart().render(values, name="m", namespace="prod")["taskmesh/templates/NOTES.txt"]
    return text


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """True if labels meet a selector."""
    rules = selector.get("matchExpressions", [])
    assert {rule["operator"] for rule in rules} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(rule["key"]) in rule["values"] for rule in rules
    )


def test_executors_dial_the_gateway_of_the_release_and_ask_for_its_queue():
    service = pools()["Service/mesh-taskmesh-hub"]
    host = f"{service['metadata']['name']}.{NAMESPACE}.svc"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}

    assert conf()["spark.taskmesh.address"] == f"tcp://{host}:{ports['gateway']}"
    (box,) = pod_specs(pools().values())["Deployment/mesh-taskmesh-spark"]["containers"]
    assert f"--queues={conf()['spark.taskmesh.queue']}" in box["args"]


def test_executors_wait_longer_for_the_first_pool_than_keda_needs_to_start_one():
    """KEDA's 0 pods and 30 s contradicted each other: the job failed while the image was pulled."""
    scaled = pools()["ScaledObject/mesh-taskmesh-spark"]["spec"]
    assert scaled["minReplicaCount"] == 0

    last = float(conf()["spark.taskmesh.no_worker_timeout"]) / later_tries_faster()
    assert last >= scaled["pollingInterval"] + COLD_START_S
    assert constant("settings.py", "no_worker_timeout") / later_tries_faster() < COLD_START_S  # why it is set


def test_pools_that_start_from_nothing_are_told_with_what_spark_needs():
    keda = {"type": "keda", "min": 0}
    values = {
        "keys": {"existingSecret": "k"},
        "http": {"existingSecret": "h"},
        "workerPools": {
            "default": {"autoscaling": {**keda, "min": 1}, "queues": ["warm"]},
            "two": {"autoscaling": keda, "queues": ["two"]},
            "one": {"autoscaling": keda, "queues": ["one"]},
        },
    }

    told = notes(values)

    assert "From 0 pods: one, two." in told
    ((waited, cold),) = re.findall(r"(\d+) s allow for (\d+) s", told)
    assert waited == conf()["spark.taskmesh.no_worker_timeout"]
    assert f"waits {constant('settings.py', 'no_worker_timeout'):.0f} s" in told
    assert int(waited) == later_tries_faster() * int(cold)
    assert "From 0 pods" not in notes(values_of(CHART / "ci" / "default-values.yaml"))


def test_the_hub_lets_executors_to_the_gateway_and_no_other_pod_of_their_namespace():
    clients, *_ = pools()["NetworkPolicy/mesh-taskmesh-hub"]["spec"]["ingress"]
    (peer,) = [each for each in clients["from"] if "namespaceSelector" in each]

    name = conf()["spark.kubernetes.namespace"]
    assert selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": name})
    assert selects(peer["podSelector"], EXECUTOR)
    assert not selects(peer["podSelector"], {"app": "notebook"})
    assert clients["ports"] == [{"port": 5550, "protocol": "TCP"}]


def test_spark_s_own_policy_lets_executors_out_to_that_hub():
    assert policy()["metadata"]["namespace"] == conf()["spark.kubernetes.namespace"]
    spec = policy()["spec"]
    assert selects(spec["podSelector"], EXECUTOR)
    names, hub = spec["egress"]

    assert {port["port"] for port in names["ports"]} == {53}
    (peer,) = hub["to"]
    labels = pools()["Deployment/mesh-taskmesh-hub"]["spec"]["template"]["metadata"]["labels"]
    assert selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": NAMESPACE})
    assert selects(peer["podSelector"], labels)
    assert hub["ports"] == pools()["NetworkPolicy/mesh-taskmesh-hub"]["spec"]["ingress"][0]["ports"]


def test_the_hub_has_room_for_what_all_executors_have_under_way():
    """Half of the hub's memory is for payloads; each Python worker is a client, two of them for each core."""
    cores = int(conf()["spark.executor.instances"]) * int(conf()["spark.executor.cores"])
    (box,) = pod_specs(pools().values())["Deployment/mesh-taskmesh-hub"]["containers"]
    memory = re.fullmatch(r"(\d+)Gi", box["resources"]["limits"]["memory"])

    assert memory
    assert (int(memory[1]) << 30) / 2 >= cores * constant("settings.py", "window_bytes")
    assert Config().hub.max_clients >= 2 * cores


def test_all_images_of_a_mesh_take_one_python_by_its_digest():
    """Functions that travel as code run on the minor version that has compiled them only."""
    files = [file for file in (ROOT / "workers").rglob("Containerfile") if "ARG BASE" in file.read_text()]

    assert len(files) == 3
    bases = {dict(re.findall(r"^ARG (\w+)=(.*)$", file.read_text(), re.MULTILINE))["BASE"] for file in files}
    (base,) = bases
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    executor = (SPARK / "Containerfile").read_text()
    assert re.findall(r"^ARG IMAGE=(.*)$", executor, re.MULTILINE) == [
        values_of(ROOT / "workers/pools/spark/values.yaml")["workerPools"]["spark"]["image"]["repository"]
    ]
