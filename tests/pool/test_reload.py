"""`--watch`: slots run an edited module soon, and go on with the old one if the new one is broken."""

import importlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from taskmesh import Mesh
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.reload import LOOK, CodeWatch, code_folders, python_files
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

WAIT_S = 60
SAVES = 100
MODULE = "edited_tasks"
CODE = """\
from taskmesh import current_task, task

{extra}

@task
def version() -> tuple[int, int]:
    return {number}, current_task().attempt
"""


class Module:
    """A module that is edited while tasks of it run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{MODULE}.py"
        self.save(0)

    def save(self, number: int, extra: str = "") -> None:
        """Save it as editors do: no import sees half of a file."""
        new = self._file.with_suffix(".new")
        new.write_text(CODE.format(number=number, extra=extra))
        new.replace(self._file)

    def load(self) -> ModuleType:
        return importlib.import_module(MODULE)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    logging.getLogger("taskmesh.sources").disabled = True  # of course they differ
    yield Module(tmp_path)
    logging.getLogger("taskmesh.sources").disabled = False
    sys.modules.pop(MODULE, None)


@pytest.fixture
def watched(mesh_of: Callable[..., Mesh], tmp_path: Path) -> Callable[[int], Mesh]:
    return lambda workers: mesh_of(workers, modules=(MODULE,), watch=(str(tmp_path),))


def runs(mesh: Mesh, module: ModuleType, number: int) -> bool:
    return mesh.submit(module.version).result(WAIT_S)[0] == number


def said(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return any(all(word in record.getMessage() for word in words) for record in caplog.records)


def test_tasks_run_what_was_saved(module: Module, watched):
    tasks = module.load()
    with watched(2) as mesh:
        assert runs(mesh, tasks, 0)
        for number in (1, 2):
            module.save(number)
            wait_until(lambda number=number: all(runs(mesh, tasks, number) for _ in range(8)), WAIT_S)


@pytest.mark.parametrize(
    ("extra", "reason"), [("def broken(", "SyntaxError"), ("import no_such_module", "ModuleNotFoundError")]
)
def test_a_module_that_is_broken_keeps_the_old_code_and_says_so(
    module: Module, watched, caplog, extra, reason
):
    caplog.set_level(logging.INFO, "taskmesh")
    tasks = module.load()
    with watched(2) as mesh:
        assert runs(mesh, tasks, 0)
        module.save(1, extra)
        wait_until(lambda: said(caplog, "the old code goes on", reason), WAIT_S)
        assert all(runs(mesh, tasks, 0) for _ in range(8))

        module.save(2)
        wait_until(lambda: runs(mesh, tasks, 2), WAIT_S)


def test_a_hundred_saves_under_load_lose_nothing_and_charge_nobody(module: Module, watched):
    tasks = module.load()
    with watched(2) as mesh:
        ends = []
        for number in range(1, SAVES + 1):
            module.save(number)
            ends += [mesh.submit(tasks.version) for _ in range(20)]
            ends[-1].result(WAIT_S)
        found = [end.result(WAIT_S) for end in ends]
        wait_until(lambda: runs(mesh, tasks, SAVES), WAIT_S)

    assert len(found) == 20 * SAVES
    assert {attempt for _, attempt in found} == {1}


def test_a_worker_that_watches_runs_what_was_saved(module: Module, tmp_path: Path):
    programs = Programs(tmp_path)
    try:
        address = programs.hub()[1]
        programs.worker(address, "--watch", MODULE, slots=1)
        tasks = module.load()
        with Mesh(address) as mesh:
            assert runs(mesh, tasks, 0)
            module.save(1)
            wait_until(lambda: runs(mesh, tasks, 1), WAIT_S)
    finally:
        programs.end()


class Rig:
    """A watch of a folder, and what it has said."""

    def __init__(self, folder: Path) -> None:
        self.due: list[int] = []
        self.said: list[str] = []
        self._now = itertools.count(0.0, LOOK)
        machine = PoolMachine(PoolSettings("p", 1, 2), 0.0)
        self.watch = CodeWatch(machine, self._fall_due, self._record, [str(folder)])

    def _fall_due(self, event: object) -> None:
        self.due.append(event.slot)

    def _record(self, kind: str, fields: dict[str, object]) -> None:
        assert kind == "reload.failed"
        self.said.append(str(fields["text"]))

    def look(self) -> list[int]:
        self.due.clear()
        self.watch.turn(next(self._now))
        return self.due


def test_all_slots_are_due_when_a_file_is_new_changed_or_gone(tmp_path: Path):
    rig = Rig(tmp_path)
    assert rig.look() == []
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("a = 1")
    assert rig.look() == [0, 1]
    assert rig.look() == []
    (tmp_path / "package" / "a.py").write_text("a = 10")
    assert rig.look() == [0, 1]
    (tmp_path / "package" / "a.py").unlink()
    assert rig.look() == [0, 1]


def test_nothing_is_due_until_every_file_can_be_compiled(tmp_path: Path):
    rig = Rig(tmp_path)
    (tmp_path / "a.py").write_text("a = (")
    assert rig.look() == []
    (tmp_path / "b.py").write_text("b = 1")
    assert rig.look() == []
    assert "a.py:1: SyntaxError" in rig.said[0]
    (tmp_path / "a.py").write_text("a = ()")
    assert rig.look() == [0, 1]


@pytest.mark.parametrize(
    "name", [".venv/x.py", "site-packages/x.py", "__pycache__/x.py", "x.txt", "env/x.py"]
)
def test_files_that_are_not_the_users_code_are_not_watched(name: str, tmp_path: Path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    (tmp_path / "env").mkdir(exist_ok=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")

    assert list(python_files(str(tmp_path))) == []
    assert list(python_files(str(tmp_path / "no such folder"))) == []


def test_the_working_directory_and_pythonpath_are_watched(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'lib'}::{sys.prefix}/lib")

    assert code_folders() == [str(tmp_path), str(tmp_path / "lib")]
