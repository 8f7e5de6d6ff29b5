"""Executors on Kubernetes: the pod that Spark itself makes of workers/spark/executors.conf."""

import json
from typing import Any

import pytest

from taskmesh.spark import MeshSpark
from tests.helm.executors import EXECUTOR, conf

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SECRETS = "spark.kubernetes.executor.secrets."


@pytest.fixture
def jvm(spark) -> Any:
    return spark.sparkContext._jvm


@pytest.fixture
def pod(jvm) -> tuple[dict, dict]:
    """An executor's pod and its container."""
    given = jvm.org.apache.spark.SparkConf(False)
    own = {"spark.app.name": "squares", "spark.driver.host": "driver", "spark.driver.port": "7078"}
    for name, value in {**conf(), **own}.items():
        given.set(name, value)
    nothing = jvm.scala.Option.empty()
    executor = jvm.org.apache.spark.deploy.k8s.KubernetesExecutorConf(given, "spark-1", "1", nothing, 0)
    managers = jvm.org.apache.spark.SecurityManager
    security = managers(given, nothing, getattr(managers, "$lessinit$greater$default$3")())
    profiles = getattr(jvm.org.apache.spark.resource, "ResourceProfile$")
    profile = getattr(profiles, "MODULE$").getOrCreateDefaultProfile(given)
    builder = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    made = builder.buildFromFeatures(executor, security, None, profile).pod()
    text = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    return json.loads(text.asJson(made.pod())), json.loads(text.asJson(made.container()))


def test_spark_mounts_the_keys_where_executors_look_for_them(pod):
    spec, box = pod[0]["spec"], pod[1]
    mounts = {mount["name"]: mount["mountPath"] for mount in box["volumeMounts"]}
    (volume,) = [each for each in spec["volumes"] if "secret" in each]

    assert volume["secret"] == {"secretName": "mesh-client"}  # no mode: Kubernetes gives it 0644
    assert mounts[volume["name"]] == conf()["spark.taskmesh.keys"]
    assert box["image"] == conf()["spark.kubernetes.container.image"]


def test_spark_labels_executors_as_network_policies_expect(pod):
    assert EXECUTOR.keys() <= pod[0]["metadata"]["labels"].keys()
    assert pod[0]["metadata"]["labels"]["spark-role"] == EXECUTOR["spark-role"]


def test_every_property_is_one_that_spark_or_the_bridge_knows(spark, jvm):
    """Spark takes a misspelt property for one of the user's, and says nothing."""
    ours = [name for name in conf() if name.startswith("spark.taskmesh.")]
    rest = [name for name in conf() if name not in ours and not name.startswith(SECRETS)]
    session = spark.newSession()
    for name in ours:
        session.conf.set(name, conf()[name])
    getattr(getattr(jvm.org.apache.spark.deploy.k8s, "Config$"), "MODULE$")  # registers what it knows
    known = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry

    assert [name for name in rest if known(name) is None] == []
    assert known("spark.kubernetes.container.imagine") is None
    mesh = MeshSpark.from_conf(session)
    assert mesh.address == (conf()["spark.taskmesh.address"],)
    assert mesh.no_worker_timeout == float(conf()["spark.taskmesh.no_worker_timeout"])
