"""Dashboards of meshes that are their own hubs: `Mesh(dashboard=True)` and `taskmesh up --dashboard`."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError
from tests.dashboard.browser import Browser, seen
from tests.harness.gate import wait_at
from tests.harness.program import exists, outcome_of
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")


def entered(url: str) -> Browser:
    """Show the token at a dashboard."""
    browser = Browser(url)
    assert browser.enter() == 200
    return browser


def dashboards(pid: int) -> list[int]:
    """The dashboards that a process has started."""
    children = psutil.Process(pid).children()
    return [each.pid for each in children if "taskmesh:dashboard" in each.cmdline()]


@pytest.mark.smoke
@pytest.mark.parametrize("hub", ["thread", "process"])
def test_a_mesh_shows_itself_and_its_dashboard_ends_with_it(gates, hub):
    with Mesh(workers=1, hub=hub, dashboard=True) as mesh:
        gate = gates()
        held = mesh.submit(wait_at, gate.path)
        browser = entered(mesh.dashboard_url)
        seen(browser, lambda each: not each["error"] and each["totals"]["busy"] == 1)
        (task,) = browser.get("/ask/tasks")[1]
        assert task["task_id"] == held.task_id
        assert mesh.dashboard_url.startswith(f"http://{browser.host}/#t=")
        (pid,) = dashboards(psutil.Process().pid)
        gate.open()
        assert held.result(20) == "passed"
    assert not exists(pid)


def test_a_mesh_that_others_join_is_shown_too(programs: Programs):
    with Mesh(workers=0, bind="tcp://127.0.0.1:0", dashboard=True) as mesh:
        programs.worker(mesh.address, "--name", "guest")
        browser = entered(mesh.dashboard_url)
        seen(browser, lambda each: not each["error"] and each["status"]["pools"])


def test_a_mesh_that_is_not_closed_leaves_no_dashboard(tmp_path):
    code = "from taskmesh import Mesh; mesh = Mesh(workers=1, dashboard=True); print(mesh.dashboard_url)"
    ended = outcome_of([sys.executable, "-c", code], tmp_path)

    assert ended.returncode == 0, ended.stderr
    (url,) = ended.stdout.splitlines()
    with pytest.raises(ConnectionRefusedError):
        Browser(url).get("/")


def test_other_meshes_have_none(tmp_path):
    with pytest.raises(ConfigError, match=r"taskmesh dashboard --address tcp://127\.0\.0\.1:5550"):
        Mesh("tcp://127.0.0.1:5550", dashboard=True)
    with Mesh(workers=1) as mesh, pytest.raises(ConfigError, match=r"Mesh\(dashboard=True\)"):
        _ = mesh.dashboard_url
    code = "import sys; sys.modules['starlette'] = None; from taskmesh import Mesh; Mesh(dashboard=True)"
    told = outcome_of([sys.executable, "-c", code], tmp_path)
    assert "the dashboard needs starlette: `pip install '.[dashboard]'` in a clone of taskmesh" in told.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_up_has_one_that_ends_with_it(programs: Programs, number):
    program = programs.start("up", "--dashboard", "--bind", "tcp://127.0.0.1:0", "--json", "-c", "1")
    program.ready()
    (told,) = wait_until(
        lambda: [each for each in program.events("stderr") if each["event"] == "dashboard"], 20
    )
    browser = entered(told["url"])
    seen(browser, lambda each: not each["error"] and each["totals"]["slots"] == 1)
    (pid,) = dashboards(program.pid)
    program.signal(number)
    program.wait(15)
    wait_until(lambda: not exists(pid), 10, "the dashboard is gone")
