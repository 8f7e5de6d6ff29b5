"""The command lines, probes, keys and URLs that the chart writes are those that the programs understand."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.ports import free_ports
from tests.harness.program import Program
from tests.harness.programs import Programs
from tests.harness.redis_server import serving
from tests.helm.rendering import Object, Values, laid_over, name_of, pod_specs, rendered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
HUB, POOL, CLIENT = "Deployment/m-hub", "Deployment/m-default", "Pod/m-test"
TOKEN = "a-token-of-some-length"  # noqa: S105
HTTP_SECRET = {"http": {"existingSecret": "mesh-http"}}
SCALED = {
    "workerDefaults": {
        "autoscaling": {"type": "keda", "min": 0},
        "queues": ["default", "a.b", "x|y*z?#@!", "q{}[]<~", "per%\\", "ok-_:1", "\u00e9"],
    }
}


class Release:
    """A rendered release whose containers run as processes here, with the volumes as folders."""

    def __init__(self, programs: Programs, values: Values, **more: str) -> None:
        self._programs = programs
        self._folder = programs.folder
        port = free_ports(7)
        first, last, self.hub_http, self.pool_http = range(port + 3, port + 7)
        hub = {"port": port, "bindHost": "127.0.0.1", "lanes": {"first": first, "last": last}}
        settings = laid_over(values, {"hub": hub, "http": {"port": self.hub_http}})
        base = {"fullnameOverride": "m", "keys": {"existingSecret": "mesh-keys"}}
        self.objects = rendered(laid_over(base, settings))
        others = rendered(laid_over(laid_over(base, settings), {"http": {"port": self.pool_http}}))
        self.pods = {**pod_specs(others), HUB: pod_specs(self.objects)[HUB]}
        self._secret = {**self._keys(), **{name: text.encode() for name, text in more.items()}}

    def _keys(self) -> dict[str, bytes]:
        """A Secret as docs/kubernetes.md makes it."""
        hub, pool, mine = (self._folder / name for name in ("HUB", "POOL", "MINE"))
        for line in (
            ("new", "hub", "--keys", hub),
            ("new", "worker", "--keys", pool, "--hub", hub / "hub.public"),
            ("new", "client", "--keys", mine, "--hub", hub / "hub.public", "--mesh", pool / "mesh.secret"),
        ):
            outcome = self._programs.run("keys", *map(str, line))
            assert outcome.returncode == 0, outcome.stderr
        files = [hub / "hub.secret", hub / "hub.public", pool / "worker.secret", pool / "mesh.secret"]
        secret = {file.name: file.read_bytes() for file in [*files, mine / "client.secret"]}
        secret["authorized.worker.mesh.public"] = (pool / "worker.public").read_bytes()
        secret["authorized.client.mesh.public"] = (mine / "client.public").read_bytes()
        return {**secret, "token": TOKEN.encode()}

    def _volume(self, pod: str, volume: Object) -> Path:
        folder = self._folder / pod.replace("/", "-") / volume["name"]
        content: dict[str, bytes] = {}
        if "secret" in volume or "projected" in volume:
            sources = [each["secret"] for each in volume.get("projected", {}).get("sources", [volume])]
            whole = [{"key": key, "path": key} for key in self._secret if key.startswith("authorized.")]
            items = [item for source in sources for item in source.get("items", whole)]
            content = {item["path"]: self._secret[item["key"]] for item in items}
        elif "configMap" in volume:
            config = next(found for found in self.objects if found["kind"] == "ConfigMap")
            content = {name: text.encode() for name, text in config["data"].items()}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, data in content.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_bytes(data)
            file.chmod(0o600)
        return folder

    def line(self, pod: str) -> tuple[list[str], dict[str, str]]:
        """A pod's arguments and environment, with what Kubernetes puts in."""
        spec = self.pods[pod]
        box = spec["containers"][0]
        folders = {each["name"]: self._volume(pod, each) for each in spec["volumes"]}
        mounts = {each["mountPath"]: str(folders[each["name"]]) for each in box["volumeMounts"]}

        def placed(text: str) -> str:
            for path, folder in mounts.items():
                text = text.replace(path, folder)
            for host in ("m-hub-pods.prod.svc", "m-hub.prod.svc"):
                text = text.replace(host, "127.0.0.1")
            return text.replace("$(POD_NAME)", "m-default-abc12")

        plain = {each["name"]: placed(each["value"]) for each in box["env"] if "value" in each}
        given = {**plain, "TASKMESH_CONCURRENCY": "1"} if pod == POOL else plain
        return [placed(argument) for argument in box["args"]], given

    def start(self, pod: str) -> Program:
        """Runs a pod's container."""
        arguments, environ = self.line(pod)
        program = self._programs.start(*arguments, env=environ)
        program.ready()
        return program

    def probe(self, pod: str, probe: str) -> bool:
        """Asks as the kubelet would."""
        found = self.pods[pod]["containers"][0][f"{probe}Probe"]
        if "exec" in found:
            assert found["exec"]["command"][0] == "taskmesh"
            return self._programs.run(*found["exec"]["command"][1:]).returncode == 0
        assert found["httpGet"]["port"] == "http"
        with asked(self.hub_http if pod == HUB else self.pool_http, found["httpGet"]["path"]) as answer:
            return answer.status == 200


@contextmanager
def asked(port: int, path: str, token: str = "") -> Iterator[http.client.HTTPResponse]:
    """The answer of an HTTP port."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        yield connection.getresponse()


WHOLE = {"keys": {"authorized": {"existingSecret": "let-in"}}}


@pytest.mark.parametrize("values", [{}, WHOLE, {**HTTP_SECRET, "metrics": {"workers": {"enabled": True}}}])
def test_hub_pool_probes_and_the_test_pod(programs, values):
    release = Release(programs, values)
    release.start(HUB)
    release.start(POOL)

    for pod in (HUB, POOL):
        for probe in ("startup", "liveness", "readiness"):
            assert release.probe(pod, probe), f"{pod} {probe}"
    arguments, environ = release.line(CLIENT)
    outcome = programs.run(*arguments, env=environ)

    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["worker"].startswith("m-default-abc12")


ON_VOLUME = {"hub": {"journal": {"persistence": {"enabled": True}, "strict": True}}}
SHORT = {"config": {"hub": {"lease": 1.5, "beat": 0.3}}}
IN_REDIS = {"hub": {"journal": {"existingSecret": "the-journal"}}}


@pytest.fixture(params=["file", "redis"])
def journaled(request, programs, tmp_path) -> Iterator[Release]:
    """A release whose hub has a journal, in a file that a strict hub writes or in Redis."""
    if request.param == "file":
        yield Release(programs, laid_over(ON_VOLUME, SHORT))
        return
    for server in serving(tmp_path, "--appendonly", "yes", password="right-and-secret"):  # noqa: S106
        yield Release(programs, laid_over(IN_REDIS, SHORT), url=server.full_url)
        programs.end()  # before its server


def test_the_next_hub_s_pod_runs_what_the_last_one_has_accepted(programs, journaled):
    hub = journaled.start(HUB)
    arguments, environ = journaled.line(CLIENT)
    submitted = programs.run(*arguments, "--detach", env=environ)
    assert submitted.returncode == 0, submitted.stderr
    task_id = json.loads(submitted.stdout)["task_id"]
    hub.kill()

    journaled.start(HUB)
    journaled.start(POOL)
    (address,) = [each for each in arguments if each.startswith("--address=")]
    outcome = programs.run("result", task_id, "--wait", "20", "--json", address, env=environ)

    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["worker"].startswith("m-default-abc12")


def test_keda_s_triggers_find_their_numbers(programs):
    release = Release(programs, laid_over(HTTP_SECRET, SCALED))
    release.start(HUB)
    scaled = next(found for found in release.objects if found["kind"] == "ScaledObject")
    names = []
    for trigger in scaled["spec"]["triggers"]:
        url = urlsplit(trigger["metadata"]["url"])
        assert url.hostname == "m-hub.prod.svc"
        assert url.port == release.hub_http
        with asked(release.hub_http, f"{url.path}?{url.query}", TOKEN) as answer:
            assert value_at(json.load(answer), trigger["metadata"]["valueLocation"]) == 0
        names.append(trigger["name"])

    assert scaled["spec"]["advanced"]["scalingModifiers"]["formula"].split(" + ") == names
    with asked(release.hub_http, "/v1/queues") as refused:
        assert refused.status == 401
    assert name_of(scaled) == "ScaledObject/m-default"


def value_at(found: Any, location: str) -> Any:
    """What KEDA finds at a GJSON path: keys between dots; a backslash takes its meaning from what follows."""
    parts = re.findall(r"((?:\\.|[^.\\])+)", location)
    for part in parts:
        assert not re.search(r"(?<!\\)[*?|#@!{}\[\]()=<>~%]", re.sub(r"\\\\", "", part)), location
        found = found[re.sub(r"\\(.)", r"\1", part)]
    return found
