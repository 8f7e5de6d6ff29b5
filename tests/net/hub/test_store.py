"""A hub with a store, of real processes: what it keeps outlives it, and Redis may go and come as it likes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.net.child_hub import command
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.program import ROOT
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer
from tests.harness.side_port import samples
from tests.harness.waiting import wait_until
from tests.net import workload
from tests.net.keeping import hub_with, keep, store, stored

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

TCP = "tcp://127.0.0.1:0"


def url_file(folder: Path, url: str, mode: int = 0o600) -> str:
    file = folder / "store-url"
    file.write_text(url + "\n")
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_hub_killed_and_replaced_answers_without_running_it_again(
    programs: Programs, server: RedisServer, tmp_path: Path, transport: str
):
    bind = TCP if transport == "tcp" else f"ipc://{tmp_path}/hub"
    hub, address = hub_with(programs, server, bind)
    programs.worker(address)
    journal = str(tmp_path / "journal")
    with Mesh(address) as mesh:
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(20) == "once"
        assert keep(mesh, workload.large, (journal, 1_000_000), "l").result(20) == bytes(1_000_000)
        stored(mesh, 2)

        hub.kill()
        hub_with(programs, server, address)

        assert keep(mesh, workload.noted, (journal, "once"), "k").result(60) == "once"
        with Mesh(address) as other:
            assert keep(other, workload.large, (journal, 1_000_000), "l").result(20) == bytes(1_000_000)
            assert store(other)["loaded"] == 2
    assert words(Path(journal)) == ["once", "large"]


def test_a_hub_that_ends_writes_what_waits_and_one_without_a_store_knows_nothing(
    programs: Programs, server: RedisServer, tmp_path: Path
):
    hub, address = hub_with(programs, server)
    programs.worker(address)
    journal = str(tmp_path / "journal")
    with Mesh(address) as mesh:
        futures = [keep(mesh, workload.noted, (journal, f"{n}"), f"k{n}") for n in range(50)]
        assert [future.result(20) for future in futures] == [f"{n}" for n in range(50)]
        hub.signal(signal.SIGTERM)
        assert hub.wait() == 0
        assert len(server.stored()) == 50

        second, _ = programs.hub(address, TASKMESH_LEASE="3")
        assert keep(mesh, workload.noted, (journal, "0"), "k0").result(60) == "0"
        assert mesh.status()["store"] == {}
        second.kill()
        hub_with(programs, server, address)
        assert keep(mesh, workload.noted, (journal, "1"), "k1").result(60) == "1"

    assert words(Path(journal)).count("0") == 2
    assert words(Path(journal)).count("1") == 1


def test_what_is_over_is_run_again(programs: Programs, server: RedisServer, tmp_path: Path):
    hub, address = hub_with(programs, server)
    programs.worker(address)
    journal = str(tmp_path / "journal")
    with Mesh(address) as mesh:
        assert keep(mesh, workload.noted, (journal, "once"), "k", seconds=2.0).result(20) == "once"
        stored(mesh, 1)
        hub.kill()
        wait_until(lambda: not server.stored(), 10, "it has expired")
        hub_with(programs, server, address)

        assert keep(mesh, workload.noted, (journal, "once"), "k", seconds=2.0).result(60) == "once"

    assert words(Path(journal)) == ["once", "once"]


def test_redis_killed_and_started_again_under_the_hub(
    programs: Programs, server: RedisServer, tmp_path: Path
):
    hub, address = hub_with(programs, server)
    programs.worker(address)
    journal = str(tmp_path / "journal")
    with Mesh(address) as mesh:
        server.kill()
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(20) == "once"
        wait_until(lambda: store(mesh)["state"] == "away", 10)
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(20) == "once"
        server.start()
        stored(mesh, 1, 20)
        assert store(mesh)["state"] == "connected"

        hub.kill()
        hub_with(programs, server, address)
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(60) == "once"

    assert words(Path(journal)) == ["once"]
    assert '"event": "store.away"' in hub.errors


def test_tasks_go_on_while_redis_stands_still(programs: Programs, server: RedisServer, tmp_path: Path):
    _, address = hub_with(programs, server)
    programs.worker(address)
    journal = str(tmp_path / "journal")
    slowest, count = 0.0, 0
    with Mesh(address) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        server.freeze()
        try:
            frozen = time.monotonic()
            while time.monotonic() - frozen < 5.5:
                began = time.monotonic()
                assert keep(mesh, workload.noted, (journal, f"{count}"), f"k{count}").result(20) == f"{count}"
                slowest, count = max(slowest, time.monotonic() - began), count + 1
            assert store(mesh)["dropped"] == 0
        finally:
            server.thaw()
        stored(mesh, count, 30)

    assert count > 20
    assert slowest < 2.0  # a busy machine's own; a hub that waited for Redis would take five
    assert len(server.stored()) == count


def test_a_hub_does_not_wait_long_for_a_redis_that_does_not_answer(programs: Programs, server: RedisServer):
    server.freeze()
    try:
        began = time.monotonic()
        hub, address = hub_with(programs, server)
        assert 5.0 <= time.monotonic() - began < 12
        programs.worker(address)
        with Mesh(address) as mesh:
            assert mesh.submit(workload.add, 1, 2).result(20) == 3
            assert store(mesh)["state"] == "away"
            server.thaw()
            wait_until(lambda: store(mesh)["state"] == "connected", 20)
    finally:
        server.thaw()
    assert '"event": "store.not_loaded"' in hub.errors


def test_a_wrong_password_is_a_warning_with_the_cure_and_a_new_one_in_the_file_is_taken(
    programs: Programs, locked: RedisServer, tmp_path: Path
):
    file = url_file(tmp_path, locked.full_url.replace("right-and-secret", "wrong-and-secret"))
    program = programs.start("hub", "--bind", TCP, "--store-file", file, "--json")
    address = program.ready()["gateway"]
    programs.worker(address)
    with Mesh(address) as mesh:
        assert "refuses user or password" in store(mesh)["why"]
        assert keep(mesh, workload.noted, (str(tmp_path / "journal"), "once"), "k").result(20) == "once"
        url_file(tmp_path, locked.full_url)
        stored(mesh, 1, 20)
        shown = [json.dumps(mesh.status()), json.dumps(mesh.events())]
    assert '"event": "store.away"' in program.errors
    outcome = programs.run("status", "--address", address)
    shown += [outcome.stdout, program.errors, program.out.read_text()]
    shown += [Path(f"/proc/{program.pid}/{what}").read_text() for what in ("cmdline", "environ")]

    assert f"store:    {locked.url} is connected: 1 stored, 0 waiting, 0 dropped" in outcome.stdout
    assert not [text for text in shown if "and-secret" in text]


def test_its_figures(programs: Programs, server: RedisServer, tmp_path: Path):
    program = programs.start("hub", "--bind", TCP, "--store", server.url, "--http", "127.0.0.1:0", "--json")
    address = program.ready()["gateway"]
    wait_until(lambda: '"event": "http"' in program.errors, 10)
    lines = map(json.loads, program.errors.splitlines())
    side = next(line["address"] for line in lines if line["event"] == "http")
    programs.worker(address)
    with Mesh(address) as mesh:
        keep(mesh, workload.noted, (str(tmp_path / "journal"), "once"), "k").result(20)
        stored(mesh, 1)
        found = samples(side)

    assert found["taskmesh_store_connected"] == 1
    assert found["taskmesh_store_waiting"] == 0
    assert found['taskmesh_store_entries_total{what="stored"}'] == 1
    assert found['taskmesh_store_entries_total{what="dropped"}'] == 0


# --- keys -------------------------------------------------------------------------------------------------


def test_a_signed_result_answers_another_client_after_the_hub_was_replaced(
    keyed_store: Cluster, tmp_path: Path
):
    journal = str(tmp_path / "journal")
    with keyed_store.mesh() as mesh:
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(20) == "once"
        stored(mesh, 1)

    keyed_store.hub.kill()
    keyed_store.start_hub()

    with keyed_store.mesh(keyed_store.keys("client", "bob")) as mesh:
        assert keep(mesh, workload.noted, (journal, "once"), "k").result(20) == "once"
    assert words(Path(journal)) == ["once"]


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "env", "cure"),
    [
        (("--store", "redis://:hush-hush@127.0.0.1:1/0"), {}, "--store-file FILE"),
        ((), {"TASKMESH_STORE": "redis://:hush-hush@127.0.0.1:1/0"}, "--store-file FILE"),
        (
            ("--store", "redis://127.0.0.1:1/0", "--store-file", "FILE"),
            {},
            "either hub.store or hub.store_file",
        ),
        (("--store-file", "FILE"), {}, "chmod 600"),
        (("--store-file", "nowhere"), {}, "cannot be read"),
        (("--store", "memcached://127.0.0.1"), {}, "write redis://HOST:PORT/DB"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_with_the_cure(programs, tmp_path, line, env, cure):
    file = url_file(tmp_path, "redis://:hush-hush@127.0.0.1:1/0", 0o644)
    line = [file if part == "FILE" else part for part in line]

    outcome = programs.run("hub", "--bind", TCP, *line, env=env)

    assert outcome.returncode == 2, outcome.stderr
    assert cure in outcome.stderr
    assert "hush-hush" not in outcome.stderr + outcome.stdout


def test_without_the_client_s_package_the_cure_is_told(programs: Programs, tmp_path: Path):
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "redis.py").write_text("raise ModuleNotFoundError('no redis', name='redis')\n")
    path = os.pathsep.join(map(str, (tmp_path / "shadow", ROOT)))

    outcome = programs.run("hub", "--bind", TCP, "--store", "redis://127.0.0.1:1/0", env={"PYTHONPATH": path})

    assert outcome.returncode == 2
    assert "pip install 'taskmesh[redis]'" in outcome.stderr


def test_a_hub_of_one_program_s_own_has_no_store(tmp_path: Path):
    settings = {"hub": {"store": "redis://:hush-hush@127.0.0.1:1/0"}}
    with Mesh(workers=1, hub="process", config=settings, open_timeout=20) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        assert mesh.status()["store"] == {}
        line = command(mesh._client.config, "ipc:///nowhere/hub", str(tmp_path), -1)

    assert "hush-hush" not in " ".join(line)
