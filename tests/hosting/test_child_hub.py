"""`Mesh(hub="process")`: hub and pool in a child process, which ends with its parent."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from taskmesh import Mesh
from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.remote_port import RemotePort
from taskmesh.errors import ConfigError, HubUnreachable
from taskmesh.hosting import child_hub
from tests.harness.program import environment, exists, outcome_of
from tests.harness.waiting import wait_until
from tests.hosting import workload

PARENT = """
import sys
from taskmesh import Mesh
from tests.hosting.workload import supervisor
with Mesh(hub="process", workers=1) as mesh:
    print(mesh.submit(supervisor).result(20), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name leaves room for the paths of sockets, also in a worker of xdist."""
    return tmp_path_factory.mktemp("s")


def test_tasks_run_in_a_pool_of_the_child(tmp_path):
    with Mesh(hub="process", workers=2) as mesh:
        assert list(mesh.map(workload.add, range(500), range(500))) == list(range(0, 1000, 2))
        data = os.urandom(1 << 20)
        assert mesh.submit(workload.echo, data).result(20) == data
        supervisor = mesh.submit(workload.supervisor).result(20)
        assert psutil.Process(supervisor).ppid() != os.getpid()  # the child's, not ours
        assert [pool["slots"] for pool in mesh.status()["pools"]] == [2]

    wait_until(lambda: not exists(supervisor))  # an orphan ends by itself


def test_a_child_that_does_not_come_up_is_told_at_once(monkeypatch):
    monkeypatch.setattr(child_hub, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(7)"])
    mesh = Mesh(hub="process", workers=1, open_timeout=50)

    with pytest.raises(HubUnreachable, match="ended with exit code 7"):
        mesh.submit(workload.add, 1, 2)


def test_a_hub_process_that_cannot_start_says_why_in_one_line():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); "
        "from taskmesh.hosting.child_hub import serve; serve({}, 'ipc:///nowhere/hub', '/nowhere', 0)"
    )
    outcome = outcome_of([sys.executable, "-c", code])

    assert outcome.returncode == 1
    assert outcome.stderr.count("\n") == 1
    assert "raise the limit (ulimit -n)" in outcome.stderr


def test_a_folder_that_is_too_deep_for_sockets_is_told_with_the_cure(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    with pytest.raises(ConfigError, match="set TMPDIR"):
        Mesh(hub="process", workers=1).submit(workload.add, 1, 2)

    assert list(deep.iterdir()) == []


def test_an_exception_in_the_block_ends_child_and_tasks(tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    try:
        with Mesh(hub="process", workers=1) as mesh:
            held = mesh.submit(workload.hold, str(journal), "held", str(gate))
            wait_until(journal.exists)
            raise KeyError("enough")
    except KeyError:
        pass

    assert held.cancelled()


def test_ctrl_c_while_it_opens_leaves_nothing_behind_and_prints_nothing(short_path, monkeypatch, capfd):
    def interrupted(port, timeout):
        wait_until(lambda: port._link is not None)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    monkeypatch.setattr(RemotePort, "_wait_for_hub", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Mesh(hub="process", workers=1).submit(workload.add, 1, 2)

    assert list(short_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_while_it_closes_leaves_no_child_behind(short_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    real = SubmitPort.close

    def interrupted(port, *, cancel, timeout):
        real(port, cancel=cancel, timeout=timeout)
        raise KeyboardInterrupt

    mesh = Mesh(hub="process", workers=1)
    mesh.submit(workload.add, 1, 2).result(20)
    monkeypatch.setattr(SubmitPort, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mesh.close()

    assert list(short_path.iterdir()) == []


def test_ctrl_c_while_the_child_is_waited_for_kills_it(short_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    others = psutil.Process().children(recursive=True)  # multiprocessing's, which it keeps
    mesh = Mesh(hub="process", workers=1)
    mesh.submit(workload.add, 1, 2).result(20)
    family = [process for process in psutil.Process().children(recursive=True) if process not in others]
    real = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return real(process)

    with monkeypatch.context() as impatience:
        impatience.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mesh.close()

    wait_until(lambda: not any(alive(process) for process in family))
    assert list(short_path.iterdir()) == []


def test_nothing_is_left_when_the_parent_is_killed(short_path):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environment({"TMPDIR": str(short_path)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        supervisor = int(parent.stdout.readline())
        family = psutil.Process(parent.pid).children(recursive=True)
        assert supervisor in {process.pid for process in family}

        parent.send_signal(signal.SIGKILL)
        parent.wait(10)

        wait_until(lambda: not any(alive(process) for process in family), 10)
    assert list(short_path.iterdir()) == []


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
