"""What importing costs: slots import modules full of tasks, programs import taskmesh without using it."""

import subprocess
import sys

import pytest

import taskmesh

pytestmark = pytest.mark.usefixtures("processes")

HEAVY = ("typing", "re", "zmq", "asyncio", "msgspec", "cloudpickle", "concurrent.futures", "logging")


def loaded_after(statement):
    """The heavy modules that a fresh interpreter has loaded after the statement."""
    known = "import sys\nknown = set(sys.modules)"  # a site may load some of them by itself
    code = f"{known}\n{statement}\nprint(*(set(sys.modules) - known) & set({HEAVY!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    return set(done.stdout.split())


def test_import_of_taskmesh_loads_nothing_heavy():
    assert loaded_after("import taskmesh") == set()


@pytest.mark.parametrize("statement", ["import taskmesh", "from taskmesh import Mesh", "import taskmesh.cli"])
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_is_refused_in_one_sentence(system, statement):
    code = f"import sys\nsys.platform = {system!r}\n{statement}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: taskmesh runs on Linux only, not on {system}: use a Linux machine, a container, or "
        "WSL 2 on Windows"
    )


@pytest.mark.parametrize("name", [name for name in taskmesh.__all__ if name != "errors"])
def test_no_public_name_loads_zeromq_or_asyncio(name):
    assert not loaded_after(f"from taskmesh import {name}") & {"zmq", "asyncio"}


def test_task_function_needs_neither_futures_nor_messages():
    statement = "from taskmesh import task\n@task(retries=2)\ndef f(): pass"

    assert not loaded_after(statement) & {"zmq", "asyncio", "concurrent.futures", "logging"}


def test_a_program_without_cron_lines_loads_no_calendar():
    code = "import sys\nfrom taskmesh import Mesh, Schedule, task\ntask(schedule=Schedule(5.0))(lambda: 1)\n"
    code += "print('cronsim' in sys.modules, 'zoneinfo' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )

    assert done.stdout.split() == ["False", "False"]


def test_task_is_the_decorator_whatever_was_imported_before():
    assert loaded_after("import taskmesh.mesh\nfrom taskmesh import task\n@task\ndef f(): pass\nf()") >= set()


def test_names_that_are_not_there_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'delay'"):
        _ = taskmesh.delay
    assert set(taskmesh.__all__) <= set(dir(taskmesh))
