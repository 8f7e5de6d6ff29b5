"""Dead letters of a real hub, on the command line: shown, run again and forgotten."""

import json
from pathlib import Path

import pytest

from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}


@pytest.fixture
def cluster(programs, settings) -> Cluster:
    cluster = Cluster(programs)
    cluster.start_hub(settings)
    cluster.start_worker("first")
    return cluster


def dead(cluster: Cluster, *words: str) -> object:
    told = cluster.programs.run("dead", *words, "--address", cluster.address, "--json")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.smoke
def test_a_letter_is_shown_and_run_again_by_the_next_hub(cluster, settings, tmp_path: Path):
    gate = tmp_path / "gate"
    with cluster.mesh() as mesh:
        failing = mesh.with_options(detach=True, retries=1).submit(workload.fail_until, str(gate))
        mesh.flush()
    wait_until(lambda: dead(cluster, "list"), END_S, "it has failed")
    cluster.hub.kill()
    cluster.start_hub(settings)

    (row,) = dead(cluster, "list", "--task", "fail_until")
    assert (row["task_id"], row["attempts"]) == (failing.task_id, 2)
    told = dead(cluster, "show", failing.task_id)
    assert told["type"] == "tests.hosting.workload.Refusal"
    assert "no gate" in told["traceback"]
    assert "looked for the gate" in told["output"]

    gate.touch()
    (replay,) = dead(cluster, "replay", "--all")
    with cluster.mesh() as mesh:
        assert mesh.attach(replay["task_id"]).result(END_S) == 1
        (again,) = dead(cluster, "replay", failing.task_id)
        assert mesh.attach(again["task_id"]).result(END_S) == 1, "the letter was not run once more"
    assert dead(cluster, "purge", failing.task_id) == {"purged": 1}
    assert dead(cluster, "list") == []


def test_for_people_and_for_nobody(cluster, programs):
    at = ("--address", cluster.address)
    with cluster.mesh() as mesh:
        failing = mesh.with_options(detach=True).submit(workload.refuse, "because")
        mesh.flush()
    wait_until(lambda: dead(cluster, "list"), END_S, "it has failed")

    shown = programs.run("dead", "show", failing.task_id, *at).stdout
    assert "failed" in shown
    assert "Refusal: because" in shown
    assert "workload.refuse" in programs.run("dead", "list", *at).stdout
    assert "no dead letters" in programs.run("dead", "list", "--task", "other", *at).stderr
    unknown = programs.run("dead", "show", "0" * 32, *at)
    assert (unknown.returncode, "taskmesh dead list" in unknown.stderr) == (1, True)
    nothing = programs.run("dead", "purge", *at)
    assert (nothing.returncode, "--all" in nothing.stderr) == (2, True)
