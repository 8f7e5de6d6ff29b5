"""The pytest plugin, in a pytest of its own: as an installed distribution's, by its entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")
ROOT = Path(__file__).parents[2]
TASKS = """
import os
from taskmesh import task

@task
def double(number):
    return 2 * number

@task
def where():
    return os.getpid()
"""
TESTS = """
import os, sys
import pytest
from jobs import double, where

def test_before():
    assert "zmq" not in sys.modules and "taskmesh.mesh" not in sys.modules

def test_inline(taskmesh_inline):
    assert double.submit(2).result() == 4
    assert where.submit().result() == os.getpid()

@pytest.mark.taskmesh(workers=1, queues=["default", "slow"])
def test_marked(taskmesh_inline):
    assert "1 slots" in repr(taskmesh_inline)
    assert double.with_options(queue="slow").submit(2).result() == 4

@pytest.mark.parametrize("number", range(3))
def test_local(taskmesh_local, number):
    assert double.submit(number).result(timeout=30) == 2 * number
    assert where.submit().result(timeout=30) != os.getpid()
    assert taskmesh_local.status()["finished"] >= 2 * number

def test_leaves_a_task_behind(taskmesh_local):
    taskmesh_local.submit(pow, 2, 3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program with tests, and taskmesh as it is found where it is installed."""
    installed = tmp_path / "site" / "taskmesh_here-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: taskmesh-here\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\ntaskmesh = taskmesh.testing.plugin\n")
    (tmp_path / "jobs.py").write_text(TASKS)
    (tmp_path / "test_jobs.py").write_text(TESTS)
    return tmp_path


def pytest_in(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{folder / 'site'}:{folder}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("-n2",)], ids=["alone", "xdist"])
def test_fixtures_give_meshes(folder, words):
    code, said = pytest_in(folder, "-W", "error", "--strict-markers", *words)

    assert code == 0, said
    assert "7 passed" in said


def test_the_marker_is_told(folder):
    assert "@pytest.mark.taskmesh(workers=2, **settings)" in pytest_in(folder, "--markers")[1]


def test_it_can_be_left_out(folder):
    code, said = pytest_in(folder, "-p", "no:taskmesh", "-k", "inline")

    assert code == 1
    assert "fixture 'taskmesh_inline' not found" in said


def test_its_import_loads_nothing_of_taskmesh():
    code = (
        "import pytest, sys; before = {*sys.modules}; import taskmesh.testing.plugin; "
        "print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.split() == ["taskmesh", "taskmesh.testing", "taskmesh.testing.plugin"]


def test_what_a_test_leaves_running_is_cancelled(folder):
    (folder / "test_jobs.py").write_text(
        "import signal\n"
        "def test_leaves(taskmesh_local):\n"
        "    for _ in range(9): taskmesh_local.submit(signal.pause)\n"
        "def test_next(taskmesh_local):\n"
        "    assert taskmesh_local.submit(pow, 2, 3).result(timeout=30) == 8\n"
        "def test_inline_too(taskmesh_inline):\n"
        "    taskmesh_inline.promise('nobody')\n"
    )

    code, said = pytest_in(folder)

    assert code == 0, said
