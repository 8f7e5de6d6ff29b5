"""An embedded mesh with a journal: its process is killed, and another one goes on."""

from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError, TaskMeshError
from tests.harness.programs import Programs
from tests.hosting import workload

END_S = 30

DYING = """
import os, sys
from taskmesh import Mesh
from tests.hosting import workload
if __name__ == "__main__":
    with Mesh(workers=1, hub=sys.argv[1], journal=sys.argv[2]) as mesh:
        held = mesh.submit(workload.hold, sys.argv[3], "word", sys.argv[4])
        tasks = [mesh.submit(workload.add, number, 1) for number in range(20)]
        mesh.flush()
        print(*[task.task_id for task in (held, *tasks)], flush=True)
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("hub", ["thread", "process"])
def test_tasks_outlive_the_process_of_the_mesh(programs: Programs, tmp_path: Path, hub: str):
    journal, log, gate = (str(tmp_path / name) for name in ("tasks.journal", "log", "gate"))
    dying = programs.launch("dying", ("-c", DYING, hub, journal, log, gate))
    dying.wait(END_S)
    ids = dying.text().split()
    Path(gate).touch()
    with Mesh(workers=1, hub=hub, journal=journal, lease=2.0, beat=0.2) as mesh:
        found = [mesh.attach(task_id) for task_id in ids]
        assert [future.result(END_S) for future in found] == ["word", *range(1, 21)]
        assert mesh.submit(workload.add, 1, 1).result(END_S) == 2
    ran = Path(log).read_text()
    with Mesh(workers=1, journal=journal) as mesh:
        assert not any(mesh.status()["tasks"].values())
        assert [mesh.attach(task_id).result(END_S) for task_id in ids] == ["word", *range(1, 21)]
    assert Path(log).read_text() == ran


def test_a_journal_at_an_address_is_refused_with_the_cure(tmp_path: Path):
    with pytest.raises(ConfigError, match="taskmesh hub --journal"):
        Mesh("tcp://127.0.0.1:1", journal=tmp_path / "tasks.journal")


def test_a_journal_of_the_environment_is_the_hub_programs(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TASKMESH_JOURNAL", str(tmp_path / "tasks.journal"))
    with Mesh(workers=1) as mesh:
        assert mesh.submit(workload.add, 1, 1).result(END_S) == 2

    assert not (tmp_path / "tasks.journal").exists()


@pytest.mark.parametrize("hub", ["thread", "process"])
def test_strict_without_a_journal_is_refused(hub: str):
    with pytest.raises(TaskMeshError, match=r"hub\.strict is about a journal"):
        Mesh(workers=1, hub=hub, strict=True).submit(abs, -1)
