"""The deletion cost that a worker writes onto its pod: a real worker, and an API that keeps one pod."""

import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from taskmesh import Mesh
from taskmesh.net.side_client import SideClient
from taskmesh_workers import deletion_cost
from taskmesh_workers.deletion_cost import ANNOTATION, LEAVING, ClusterError, DeletionCost, OwnPod, hold
from tests.cli.test_side_port import HTTP, side_of
from tests.net import workload
from tests.net.journal import words
from tests.programs import Programs
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
TOKEN = "of-the-account"  # noqa: S105


class Api:
    """One pod behind HTTPS, as the cluster's API has it."""

    def __init__(self, folder: Path) -> None:
        self.metadata: dict[str, Any] = {"name": "a-pod"}
        self.written: list[str] = []
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
    def pod(self) -> OwnPod:
        return OwnPod("a-pod", self.account, ("127.0.0.1", self._server.server_port))

    def cost(self) -> int:
        return int(self.metadata.get("annotations", {}).get(ANNOTATION, "0"))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def do_GET(self) -> None:
            self._answer(None)

        def do_PATCH(self) -> None:
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, change: dict[str, Any] | None) -> None:
            good = self.path == "/api/v1/namespaces/here/pods/a-pod" and api.allowed
            good = good and self.headers["Authorization"] == f"Bearer {TOKEN}"
            if good and change is not None:
                api.metadata.setdefault("annotations", {}).update(change["metadata"]["annotations"])
                api.written.append(change["metadata"]["annotations"][ANNOTATION])
            body = json.dumps(
                {"metadata": api.metadata} if good else {"message": "pods is forbidden"}
            ).encode()
            self.send_response(200 if good else 403)
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


def client_of(side: str) -> SideClient:
    host, _, port = side.removeprefix("http://").rpartition(":")
    return SideClient(host, int(port), "", 5.0)


@pytest.mark.usefixtures("quick")
def test_the_cost_is_what_the_pool_runs_and_less_than_nothing_when_it_drains(
    api, programs: Programs, tmp_path
):
    address = programs.hub()[1]
    worker = programs.worker(address, "--name", "a-pod", *HTTP, slots=2)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    complaints: list[str] = []
    with (
        Mesh(address) as mesh,
        DeletionCost(api.pod, client_of(side_of(worker)), lambda _, text: complaints.append(text)),
    ):
        held = [mesh.submit(workload.hold, str(journal), f"{n}", str(gate)) for n in range(2)]
        wait_until(lambda: len(words(journal)) == 2)
        wait_until(lambda: api.cost() == 2)

        assert programs.run("scale-in", "a-pod", "1", "--address", address).stdout == "a-pod\n"

        wait_until(lambda: api.cost() == LEAVING)
        gate.touch()
        assert [future.result(20) for future in held] == ["0", "1"]
        assert worker.wait() == 0
    assert complaints == []
    assert api.written[-1] == str(LEAVING)


@pytest.mark.usefixtures("quick")
def test_a_pod_that_was_to_leave_stays_the_cheapest_while_it_is_idle(api, programs: Programs, tmp_path):
    api.metadata["annotations"] = {ANNOTATION: str(LEAVING)}
    address = programs.hub()[1]
    worker = programs.worker(address, *HTTP)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh, DeletionCost(api.pod, client_of(side_of(worker)), lambda *_: None):
        held = mesh.submit(workload.hold, str(journal), "x", str(gate))
        wait_until(lambda: api.cost() == 1)
        gate.touch()
        assert held.result(20) == "x"
        wait_until(lambda: api.cost() == 0)
    assert api.written == ["1", "0"]


@pytest.mark.usefixtures("quick")
def test_a_refusal_is_told_once_and_the_pool_does_not_mind(api, programs: Programs):
    api.allowed = False
    address = programs.hub()[1]
    worker = programs.worker(address, *HTTP)
    complaints: list[str] = []
    with DeletionCost(api.pod, client_of(side_of(worker)), lambda _, text: complaints.append(text)):
        wait_until(lambda: complaints)
        assert (
            programs.run("submit", "tests.net.workload:add", "1", "2", "--address", address).stdout == "3\n"
        )
    assert len(complaints) == 1
    assert "403 pods is forbidden" in complaints[0]


@pytest.mark.parametrize(
    "annotations", [None, {}, *({ANNOTATION: text} for text in ("", "--5", "4.5", "\u00b2"))]
)
def test_what_is_written_there_and_is_no_number_counts_as_nothing(api, annotations):
    api.metadata["annotations"] = annotations
    assert api.pod.cost == 0


def test_a_drained_pod_stays_until_it_is_ended(api):
    sent = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    sent.start()
    try:
        hold(api.pod, 20)  # ends by the signal, which does not end us
    finally:
        sent.join()
    assert api.cost() == LEAVING


def test_it_does_not_stay_when_kubernetes_ends_it_or_does_not_answer(api):
    api.metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    hold(api.pod, 60)
    api.allowed = False
    hold(api.pod, 60)

    with pytest.raises(ClusterError, match="does not answer"):
        _ = OwnPod("a-pod", api.account, ("127.0.0.1", 1)).cost


@pytest.mark.parametrize("line", [("--http", "127.0.0.1:0", "--name", "a"), ("--http", "127.0.0.1:5580"), ()])
def test_it_needs_the_pod_s_name_and_a_side_port(programs: Programs, line: tuple[str, ...]):
    outcome = programs.run("worker", "--deletion-cost", *line)

    assert outcome.returncode == 2
