"""A worker that runs functions of named modules alone."""

import os
from collections.abc import Iterator

import pytest

from taskmesh import Mesh, task
from taskmesh.errors import FunctionUnavailable
from tests.harness.programs import Programs
from tests.hosting import workload

registered = task(workload.add)


@pytest.fixture
def mesh(programs: Programs) -> Iterator[Mesh]:
    address = programs.hub()[1]
    programs.worker(address, "--only-registered", "tests.hosting.workload", "json")
    with Mesh(address) as mesh:
        yield mesh


def test_functions_of_the_named_modules_run(mesh: Mesh):
    import json.decoder

    assert mesh.submit(workload.add, 1, 2).result(20) == 3
    assert registered.submit(2, 2).result(20) == 4
    assert mesh.submit(json.loads, "[1]").result(20) == [1]
    assert list(mesh.map(workload.add, range(20), range(20), timeout=20)) == list(range(0, 40, 2))


def test_other_functions_are_refused_and_the_worker_names_those_that_it_runs(mesh: Mesh):
    step = 1
    for function in (os.getcwd, lambda: step, os.path.abspath):
        error = mesh.submit(function).exception(20)

        assert isinstance(error, FunctionUnavailable)
        assert "this worker runs functions of tests.hosting.workload, json alone" in str(error)
    assert mesh.submit(workload.add, 1, 2).result(20) == 3


def imported_elsewhere() -> None:
    """Stands for what a named module has imported from one that is not named."""


def test_what_a_named_module_has_imported_is_not_its_own(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(imported_elsewhere, "__module__", "tests.hosting.workload")
    monkeypatch.setattr(imported_elsewhere, "__qualname__", "wait_until")
    monkeypatch.setattr(workload, "wait_until", imported_elsewhere)

    error = mesh.submit(imported_elsewhere).exception(20)

    assert isinstance(error, FunctionUnavailable)
    assert "wait_until of module tests.harness.waiting is not run here" in str(error)
