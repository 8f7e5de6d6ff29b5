"""V2: pools serve every hub that they are given, so no split between clients and pools can stay."""

import contextlib
import logging

import pytest

from taskmesh import Mesh
from tests.harness.cluster import pool_states
from tests.harness.journal import words
from tests.harness.program import Program
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.net import nested, workload

pytestmark = pytest.mark.fault

TCP = "tcp://127.0.0.1:0"
LEASE = {"TASKMESH_HUB__LEASE": "2", "TASKMESH_HUB__BEAT": "0.2"}
CONFIG = {"hub": {"lease": 2, "beat": 0.2}}


class Pair:
    """Two hubs and a worker of both."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.first, self.one = programs.hub(TCP, **LEASE)
        self.second, self.two = programs.hub(TCP, **LEASE)
        both = ["--address", self.one, "--address", self.two]
        self.worker = programs.start(
            "worker", *both, "--name", "p", "--concurrency", "2", "--json", env=LEASE
        )
        self.worker.ready()
        self.wait_served(self.one)
        self.wait_served(self.two)

    def wait_served(self, address: str) -> None:
        with Mesh(address, config=CONFIG) as mesh:
            wait_until(lambda: pool_states(mesh) == {"p": "ready"}, 20)

    def start_first(self) -> Program:
        self.first, address = self.programs.hub(self.one, **LEASE)
        assert address == self.one
        return self.first

    def mesh(self) -> Mesh:
        return Mesh([self.one, self.two], config=CONFIG)

    def hubs_away(self, address: str) -> list[str]:
        status = rows(self.programs.run("status", "--address", address, "--json"))
        return list(status["pools"][0]["hubs_away"])


@pytest.fixture
def pair(programs: Programs) -> Pair:
    return Pair(programs)


def test_every_hub_has_the_pool_and_runs_tasks(pair):
    for address in (pair.one, pair.two):
        with Mesh(address, config=CONFIG) as mesh:
            assert [mesh.submit(workload.add, n, 1).result(20) for n in range(20)] == list(range(1, 21))


@pytest.mark.parametrize("moved", [0, 3])
def test_after_a_restart_of_the_first_nobody_waits_for_ever(pair, caplog, moved: int):
    """It was away for a moment, or until all clients had moved; they may be at either of them then."""
    caplog.set_level(logging.WARNING, "taskmesh")
    with contextlib.ExitStack() as closing:
        meshes = [closing.enter_context(pair.mesh()) for _ in range(3)]
        for mesh in meshes:
            assert mesh.submit(workload.add, 1, 1).result(20) == 2
        pair.first.kill()
        futures = [mesh.submit(workload.add, n, 1) for mesh in meshes for n in range(20)]
        wait_until(lambda: caplog.text.count("has moved to") >= moved, 30)
        pair.start_first()

        assert [future.result(30) for future in futures] == 3 * list(range(1, 21))
        for mesh in meshes:
            assert mesh.submit(workload.add, 2, 2).result(30) == 4
    with pair.mesh() as late:
        assert late.submit(workload.add, 3, 3).result(20) == 6
    with Mesh(pair.one, config=CONFIG) as late:
        assert late.submit(workload.add, 3, 3).result(20) == 6


def test_a_hub_that_is_away_is_told_of_and_costs_the_other_nothing(pair):
    pair.first.kill()
    wait_until(lambda: pair.hubs_away(pair.two) == [pair.one], 20)
    wait_until(lambda: "served meanwhile" in pair.worker.errors, 20)
    text = pair.programs.run("status", "--address", pair.two).stdout
    assert f"hubs:     pool p serves no other as well; away: {pair.one}" in text
    with Mesh(pair.two, config=CONFIG) as mesh:
        assert [mesh.submit(workload.add, n, 1).result(20) for n in range(20)] == list(range(1, 21))
    pair.start_first()

    wait_until(lambda: pair.hubs_away(pair.two) == [], 20)
    wait_until(lambda: "rejoined" in pair.worker.errors, 20)


def test_what_a_client_that_has_left_gave_to_one_hub_runs_there(pair, tmp_path):
    """The other hub is lost for good meanwhile."""
    journal = tmp_path / "journal"
    with Mesh(pair.two, config=CONFIG) as mesh:
        for n in range(5):
            mesh.submit(workload.note, str(journal), str(n))
        mesh.flush(20)
        pair.first.kill()
    wait_until(lambda: sorted(words(journal)) == list("01234"), 20)


def test_a_worker_leaves_all_hubs(pair):
    pair.worker.signal(15)

    assert pair.worker.wait() == 0
    for address in (pair.one, pair.two):
        with Mesh(address, config=CONFIG) as mesh:
            assert pool_states(mesh) == {}


def test_tasks_that_submit_tasks_go_to_their_own_hub(pair):
    with Mesh(pair.two, config=CONFIG) as mesh:
        assert mesh.submit(nested.squares, 3).result(30) == 5
        assert mesh.status()["accepted"] == 4
