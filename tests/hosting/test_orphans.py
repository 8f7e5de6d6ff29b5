"""Threads that tasks leave behind submit tasks of their own."""

from taskmesh import Mesh
from tests.hosting import orphans


def test_a_thread_that_a_task_has_left_behind_takes_no_tasks_from_its_slot():
    with Mesh(workers=1) as mesh:
        mesh.submit(orphans.leave_thread).result(20)

        futures = [mesh.submit(orphans.add, number, 1) for number in range(20_000)]

        assert sum(future.result(20) for future in futures) == 200_010_000
