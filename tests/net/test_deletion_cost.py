"""K6: the deletion costs that a hub writes onto pods, at an API that keeps them."""

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from taskmesh.core.events import FromPool
from taskmesh.errors import ConfigError
from taskmesh.http import deletion_cost
from taskmesh.http.deletion_cost import ANNOTATION, DeletionCosts, Pods
from taskmesh.http.hub_metrics import LEAVING, deletion_costs
from taskmesh.http.requests import NoAnswer
from taskmesh.wire import messages as m
from tests.core.rig import EPOCH, HubRig
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

TOKEN = "of-the-account"  # noqa: S105


class Api:
    """Pods behind HTTPS, as the cluster's API has them.

    Attributes:
        costs: by pod. written: every change, in order. allowed: whether the account may change pods' status.
    """

    def __init__(self, folder: Path) -> None:
        self.costs: dict[str, int] = {}
        self.written: list[tuple[str, int]] = []
        self.allowed = True
        self.account = folder / "account"
        self.account.mkdir()
        key, certificate = self.account / "tls.key", self.account / "ca.crt"
        line = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=api "
            "-addext subjectAltName=IP:127.0.0.1"
        )
        subprocess.run(
            [*line.split(), "-keyout", str(key), "-out", str(certificate)],
            check=True,
            capture_output=True,
            timeout=30,
        )
        (self.account / "namespace").write_text("here\n")
        (self.account / "token").write_text(f"{TOKEN}\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def pods(self) -> Pods:
        return Pods(self.account, ("127.0.0.1", self._server.server_port))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def do_PATCH(self) -> None:
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            cost = int(change["metadata"]["annotations"][ANNOTATION])
            prefix, _, rest = self.path.partition("/pods/")
            pod, _, part = rest.partition("/")
            good = (prefix, part) == ("/api/v1/namespaces/here", "status") and api.allowed
            good = good and self.headers["Authorization"] == f"Bearer {TOKEN}"
            status = (200 if unquote(pod) in api.costs else 404) if good else 403
            if status == 200:
                api.costs[unquote(pod)] = cost
                api.written.append((unquote(pod), cost))
            body = json.dumps({"message": "pods is forbidden"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    served = Api(tmp_path)
    try:
        yield served
    finally:
        served.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_cost, "LOOK", 0.02)
    monkeypatch.setattr(deletion_cost, "CHANGE", 0.0)


class Hub:
    """What pools cost, as a hub would say it.

    Attributes:
        costs: by pool; None while it does not answer. looks: how often it was asked.
    """

    def __init__(self, **costs: int) -> None:
        self.costs: dict[str, int] | None = {name.replace("_", "-"): cost for name, cost in costs.items()}
        self.looks = 0
        self.told: list[dict[str, object]] = []

    def look(self) -> dict[str, int]:
        self.looks += 1
        if self.costs is None:
            raise NoAnswer("this program is starting")
        return dict(self.costs)

    def keeps(self, api: Api, *deployments: str) -> DeletionCosts:
        return DeletionCosts(deployments, api.pods, self.look, lambda _, fields: self.told.append(fields))

    def looked(self) -> None:
        """Waits until it was asked twice more: what was written before is there."""
        before = self.looks
        wait_until(lambda: self.looks >= before + 2)


def test_a_pool_costs_what_it_runs_and_less_than_nothing_when_it_drains():
    rig = HubRig()
    rig.client()
    first, second = rig.join("a"), rig.join("b", instance=2)
    rig.tell(FromPool(m.Beat(EPOCH, first, "a", 0, 0, 0, [], busy_slots=2)))
    rig.beat(second, "b", state="draining")

    assert deletion_costs(rig.hub) == {"a": 2, "b": LEAVING}


@pytest.mark.usefixtures("quick")
def test_the_hub_writes_the_costs_of_the_pods_of_its_deployments(api):
    api.costs = {"m-cpu-1": 7, "m-cpu-2": 0, "foreign-1": 0}
    hub = Hub(m_cpu_1=2, m_cpu_2=0, m_cpu_elsewhere=1, foreign_1=3)

    with hub.keeps(api, "m-cpu", "m-gpu"):
        wait_until(lambda: api.costs["m-cpu-1"] == 2)
        hub.costs = {"m-cpu-1": LEAVING, "m-cpu-2": 1}
        wait_until(lambda: api.costs["m-cpu-1"] == LEAVING)
        wait_until(lambda: api.costs["m-cpu-2"] == 1)

    assert api.costs["foreign-1"] == 0
    assert hub.told == []  # nor of the pool that is no pod here


@pytest.mark.usefixtures("quick")
def test_a_pool_that_has_left_costs_least_and_stays_so_while_it_is_idle(api):
    api.costs = {"m-1": 0}
    hub = Hub(m_1=1)
    with hub.keeps(api, "m"):
        wait_until(lambda: api.costs["m-1"] == 1)
        hub.costs = {}
        wait_until(lambda: api.costs["m-1"] == LEAVING)
        hub.costs = {"m-1": 0}  # its container was started anew
        hub.looked()
        assert api.costs["m-1"] == LEAVING
        hub.costs = {"m-1": 2}
        wait_until(lambda: api.costs["m-1"] == 2)


def test_counts_are_written_seldom_and_a_drain_at_once(api, monkeypatch):
    monkeypatch.setattr(deletion_cost, "LOOK", 0.02)
    api.costs = {"m-1": 0}
    hub = Hub(m_1=1)
    with hub.keeps(api, "m"):
        wait_until(lambda: api.written)
        hub.costs = {"m-1": 2}
        hub.looked()
        hub.costs = {"m-1": LEAVING}
        wait_until(lambda: api.costs["m-1"] == LEAVING)

    assert api.written == [("m-1", 1), ("m-1", LEAVING)]


@pytest.mark.usefixtures("quick")
def test_many_changes_are_written_a_few_at_a_time(api, monkeypatch):
    monkeypatch.setattr(deletion_cost, "MOST", 3)
    api.costs = dict.fromkeys((f"m-{number}" for number in range(10)), 0)
    hub = Hub(**dict.fromkeys((f"m_{number}" for number in range(10)), 4))
    with hub.keeps(api, "m"):
        wait_until(lambda: set(api.costs.values()) == {4})

    assert len(api.written) == 10
    assert hub.looks > 3


@pytest.mark.usefixtures("quick")
def test_a_refusal_is_told_once_and_a_hub_that_starts_is_waited_for(api):
    api.costs = {"m-1": 0}
    api.allowed = False
    hub = Hub(m_1=1)
    hub.costs = None
    with hub.keeps(api, "m"):
        hub.looked()
        hub.costs = {"m-1": 1}
        wait_until(lambda: hub.told)
        hub.looked()
        assert len(hub.told) == 1
        assert "403 pods is forbidden" in str(hub.told[0])
        api.allowed = True
        wait_until(lambda: api.costs["m-1"] == 1)


@pytest.mark.usefixtures("quick")
def test_an_api_that_does_not_answer_is_told_and_asked_again(api):
    hub = Hub(m_1=1)
    pods = Pods(api.account, ("127.0.0.1", 1))
    with DeletionCosts(("m",), pods, hub.look, lambda _, fields: hub.told.append(fields)):
        wait_until(lambda: hub.told)
        hub.looked()
    assert "at 127.0.0.1 does not answer" in str(hub.told)
    assert len(hub.told) == 1


def test_a_pool_s_name_cannot_name_another_object(api):
    api.costs = {"m-1/../other": 0, "other": 0}
    api.pods.write("m-1/../other", 5)

    assert api.costs == {"m-1/../other": 5, "other": 0}


def test_it_is_for_a_pod_with_a_token_and_needs_the_side_port(programs: Programs, tmp_path):
    with pytest.raises(ConfigError, match="leave the option out"):
        Pods(tmp_path)
    outcome = programs.run("hub", "--bind", "tcp://127.0.0.1:0", "--deletion-cost", "m")
    assert outcome.returncode == 2
    assert "needs the side port" in outcome.stderr
    outcome = programs.run(
        "hub", "--bind", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0", "--deletion-cost", "m"
    )
    assert outcome.returncode == 2
    assert "leave the option out" in outcome.stderr
