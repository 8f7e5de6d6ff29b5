"""Helm 3 and Helm 4 lint the chart without a complaint and make the same of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helm.rendering import (
    CHART,
    chart,
    helm3,
    helm4,
    label,
    name_of,
    objects,
    pod_specs,
    rendered,
    template,
    value_files,
    values_of,
)

FILES = pytest.mark.parametrize("file", value_files(), ids=label)
HARMLESS = "icon is recommended"


@FILES
def test_helm_3_lints_it(file):
    outcome = helm3("lint", "--strict", str(CHART), "-f", str(file))

    assert outcome.returncode == 0, outcome.stdout
    assert [line for line in outcome.stdout.splitlines() if line.startswith("[")] == [
        f"[INFO] Chart.yaml: {HARMLESS}"
    ]


@FILES
def test_helm_4_lints_it(file):
    report = helm4().lint(CHART, values_of(file), strict=True)

    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == [HARMLESS]


@FILES
def test_helm_3_and_helm_4_render_the_same(file):
    outcome = template(values_of(file))

    assert outcome.returncode == 0, outcome.stderr
    assert objects([outcome.stdout]) == rendered(values_of(file))


@FILES
def test_no_two_objects_have_one_name(file):
    names = [name_of(found) for found in rendered(values_of(file))]

    assert len(names) == len(set(names))


NAMED = {"name", "secretName", "serviceAccountName", "namespace", "labels", "matchLabels"}


def texts(at: Any, *, named: bool = False) -> Iterator[Any]:
    """What stands as a name or a label anywhere in an object."""
    if isinstance(at, dict):
        for key, value in at.items():
            yield from texts(value, named=named or key in NAMED)
    elif isinstance(at, list):
        for each in at:
            yield from texts(each, named=named)
    elif named:
        yield at


def test_names_that_yaml_takes_for_something_else_stay_names():
    values = {
        "fullnameOverride": "1",
        "nameOverride": "off",
        "keys": {"existingSecret": "1e3"},
        "http": {"existingSecret": "0x1"},
        "metrics": {"podMonitor": {"enabled": True}},
        "workerDefaults": {"deletionCost": {"enabled": True}, "tasksConfigMap": "12", "modules": ["on"]},
        "workerPools": {"default": None, "no": {"autoscaling": {"type": "keda"}}, "yes": {}},
    }

    outcome = helm3("template", "on", str(CHART), "-n", "12", "-f", "-", given=json.dumps(values))
    assert outcome.returncode == 0, outcome.stderr
    found = objects([outcome.stdout])

    names = [text for each in found for text in texts(each)]
    assert {type(name) for name in names} == {str}
    assert {"on", "1", "off", "1e3", "0x1", "12", "no", "yes"} <= set(names)
    assert "on" in pod_specs(found)["Deployment/1-no"]["containers"][0]["args"]


def test_the_notes_tell_the_next_command():
    minimal = values_of(CHART / "ci" / "default-values.yaml")
    notes = chart().render(minimal, name="mesh", namespace="prod")["taskmesh/templates/NOTES.txt"]

    assert "helm test mesh --namespace prod" in notes
    assert "TASKMESH_ADDRESS=tcp://mesh-taskmesh-hub.prod.svc:5550" in notes


def test_the_package_holds_what_an_install_needs_and_no_more(tmp_path):
    outcome = helm3("package", str(CHART), "--destination", str(tmp_path))
    assert outcome.returncode == 0, outcome.stderr
    (archive,) = tmp_path.glob("taskmesh-*.tgz")

    packed = helm4().Chart.load_archive(archive.read_bytes())

    minimal = values_of(CHART / "ci" / "default-values.yaml")
    assert packed.render(minimal) == chart().render(minimal)
    assert not [file["name"] for file in packed.files if file["name"].startswith("ci/")]


@pytest.mark.parametrize("version", ["1.24.9", "1.25.0", "1.37.0"])
def test_kubernetes_from_1_25_on(version):
    values = CHART / "ci" / "default-values.yaml"
    outcome = helm3("template", "mesh", str(CHART), "-f", str(values), "--kube-version", version)

    assert (outcome.returncode == 0) == (version != "1.24.9"), outcome.stderr
    if outcome.returncode:
        assert "requires kubeVersion" in outcome.stderr
