"""The worker program: its settings, its modules, its lines."""

import signal

import pytest

import taskmesh.pool.modules
import taskmesh.pool.program
from taskmesh.cli.application import app
from taskmesh.cli.command import DEFAULT_ADDRESS
from tests.harness.programs import Programs, rows


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def read(monkeypatch):
    """Reads a line of `taskmesh worker`; returns the arguments of `run_pool`."""
    run = {}

    def run_pool(config, **given):
        run.update(given, config=config)
        return True

    def read(*line):
        app(["worker", *line], standalone_mode=False)
        return run

    monkeypatch.setattr(taskmesh.pool.program, "run_pool", run_pool)
    monkeypatch.setattr(taskmesh.pool.modules, "check_modules", lambda modules: None)
    return read


def test_options_and_modules_may_come_in_any_order(read):
    found = read("json", "--concurrency", "3", "json.tool", "--queues", "a,b", "--tags", "gpu", "--json")

    assert tuple(found["options"].modules) == ("json", "json.tool")
    pool = found["config"].pool
    assert (pool.concurrency, pool.queues, pool.tags) == (3, ("a", "b"), ("gpu",))


def test_an_option_takes_several_modules_up_to_the_next_option(read):
    found = read("csv", "--only-registered", "json", "json.tool", "--name", "mine", "math")

    assert found["config"].pool.only_registered == ("json", "json.tool")
    assert (tuple(found["options"].modules), found["name"]) == (("csv", "math"), "mine")


def test_the_hub_is_the_one_that_is_named_or_the_default(read):
    assert read("--address", "ipc://a")["config"].mesh.address == "ipc://a"
    assert read()["config"].mesh.address == DEFAULT_ADDRESS


def test_the_command_line_wins_over_environment_and_file(folder, monkeypatch, read):
    (folder / "taskmesh.toml").write_text('[pool]\nqueues = ["file"]\ntags = ["file"]\ngrace = 7\n')
    monkeypatch.setenv("TASKMESH_QUEUES", "environment")
    monkeypatch.setenv("TASKMESH_TAGS", "environment")

    pool = read("--queues", "line")["config"].pool

    assert (pool.queues, pool.tags, pool.grace) == (("line",), ("environment",), 7.0)


def test_a_named_file_is_used_in_place_of_the_one_that_is_found(folder, read):
    (folder / "taskmesh.toml").write_text("[pool]\ngrace = 7\n")
    (folder / "other.toml").write_text("[pool]\ngrace = 8\n")

    assert read("--config", "other.toml")["config"].pool.grace == 8.0


def test_wrong_values_are_told_with_what_was_expected(read, capsys):
    with pytest.raises(SystemExit):
        app(["worker", "--concurrency", "-1"])

    assert "whole number of slots" in capsys.readouterr().err


@pytest.mark.smoke
def test_the_ready_line_tells_pool_slots_and_hub(programs: Programs):
    address = programs.hub()[1]
    worker = programs.worker(address, "--name", "mine", "--queues", "a,b", "--tags", "gpu", slots=2)

    found = worker.ready()

    assert found == {
        "time": found["time"],
        "event": "ready",
        "pool": "mine",
        "slots": 2,
        "queues": ["a", "b"],
        "tags": ["gpu"],
        "address": address,
        "pid": worker.pid,
    }
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.errors.count('"event": "draining"') == 1


def test_a_module_that_cannot_be_imported_is_exit_code_2(programs: Programs):
    outcome = programs.run("worker", "no.such.module")

    assert outcome.returncode == 2
    assert "contains 'no'" in outcome.stderr
    assert outcome.stdout == ""


def test_modules_are_imported_in_slots_before_the_first_task(programs: Programs):
    (programs.folder / "ours.py").write_text(
        "import os, pathlib\npathlib.Path('imported').open('a').write(f'{os.getpid()}\\n')\n"
        "def answer():\n    return os.getpid()\n"
    )
    address = programs.hub()[1]
    programs.worker(address, "ours", slots=1)
    outcome = programs.run("submit", "ours:answer", "--address", address, "--json")

    slot = rows(outcome)["result"]
    assert str(slot) in (programs.folder / "imported").read_text().split()


def test_a_pool_of_another_name_beside_the_first(programs: Programs):
    address = programs.hub()[1]
    for name in ("pool.a", "pool.a.b"):
        programs.worker(address, "--name", name)

    assert programs.run("drain", "pool.a", "--address", address).returncode == 0

    first, second = programs.started[1:]
    assert first.wait() == 0
    assert second.process.poll() is None
    listed = rows(programs.run("pool", "list", "--address", address, "--json"))
    assert [pool["pool"] for pool in listed] == ["pool.a.b"]
