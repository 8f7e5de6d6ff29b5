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
    yaml,
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
        "workerDefaults": {"tasksConfigMap": "12", "modules": ["on"]},
        "workerPools": {"default": None, "no": {"autoscaling": {"type": "keda"}}, "yes": {}},
    }

    outcome = helm3("template", "on", str(CHART), "-n", "12", "-f", "-", given=json.dumps(values))
    assert outcome.returncode == 0, outcome.stderr
    found = objects([outcome.stdout])

    names = [text for each in found for text in texts(each)]
    assert {type(name) for name in names} == {str}
    assert {"on", "1", "off", "1e3", "0x1", "12", "no", "yes"} <= set(names)
    assert "on" in pod_specs(found)["Deployment/1-no"]["containers"][0]["args"]


@pytest.mark.parametrize("over", [{"fullnameOverride": ""}, {"fullnameOverride": "x"}])
def test_labels_and_annotations_stand_once_and_the_nearer_ones_win(over):
    """YAML with a key twice is refused by some, and read in some way by others."""
    values = {
        **values_of(CHART / "ci" / "default-values.yaml"),
        **over,
        "commonLabels": {"team": "a", "helm.sh/chart": "ours"},
        "workerDefaults": {"podLabels": {"team": "b"}, "podAnnotations": {"checksum/config": "none"}},
    }

    text = template(values).stdout

    loader = yaml().CSafeLoader
    for part in yaml().compose_all(text, Loader=loader):
        for mapping in mappings(part):
            keys = [key.value for key, _ in mapping.value]
            assert len(keys) == len(set(keys)), keys
    found = {each["metadata"]["name"]: each for each in objects([text]) if each["kind"] == "Deployment"}
    pool = next(each for name, each in found.items() if name.endswith("-default"))
    assert pool["metadata"]["labels"]["helm.sh/chart"] == "ours"
    assert pool["metadata"]["labels"]["team"] == "a"
    assert pool["spec"]["template"]["metadata"]["labels"]["team"] == "b"
    assert len(pool["spec"]["template"]["metadata"]["annotations"]["checksum/config"]) == 64


def mappings(node: Any) -> Iterator[Any]:
    """All maps of a YAML document, as they stand in the text."""
    if node.id == "mapping":
        yield node
        for _, value in node.value:
            yield from mappings(value)
    elif node.id == "sequence":
        for each in node.value:
            yield from mappings(each)


def test_releases_whose_long_names_begin_alike_share_no_object():
    """Names were cut to 30 characters, and the second release could not be installed."""
    names = set()
    for ending in ("one", "two"):
        values = {
            "keys": {"existingSecret": "k"},
            "fullnameOverride": f"a-name-with-thirty-characters-{ending}",
        }
        found = {name_of(each) for each in rendered(values)}
        assert max(len(name.partition("/")[2]) for name in found) <= 50
        assert not names & found
        names |= found


def test_two_pools_that_keda_scales_by_one_queue_are_told():
    """Each of them would be scaled for all of it."""
    keda = {"autoscaling": {"type": "keda"}}
    values = {
        "keys": {"existingSecret": "k"},
        "http": {"existingSecret": "h"},
        "workerPools": {"default": keda, "more": {**keda, "queues": ["other", "default"]}},
    }

    notes = chart().render(values, name="m", namespace="prod")["taskmesh/templates/NOTES.txt"]

    assert "WARNING: KEDA scales each of the pools default, more for all tasks of the queue default" in notes
    assert notes.count("WARNING") == 1


def test_evictions_of_pools_without_a_hub_are_not_refused():
    """Such pods are not ready, and a budget counts them as away; drains of nodes hung."""
    values = values_of(CHART / "ci" / "default-values.yaml")

    def policy(version: str) -> str | None:
        found = objects([template(values, version).stdout])
        (budget,) = [each["spec"] for each in found if each["kind"] == "PodDisruptionBudget"]
        assert budget["maxUnavailable"] == 1
        return budget.get("unhealthyPodEvictionPolicy")

    assert (policy("1.26.9"), policy("1.27.0"), policy("1.31.2-eks-1")) == (
        None,
        "AlwaysAllow",
        "AlwaysAllow",
    )


def test_a_new_image_of_tasks_leaves_the_hub_alone():
    """The hub stands still for seconds when its pod is replaced."""

    def images(**values: Any) -> dict[str, str]:
        pods = pod_specs(rendered({**values_of(CHART / "ci" / "default-values.yaml"), **values}))
        return {name: pod["containers"][0]["image"] for name, pod in pods.items()}

    before, after = images(), images(workerDefaults={"image": {"repository": "tasks", "tag": "2"}})

    changed = {name for name, image in after.items() if image != before[name]}
    assert changed == {"Deployment/mesh-taskmesh-default"}


def claims(**persistence: Any) -> list[Any]:
    """The claims of a release that has a journal on a volume."""
    journal = {"persistence": {"enabled": True, **persistence}}
    values = {**values_of(CHART / "ci" / "default-values.yaml"), "hub": {"journal": journal}}
    return [each for each in rendered(values) if each["kind"] == "PersistentVolumeClaim"]


def test_the_journal_s_claim_stays_when_the_release_goes():
    (claim,) = claims()

    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "storageClassName" not in claim["spec"]  # the cluster's default
    assert claims(storageClass="-")[0]["spec"]["storageClassName"] == ""
    assert claims(existingClaim="mine") == []


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ({}, "those of clients that have left end with its pod"),
        ({"persistence": {"enabled": True}}, "delete pvc mesh-taskmesh-hub-journal"),
        ({"persistence": {"enabled": True, "existingClaim": "mine"}}, "PersistentVolumeClaim mine."),
        ({"existingSecret": "s"}, "they are in the journal in Redis"),
    ],
)
def test_the_notes_tell_what_becomes_of_accepted_tasks(journal, told):
    values = {**values_of(CHART / "ci" / "default-values.yaml"), "hub": {"journal": journal}}

    assert told in chart().render(values, name="mesh", namespace="prod")["taskmesh/templates/NOTES.txt"]


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
    outcome = template(values_of(values), version)

    assert (outcome.returncode == 0) == (version != "1.24.9"), outcome.stderr
    if outcome.returncode:
        assert "requires kubeVersion" in outcome.stderr
