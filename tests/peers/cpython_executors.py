"""CPython's own tests of executors, on `MeshExecutor` in each mode of its pool.

`make test-peers` fetches and runs them; those that need what a mesh has not are in refused.txt.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import test_concurrent_futures as cpython

from taskmesh import MeshExecutor
from taskmesh.errors import TaskMeshError, WorkerCrashed

WAIT_S = 30
run_program: Callable[..., Any] = cpython.assert_python_ok


def run_on_mesh(option: str, program: str) -> Any:
    """Run a program of CPython's that makes an executor, with one of a mesh."""
    program = program.replace("concurrent.futures import Mesh", "taskmesh import Mesh")
    return run_program(
        option,
        program.replace("test.test_concurrent", "test_concurrent"),
        PYTHONPATH=os.environ["PYTHONPATH"],
    )


cpython.assert_python_ok = run_on_mesh
cpython.BrokenProcessPool = WorkerCrashed


class OnMesh(cpython.ExecutorMixin):  # type: ignore[misc]  # CPython's tests have no types
    """An executor for each test."""

    executor_type = MeshExecutor
    mode: str

    def setUp(self) -> None:
        os.environ["TASKMESH_MODE"] = self.mode
        self.addCleanup(os.environ.pop, "TASKMESH_MODE")
        super().setUp()

    def get_context(self) -> None:
        """Return no context of multiprocessing: slots have none."""


class Calls(cpython.ExecutorTest):  # type: ignore[misc]
    """Those of all executors, and the one of process pools that looks at no process."""

    test_map_chunksize = cpython.ProcessPoolExecutorTest.test_map_chunksize


class Deadlocks(cpython.ExecutorDeadlockTest):  # type: ignore[misc]
    """Each of CPython's crashes ends its call; theirs may break the executor, and ours has to go on."""

    def _check_crash(self, _: object, function: Any, *args: Any, **__: object) -> None:
        with pytest.raises((TaskMeshError, RuntimeError)):
            self.executor.submit(function, *args).result(WAIT_S)
        assert self.executor.submit(pow, 2, 3).result(WAIT_S) == 8


SUITES = {
    "Waits": cpython.WaitTests,
    "AsCompleted": cpython.AsCompletedTests,
    "Calls": Calls,
    "Initializer": cpython.InitializerMixin,
    "Shutdown": cpython.ExecutorShutdownTest,
    "Deadlocks": Deadlocks,
}
for mode in ("process", "thread", "async"):
    for name, suite in SUITES.items():
        case = f"Test{name}{mode.capitalize()}"
        globals()[case] = type(case, (suite, OnMesh, unittest.TestCase), {"mode": mode})
