"""Workers and clients that have another cloudpickle than the hub: by policy, and what status shows."""

import os
import shutil
from pathlib import Path

import cloudpickle
import pytest

from tests.harness.program import ROOT
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until

TCP = "tcp://127.0.0.1:0"
WORK = "tests.hosting.workload"


@pytest.fixture
def other(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds another cloudpickle first."""
    package = tmp_path / "site" / "cloudpickle"
    shutil.copytree(Path(cloudpickle.__file__).parent, package)
    source = (package / "__init__.py").read_text().replace(cloudpickle.__version__, "1.2.3")
    (package / "__init__.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([str(package.parent), str(ROOT)])}


def test_by_default_status_warns_and_the_pool_works(programs: Programs, other):
    address = programs.hub(TCP)[1]
    programs.worker(address, "--name", "odd", **other)

    outcome = programs.run("status", "--address", address)

    assert "! pool odd: it has cloudpickle 1.2.3 where the hub has" in outcome.stdout
    done = programs.run("submit", f"{WORK}:add", "1", "2", "--address", address)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_refused_pools_end_and_are_shown_with_the_reason(programs: Programs, other):
    hub, address = programs.hub(TCP, TASKMESH_VERSIONS="refuse")
    odd = programs.start("worker", "--address", address, "--name", "odd", "--json", env=other)

    assert odd.wait(20) == 1
    assert "the hub refuses this pool: it has cloudpickle 1.2.3" in odd.text()
    status = programs.run("status", "--address", address)
    assert "! pool odd is not let in: it has cloudpickle 1.2.3" in status.stdout
    assert '"event": "pool.refused"' in wait_until(lambda: hub.errors)
    assert rows(programs.run("pool", "list", "--address", address, "--json")) == []
