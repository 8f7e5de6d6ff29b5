"""Abuse list, rows about payloads: A15, A16, A19 of docs/explanation/security.md."""

import json
import pickle
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskmesh import Mesh, TaskFuture
from taskmesh.core.specs import spec_number
from taskmesh.errors import BadSignature, RemoteError, SerializationError
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Failed, Run, Spec
from taskmesh.security.keys import KeyFolder, credentials_of
from taskmesh.sockets import raw_key
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.side_port import ask, bearer
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.abuse.siege import Siege
from tests.hosting.intruder import FalsePool, Meet

pytestmark = pytest.mark.timeout(120)


class Bomb:
    """What makes a file as soon as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "unpickled"


@pytest.mark.smoke
def test_A15_a_hub_unpickles_nothing_that_comes_to_it(keyed: Cluster, meet: Meet, marker: Path):
    bomb = pickle.dumps(Bomb(marker))
    client, pool = meet("client", "mallory"), FalsePool(meet("worker", "mallory"))
    spec = Spec(bomb, "bomb", queue="nobody", retry_filter=bomb)
    welcome, _ = pool.join("false")
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        assert isinstance(client.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        number = spec_number(spec)
        submit = m.Submit(1, [(number, spec)], [Run(number, 0, [1, 2], [bomb, bomb])])
        assert client.ask(submit) == m.Accepted(1)
        done = DoneRun(number, 7, 1, "false/0", [1], [bomb], 0.1)
        failed = Failed(7, 2, 1, "exception", pickled=bomb, type_name="os.system", text=f"touch {marker}")
        pool.say(m.Results(welcome.epoch, welcome.session, 1, [done], [failed], []))
        for number, what in enumerate(("status", "pools", "tasks", "events"), 1):
            assert isinstance(client.ask(m.Query(number, what)), m.Answer)
        assert "bomb" in str(client.ask(m.Query(9, "task", f"{7:016x}{1:016x}")))
    pickle.loads(bomb)  # it does go off
    assert marker.exists()


@pytest.fixture
def answered(keyed: Cluster, false_pool: FalsePool) -> Callable[..., TaskFuture[object]]:
    """A task whose pool answers with this payload, or this failure."""

    def answer(mesh: Mesh, payload: bytes, **failure: object) -> TaskFuture[object]:
        future = mesh.with_options(queue="false").submit(workload.add, 1, 2)
        tasks = false_pool.serve("false", "false")
        (run,) = tasks.runs
        done, failed = [], []
        if failure:
            failed = [Failed(run.client, run.seqs[0], run.attempt, "exception", pickled=payload, **failure)]
        else:
            done = [DoneRun(run.spec, run.client, run.attempt, "false/0", run.seqs, [payload], 0.1)]
        false_pool.say(m.Results(tasks.epoch, tasks.session, 1, done, failed, []))
        return future

    return answer


def test_A15_an_unsigned_result_is_not_unpickled(keyed: Cluster, answered, marker: Path):
    with keyed.mesh() as mesh:
        error = answered(mesh, pickle.dumps(Bomb(marker))).exception(20)

    assert isinstance(error, BadSignature)
    assert not marker.exists()


def test_A15_a_client_that_wants_plain_data_gets_a_typed_error(keyed: Cluster, answered, marker: Path):
    (Path(keyed.client) / "mesh.secret").unlink()  # nothing is signed, so only the codec stands in the way
    with keyed.mesh(result_codec="safe") as mesh:
        error = answered(mesh, pickle.dumps(Bomb(marker))).exception(20)

    assert type(error) is SerializationError
    assert "no plain data" in str(error)
    assert not marker.exists()


@pytest.mark.parametrize("codec", ["pickle", "safe"])
def test_A16_a_failure_names_a_function_and_nobody_calls_it(
    keyed: Cluster, answered, marker: Path, codec: str
):
    bomb = pickle.dumps(Bomb(marker))
    with keyed.mesh(result_codec=codec) as mesh:
        future = answered(mesh, bomb, type_name="os.system", text=f"touch {marker}", traceback="none")
        error = future.exception(20)

    assert type(error) is RemoteError
    assert str(error) == f"os.system: touch {marker}"
    assert not marker.exists()


def test_A19_secrets_are_nowhere_but_in_their_files(programs: Programs, ring: Ring, tmp_path: Path):
    """Not in output, command lines, environments, figures, views, errors, or the repr of objects."""
    token = tmp_path / "token"
    token.write_text(canary := secrets.token_hex(16))
    token.chmod(0o600)
    side = ("--http", "127.0.0.1:0", "--http-token-file", str(token))
    hub = programs.start("hub", "--bind", "tcp://127.0.0.1:0", "--keys", str(ring.hub.path), "--json", *side)
    address = hub.ready()["gateway"]
    programs.worker(address, "--keys", ring.peer("worker", "first"))
    folder = ring.peer("client", "alice")
    operator = ring.peer("operator", "boss")
    wait_until(lambda: '"event": "http"' in hub.errors)
    port = next(json.loads(line)["address"] for line in hub.errors.splitlines() if '"event": "http"' in line)
    with Mesh(address, keys=folder, open_timeout=20) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        shown = [
            repr(mesh.submit(workload.refuse, "no").exception(20)),
            json.dumps(mesh.status()),
            json.dumps(mesh.events()),
            repr(vars(mesh)),
        ]
    credentials = credentials_of(folder, "client")
    way = [repr(each) for each in (credentials, credentials.pair, KeyFolder(folder), ring.hub)]
    shown += [*way, str(ask(f"{port}/metrics", **bearer(canary))), str(ask(f"{port}/metrics"))]
    for line in (
        ("keys", "show", "--keys", folder),
        ("keys", "show", "--keys", str(ring.hub.path), "--json"),
        ("status", "--address", address, "--keys", operator, "--json"),
        ("status", "--address", address),
        ("keys", "new", "client", "--keys", folder),
    ):
        outcome = programs.run(*line)
        shown += [outcome.stdout, outcome.stderr]
    shown += [file.read_text() for file in programs.folder.glob("*.[oe][ur]*")]
    for program in programs.started:
        shown += [Path(f"/proc/{program.pid}/{what}").read_text() for what in ("cmdline", "environ")]
    canaries = [
        line
        for file in ring.folder.rglob("*.secret")
        for line in file.read_text().splitlines()
        if not line.startswith("# ")
    ]

    canaries += [repr(raw_key(text.encode()))[2:-1] for text in canaries]
    assert len(canaries) >= 10
    assert len(shown) > 15
    assert not [one for one in (*canaries, canary) for text in shown if one in text]
