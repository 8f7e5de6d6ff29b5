"""What is rendered is valid for every Kubernetes promised, and for KEDA and the Prometheus operator."""

import json
import subprocess
from functools import cache
from typing import Any

import pytest

from tests.harness.requirement import require
from tests.helm.executors import policy
from tests.helm.rendering import (
    TOOLS,
    Object,
    name_of,
    node,
    npm_tool,
    objects,
    rendered,
    template,
    value_files,
    values_of,
)

CUSTOM = {"ScaledObject", "TriggerAuthentication", "PodMonitor"}
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]


def validation() -> Any:
    try:
        return __import__("kubernetes_validate")
    except ImportError:
        return require(None, "the Python package kubernetes-validate: `make test-helm` installs it")


OLD = {"1.25", "1.26"}
"""Without PodDisruptionBudget's unhealthyPodEvictionPolicy. Helm 4's library renders for a new one only."""


@cache
def different_objects(version: str = "") -> list[Object]:
    """The objects of all files of values, those that differ in more than their names and labels."""
    found = {}
    for file in value_files():
        values = values_of(file)
        for each in objects([template(values, version).stdout]) if version else rendered(values):
            found.setdefault(json.dumps({**each, "metadata": None}, sort_keys=True), each)
    return list(found.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid_for(version):
    checker = validation()
    rendered_for = different_objects(version if version in OLD else "")
    ours = [each for each in rendered_for if each["kind"] not in CUSTOM]

    assert len({each["kind"] for each in ours}) == 9
    for each in ours:
        assert checker.validate(each, version, strict=True) == version, name_of(each)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_policy_of_spark_s_namespace_is_valid_for(version):
    assert validation().validate(policy(), version, strict=True) == version


def test_the_schemas_do_find_a_misspelt_field():
    checker = validation()
    found = next(each for each in rendered(values_of(value_files()[0])) if each["kind"] == "Deployment")
    found["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSecond"] = 1

    with pytest.raises(checker.ValidationError, match="periodSecond"):
        checker.validate(found, "1.33", strict=True)


def test_custom_resources_are_valid():
    npm_tool("helm")
    given: dict[str, list[Any]] = {kind: [] for kind in CUSTOM}
    for file in value_files():
        for found in rendered(values_of(file)):
            if found["kind"] in CUSTOM:
                given[found["kind"]].append(found)

    assert all(given.values())
    assert wrong(given) == []


def test_the_models_do_find_a_wrong_type():
    scaled = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "x"}}
    spec = {"scaleTargetRef": {"name": "x"}, "triggers": [{"type": "metrics-api", "metadata": {"url": 7}}]}
    npm_tool("helm")

    assert "string" in wrong({"ScaledObject": [{**scaled, "spec": spec}]})[0]


def wrong(given: dict[str, list[Any]]) -> list[str]:
    outcome = subprocess.run(
        [node(), str(TOOLS / "models.js")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    found: list[str] = json.loads(outcome.stdout)
    return found
