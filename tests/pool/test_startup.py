"""Slots that cannot be started: tried again, and given up with the reason when none has ever come up."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from taskmesh import Mesh
from taskmesh.cli.application import app
from taskmesh.core.events import SlotExited
from taskmesh.errors import HubUnreachable, TaskMeshError
from taskmesh.pool.slots import supervisor as supervisor_module
from taskmesh.pool.slots.slot_handle import SlotHandle
from taskmesh.pool.startup import start_failure
from tests.harness.program import outcome_of, timed_lines
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

SOON = 0.2
ENDINGS = {
    "import os; os._exit(3)": "ended with exit code 3 before it was ready",
    "import os; os._exit(0)": "ended with exit code 0 before it was ready",
    "import os; print('no licence', flush=True); os._exit(1)": "no licence",
    "import os; os.kill(os.getpid(), 9)": "ended with signal 9 (Killed) before it was ready",
    "raise RuntimeError('broken on purpose')": "RuntimeError: broken on purpose",
}


@pytest.mark.parametrize("code", ENDINGS)
def test_a_mesh_whose_slots_all_end_at_once_says_why(code: str, tmp_path: Path, monkeypatch):
    (tmp_path / "fatal.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    with Mesh(workers=2, only_registered=["fatal"], open_timeout=SOON) as mesh:
        waiting = mesh.submit(len, "abc")
        error = waiting.exception(20)

        assert isinstance(error, TaskMeshError)
        assert "no slot could be started" in str(error)
        assert ENDINGS[code] in str(error)
        with pytest.raises(TaskMeshError, match="no slot could be started"):
            mesh.submit(len, "abc")


def test_a_mesh_in_a_process_of_its_own_says_so_too(tmp_path: Path, monkeypatch):
    (tmp_path / "fatal.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)

    with (
        pytest.raises(HubUnreachable, match="no slot could be started"),
        Mesh(workers=1, hub="process", only_registered=["fatal"], open_timeout=5) as mesh,
    ):
        mesh.submit(len, "abc").result(30)


@pytest.mark.parametrize("lacking", [5, sys.maxsize], ids=["for a while", "for ever"])
def test_a_shortage_that_passes_is_waited_for(lacking: int, monkeypatch):
    refused = []

    def short(*args: object) -> SlotHandle:
        if len(refused) < lacking:
            refused.append(args)
            raise OSError(24, "Too many open files")
        return SlotHandle(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor_module, "SlotHandle", short)
    with Mesh(workers=1, open_timeout=SOON if lacking > 5 else 10) as mesh:
        future = mesh.submit(workload.add, 1, 2)
        if lacking == 5:
            assert future.result(20) == 3
        else:
            with pytest.raises(TaskMeshError, match=r"`ulimit -n`.*Too many open files"):
                future.result(20)


def test_a_pool_that_has_had_a_slot_goes_on_trying(monkeypatch):
    def short(*_: object) -> SlotHandle:
        refused.append(1)
        raise OSError(24, "Too many open files")

    refused: list[int] = []
    with Mesh(workers=1, open_timeout=SOON) as mesh:
        slot = mesh.submit(os.getpid).result(20)
        with monkeypatch.context() as shortage:
            shortage.setattr(supervisor_module, "SlotHandle", short)
            os.kill(slot, signal.SIGKILL)
            future = mesh.submit(workload.add, 1, 2)
            wait_until(lambda: len(refused) >= 4)
        assert future.result(20) == 3


@pytest.fixture
def fatal(tmp_path: Path) -> Path:
    """A folder with a module that can be imported once, as programs try at first, and never in a slot."""
    marker = tmp_path / "tried"
    (tmp_path / "fatal.py").write_text(
        f"import os, pathlib\nif pathlib.Path({str(marker)!r}).exists(): os._exit(3)\n"
        f"pathlib.Path({str(marker)!r}).touch()"
    )
    return tmp_path


def test_a_worker_without_descriptors_to_begin_with_says_so_in_one_line(monkeypatch, capsys):
    def short(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(supervisor_module, "CallbackSelector", short)

    with pytest.raises(SystemExit) as ending:
        app(["worker", "--address", "tcp://127.0.0.1:1"])

    assert ending.value.code == 1
    [(_, line)] = timed_lines(capsys.readouterr().err)
    assert line.startswith("slots cannot be started here: [Errno 24] Too many open files. Raise")


@pytest.mark.smoke
def test_a_worker_ends_with_exit_code_1(programs: Programs, fatal: Path):
    _, address = programs.hub()
    code = (
        "from taskmesh.cli.application import app\nfrom taskmesh.pool.program import run_pool\n"
        f"run_pool.__kwdefaults__['patience'] = {SOON}\n"
        f"app(['worker', '--address', {address!r}, '-c', '2', 'fatal'])"
    )

    outcome = outcome_of([sys.executable, "-c", code], fatal)

    assert outcome.returncode == 1, outcome.stderr
    assert "trying again: its process ended with exit code 3" in outcome.stderr
    assert timed_lines(outcome.stderr)[-1][1].startswith("no slot could be started within")


def test_a_hub_with_a_pool_ends_likewise(programs: Programs, fatal: Path):
    soon = {"TASKMESH_OPEN_TIMEOUT": str(SOON)}

    outcome = programs.run("up", "--bind", "tcp://127.0.0.1:0", "-c", "1", "fatal", env=soon)

    assert outcome.returncode == 1
    assert "no slot could be started within" in outcome.stderr


@pytest.mark.smoke
def test_a_hub_process_that_is_killed_ends_its_mesh(monkeypatch):
    others = psutil.Process().children()
    mesh = Mesh(hub="process", workers=1)
    try:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        [hub] = [process for process in psutil.Process().children() if process not in others]
        hub.suspend()
        waiting = mesh.submit(workload.add, 1, 2)
        hub.kill()

        with pytest.raises(HubUnreachable, match="ended with exit code -9"):
            waiting.result(20)
        with pytest.raises(HubUnreachable, match="ended with exit code -9"):
            mesh.submit(workload.add, 1, 2)
    finally:
        mesh.close()


@pytest.mark.parametrize(
    ("exited", "told"),
    [
        (SlotExited(0, 0, 1, ready=False, log="no process: EAGAIN\n"), "no process: EAGAIN"),
        (SlotExited(0, 0, 1, ready=False), "its process ended with exit code 1 before it was ready"),
        (SlotExited(0, 0, -9, oom=True, ready=False), "killed for lack of memory"),
        (
            SlotExited(0, 0, -11, ready=False, log="core"),
            "signal 11 (Segmentation fault) before it was ready: core",
        ),
        (SlotExited(0, 0, -40, ready=False), "its process ended with signal 40"),
    ],
)
def test_what_people_are_told_of_a_start_that_failed(exited: SlotExited, told: str):
    assert told in start_failure(exited)
