"""Secure as it comes: no root, no capabilities, nothing writable, no token, no foreign key, no way in."""

import pytest

from tests.helm.rendering import (
    MINIMAL,
    label,
    laid_over,
    name_of,
    pod_specs,
    rendered,
    value_files,
    values_of,
)

FILES = pytest.mark.parametrize("file", value_files(), ids=label)
ON_VOLUME = {"hub": {"journal": {"persistence": {"enabled": True}}}}
OURS = {"hub", "worker", "client"}


@FILES
def test_pods_run_without_root_and_without_a_token(file):
    for name, pod in pod_specs(rendered(values_of(file))).items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] >= 10_000, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name


@FILES
def test_containers_have_no_capability_and_a_root_that_is_read_only(file):
    for name, pod in pod_specs(rendered(values_of(file))).items():
        for box in pod["containers"]:
            if box["name"] not in OURS:
                continue
            assert box["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "memory" in box["resources"]["limits"], name
            assert {"cpu", "memory"} <= set(box["resources"]["requests"]), name


@FILES
def test_every_pod_but_the_test_s_has_all_probes(file):
    for name, pod in pod_specs(rendered(values_of(file))).items():
        for box in pod["containers"]:
            if box["name"] in {"hub", "worker"}:
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    assert ("exec" in box[probe]) != ("httpGet" in box[probe]), f"{name} {probe}"


@FILES
def test_every_port_says_its_protocol_and_has_a_container_s_port_behind_it(file):
    found = rendered(values_of(file))
    for name, pod in pod_specs(found).items():
        for box in pod["containers"]:
            ports = {port["name"]: port["containerPort"] for port in box.get("ports", ())}
            assert all(port["protocol"] == "TCP" for port in box.get("ports", ())), name
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "httpGet" in box.get(probe, {}):
                    assert box[probe]["httpGet"]["port"] in ports, name
    hub_ports = {
        port["name"]: port["containerPort"]
        for name, pod in pod_specs(found).items()
        if name.endswith("-hub")
        for port in pod["containers"][0]["ports"]
    }
    for each in found:
        if each["kind"] == "Service":
            for port in each["spec"]["ports"]:
                assert port["protocol"] == "TCP"
                assert hub_ports[port["targetPort"]] == port["port"]


def keys_of(values, name: str) -> list[dict]:
    """The Secrets in a pod's volume of keys."""
    volume = pod_specs(rendered(values))[name]["volumes"][0]["projected"]
    assert volume["defaultMode"] == 0o440
    return [source["secret"] for source in volume["sources"]]


def test_a_role_gets_its_own_keys_only():
    def keys(name: str) -> set[str]:
        return {item["path"] for secret in keys_of(MINIMAL, name) for item in secret["items"]}

    assert keys("Deployment/m-default") == {"hub.public", "worker.secret", "mesh.secret"}
    assert keys("Pod/m-test") == {"hub.public", "client.secret", "mesh.secret"}
    assert keys("Deployment/m-hub") == {
        "hub.public",
        "hub.secret",
        "authorized/client/mesh.public",
        "authorized/worker/mesh.public",
    }


def test_a_revoked_key_is_gone_and_the_next_hub_starts_without_it():
    """A Secret's key that is missing hung the next hub's pod, and kept the former files."""
    own, let_in = keys_of(MINIMAL, "Deployment/m-hub")

    assert "optional" not in own
    assert let_in["optional"] is True


def test_all_that_is_in_a_secret_of_public_keys_is_let_in():
    """Adding a client to the chart's lists replaces the hub's pod; to a Secret, it does not."""
    values = laid_over(MINIMAL, {"keys": {"authorized": {"existingSecret": "let-in"}}})
    own, let_in = keys_of(values, "Deployment/m-hub")

    assert {item["path"] for item in own["items"]} == {"hub.public", "hub.secret"}
    assert let_in == {"name": "let-in"}


def test_pools_accept_no_connection_and_the_http_port_is_loopback_s():
    found = {name_of(each): each for each in rendered(MINIMAL)}

    policy = found["NetworkPolicy/m-workers"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == []
    box = found["Deployment/m-default"]["spec"]["template"]["spec"]["containers"][0]
    assert "ports" not in box
    assert "--http=127.0.0.1:5580" in box["args"]


def test_the_hub_lets_pools_to_every_port_of_a_lane_and_clients_to_the_gateway_only():
    policy = next(each for each in rendered(MINIMAL) if name_of(each) == "NetworkPolicy/m-hub")["spec"]

    clients, workers = policy["ingress"]
    assert clients["ports"] == [{"port": 5550, "protocol": "TCP"}]
    assert {"port": 5600, "endPort": 6799, "protocol": "TCP"} in workers["ports"]
    assert {"port": 5550, "endPort": 5552, "protocol": "TCP"} in workers["ports"]
    assert policy["egress"] == []
    assert "Egress" in policy["policyTypes"]


def test_a_hub_with_a_journal_in_redis_dials_that_and_the_names_and_nobody_else():
    for values in (
        {"hub": {"journal": {"existingSecret": "s"}}},
        {"config": {"hub": {"journal": "redis://redis:6379/0"}}},
    ):
        found = {name_of(each): each for each in rendered({**MINIMAL, **values})}

        names, redis = found["NetworkPolicy/m-hub"]["spec"]["egress"]
        assert {port["port"] for port in names["ports"]} == {53}
        assert redis == {"ports": [{"port": 6379, "protocol": "TCP"}]}


def test_a_hub_with_a_journal_in_a_file_dials_nobody():
    found = {name_of(each): each for each in rendered({**MINIMAL, **ON_VOLUME})}

    assert found["NetworkPolicy/m-hub"]["spec"]["egress"] == []


def journal_of(values) -> tuple[dict, dict]:
    """The volume and the mount of the journal; the hub alone has them."""
    pods = pod_specs(rendered({**MINIMAL, **values}))
    assert {name for name, pod in pods.items() if "journal" in str(pod["volumes"])} == {"Deployment/m-hub"}
    (volume,) = [each for each in pods["Deployment/m-hub"]["volumes"] if each["name"] == "journal"]
    (box,) = pods["Deployment/m-hub"]["containers"]
    (mount,) = [each for each in box["volumeMounts"] if each["name"] == "journal"]
    return volume, mount


def test_the_url_of_the_journal_s_redis_is_a_file_for_the_hub_alone():
    volume, mount = journal_of({"hub": {"journal": {"existingSecret": "the-journal"}}})

    assert volume["secret"] == {
        "secretName": "the-journal",
        "defaultMode": 0o440,
        "items": [{"key": "url", "path": "url"}],
    }
    assert mount == {"name": "journal", "mountPath": "/etc/taskmesh/journal", "readOnly": True}


def test_the_volume_of_the_journal_is_the_hub_s_alone_and_writable_by_its_group():
    volume, mount = journal_of(ON_VOLUME)

    assert volume["persistentVolumeClaim"] == {"claimName": "m-hub-journal"}
    assert mount == {"name": "journal", "mountPath": "/var/lib/taskmesh"}
    pod = pod_specs(rendered({**MINIMAL, **ON_VOLUME}))["Deployment/m-hub"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
