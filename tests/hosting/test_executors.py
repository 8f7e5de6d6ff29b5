"""Executors of real meshes: what a shutdown cancels when slots have thousands of tasks ahead."""

import pytest

from taskmesh import Mesh
from tests.harness.journal import words
from tests.harness.waiting import wait_until
from tests.hosting import workload

SLOTS = 4
TASKS = 40_000


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "tcp"])
def test_shutdown_cancels_all_but_what_runs(programs, tmp_path, embedded):
    """More than 10,000 tasks with slots or on their way to them: none at all was cancelled."""
    address = None
    if not embedded:
        address = programs.hub()[1]
        programs.worker(address, slots=SLOTS)
    journal, gate = tmp_path / "journal", tmp_path / "gate"

    def submit(executor, numbers):
        return [executor.submit(workload.stop_at, number, str(journal), str(gate)) for number in numbers]

    with Mesh(address, workers=None if address else SLOTS) as mesh:
        known = submit(mesh, range(2000))  # how long one takes: that decides how many are handed out ahead
        assert [future.result(20) for future in known] == list(range(2000))
        executor = mesh.executor()
        futures = submit(executor, [-1] * SLOTS + list(range(TASKS)))
        wait_until(lambda: words(journal) == ["held"] * SLOTS)

        executor.shutdown(wait=False, cancel_futures=True)
        wait_until(lambda: all(future.done() for future in futures[SLOTS:]))

        assert words(journal) == ["held"] * SLOTS
        assert not any(future.done() for future in futures[:SLOTS])
        cancelled = [future.cancelled() for future in futures[SLOTS:]]
        assert cancelled.count(True) > 1000
        results = [future.result() for future in futures[SLOTS:] if not future.cancelled()]
        assert results == [number for number, gone in enumerate(cancelled) if not gone]
        gate.touch()
        assert [future.result(20) for future in futures[:SLOTS]] == [-1] * SLOTS
        assert submit(mesh, [7])[0].result(20) == 7
