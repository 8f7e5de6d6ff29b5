"""Pools are the defaults with their own values laid over them; some maps are replaced as a whole."""

from tests.helm.rendering import CHART, MINIMAL, laid_over, name_of, pod_specs, rendered, values_of

DEFAULTS = {"workerDefaults": {"replicas": 3, "queues": ["a", "b"], "tags": ["x"]}}


def pools(**own):
    found = rendered(laid_over(laid_over(MINIMAL, DEFAULTS), {"workerPools": {"default": None, **own}}))
    deployments = {name_of(each): each for each in found if each["kind"] == "Deployment"}
    del deployments["Deployment/m-hub"]
    return deployments


def arguments(deployment) -> list[str]:
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_what_a_pool_does_not_say_is_the_defaults():
    found = pools(one={}, two={"queues": ["c"]})

    assert sorted(found) == ["Deployment/m-one", "Deployment/m-two"]
    assert "--queues=a,b" in arguments(found["Deployment/m-one"])
    assert "--queues=c" in arguments(found["Deployment/m-two"])
    assert "--tags=x" in arguments(found["Deployment/m-two"])


def test_nothing_empty_and_false_count_as_said():
    found = pools(one={"replicas": 0, "tags": [], "spread": False})["Deployment/m-one"]

    assert found["spec"]["replicas"] == 0
    assert not [argument for argument in arguments(found) if argument.startswith("--tags")]
    assert "topologySpreadConstraints" not in found["spec"]["template"]["spec"]


def test_one_pool_s_values_do_not_reach_the_next_one():
    found = pools(one={"gpu": {"count": 4}, "drain": {"timeoutSeconds": 5}}, two={})

    limits = found["Deployment/m-two"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "1", "memory": "1Gi"}
    assert "--grace=60" in arguments(found["Deployment/m-two"])


def test_resources_are_replaced_as_a_whole():
    found = pools(one={"resources": {"requests": {"cpu": "2"}}})["Deployment/m-one"]

    box = found["spec"]["template"]["spec"]["containers"][0]
    assert box["resources"] == {"requests": {"cpu": "2"}}


def test_a_pool_that_scales_itself_has_no_replicas():
    values = values_of(CHART / "ci" / "everything-values.yaml")
    found = {name_of(each): each for each in rendered(values)}

    assert "replicas" not in found["Deployment/farm-cpu"]["spec"]
    assert "replicas" not in found["Deployment/farm-web"]["spec"]
    assert found["Deployment/farm-gpu"]["spec"]["replicas"] == 2
    assert "Deployment/farm-off" not in found


def test_pools_dial_the_hub_pod_itself_and_clients_the_service():
    found = {name_of(each): each for each in rendered(MINIMAL)}

    assert found["Service/m-hub-pods"]["spec"]["clusterIP"] == "None"
    assert "--address=tcp://m-hub-pods.prod.svc:5550" in arguments(found["Deployment/m-default"])
    assert "--address=tcp://m-hub.prod.svc:5550" in found["Pod/m-test"]["spec"]["containers"][0]["args"]


def test_a_hub_on_a_dead_node_is_replaced_soon_and_there_are_never_two():
    """A StatefulSet's pod on a dead node is never replaced, any other after 300 s."""
    found = {name_of(each): each for each in rendered(MINIMAL)}

    hub = found["Deployment/m-hub"]["spec"]
    assert (hub["replicas"], hub["strategy"]) == (1, {"type": "Recreate"})
    patience = {each["key"]: each["tolerationSeconds"] for each in hub["template"]["spec"]["tolerations"]}
    assert patience == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}
    # The dead pod stays "Terminating", and this would keep its address in the Service.
    assert "publishNotReadyAddresses" not in found["Service/m-hub-pods"]["spec"]


def test_a_change_of_the_configuration_replaces_pods_and_a_new_chart_does_not():
    plain = rendered(MINIMAL)
    changed = rendered(laid_over(MINIMAL, {"config": {"pool": {"grace": 7}}}))

    def sums(found):
        return {
            name_of(each): each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in found
            if "template" in each.get("spec", {})
        }

    assert len(sums(plain)) == 2
    assert not set(sums(plain).values()) & set(sums(changed).values())
    for each in plain:
        if "template" in each.get("spec", {}):
            assert "helm.sh/chart" not in each["spec"]["template"]["metadata"]["labels"]


def test_selectors_match_their_pods_and_no_others():
    found = rendered(values_of(CHART / "ci" / "everything-values.yaml"))
    pods = {
        name_of(each): each["spec"]["template"]["metadata"]["labels"]
        for each in found
        if "template" in each.get("spec", {})
    }

    def selected(labels):
        return {name for name, own in pods.items() if labels.items() <= own.items()}

    for each in found:
        if each["kind"] == "Deployment":
            assert selected(each["spec"]["selector"]["matchLabels"]) == {name_of(each)}
        elif each["kind"] == "PodDisruptionBudget":
            (name,) = selected(each["spec"]["selector"]["matchLabels"])
            assert name.partition("/")[2] == each["metadata"]["name"]
        elif each["kind"] == "Service":
            assert selected(each["spec"]["selector"]) == {"Deployment/farm-hub"}
    assert len(pod_specs(found)) == len(pods) + 1
