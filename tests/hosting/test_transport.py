"""Which port a mesh gets, and where it gets none."""

import _thread
import pathlib
import queue
import select
import socket
import subprocess
import sys
import types

import pytest

from taskmesh import Mesh
from taskmesh.config import load
from taskmesh.errors import TaskMeshError
from tests.harness.program import outcome_of

WAIT_S = 10


def replacement_of(original, maker):
    """What stands in the original's place, and does as much."""
    if isinstance(original, type):
        return type(original.__name__, (original,), {"__module__": maker})

    def replacement(*args, **kwargs):
        return original(*args, **kwargs)

    replacement.__module__ = maker
    return replacement


REPLACED = [
    (_thread, "start_new_thread"),
    (select, "select"),
    (socket, "socket"),
    (subprocess, "Popen"),
    (queue, "SimpleQueue"),
]


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1:1"])
@pytest.mark.parametrize("maker", ["gevent", "eventlet"])
@pytest.mark.parametrize(("module", "name"), REPLACED)
def test_a_program_with_green_threads_is_told_so(monkeypatch, module, name, maker, address):
    monkeypatch.setitem(sys.modules, maker, types.ModuleType(maker))
    monkeypatch.setattr(module, name, replacement_of(getattr(module, name), f"{maker}.of.its"))

    with pytest.raises(TaskMeshError, match=f"{maker} has replaced .* Use monkey.patch_all"):
        Mesh(config=load(None, {"mesh__address": address})).status()


def test_a_socket_that_somebody_else_has_replaced_may_be_used(monkeypatch):
    monkeypatch.setattr(socket, "socket", replacement_of(socket.socket, "socks"))

    with Mesh(workers=1) as mesh:
        assert mesh.submit(abs, -1).result(WAIT_S) == 1


def test_green_threads_that_replace_nothing_may_be_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "gevent", types.ModuleType("gevent"))

    with Mesh(workers=1) as mesh:
        assert mesh.submit(abs, -1).result(WAIT_S) == 1


PROGRAM = """
import resource
from taskmesh import Mesh
from taskmesh.errors import HubUnreachable, TaskMeshError
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
mesh = Mesh("tcp://127.0.0.1:1", open_timeout=20)
for _ in range(2):
    try:
        mesh.submit(len, "abc")
    except HubUnreachable:
        print("unreachable")
    except TaskMeshError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
"""


def test_a_client_without_descriptors_is_told_at_once_and_in_one_line():
    outcome = outcome_of([sys.executable, "-c", PROGRAM])

    first, second = outcome.stdout.splitlines()
    assert first == second
    assert "raise `ulimit -n`" in first
    assert outcome.stderr == ""


@pytest.mark.parametrize("address", [None, "tcp://127.0.0.1:1"])
def test_where_no_thread_is_to_be_had_the_cure_is_told_and_nothing_stays(monkeypatch, address):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    mesh = Mesh(address, open_timeout=1)
    with monkeypatch.context() as shortage:
        shortage.setattr("threading.Thread.start", refused)
        with pytest.raises(TaskMeshError, match=r"can't start new thread\. Raise the limit .*`-u`"):
            mesh.submit(abs, -1)
    if address is None:
        assert mesh.submit(abs, -1).result(WAIT_S) == 1
    mesh.close()


@pytest.mark.parametrize("executable", ["", None])
def test_a_program_that_knows_no_interpreter_is_told_so(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)

    with pytest.raises(TaskMeshError, match=r"Set sys\.executable"):
        Mesh(workers=1).submit(abs, -1)


def test_a_frozen_program_does_not_start_itself_in_place_of_slots(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(TaskMeshError, match=r"Set sys\.executable"):
        Mesh(workers=1).submit(abs, -1)

    monkeypatch.setattr(
        "taskmesh.hosting.transport._SELF", "/usr/local/bin/frozen"
    )  # and it has named another
    with Mesh(workers=1) as mesh:
        assert mesh.submit(abs, -1).result(WAIT_S) == 1


def test_a_program_with_an_embedded_mesh_does_not_load_zeromq():
    program = (
        "import sys; from taskmesh import Mesh\n"
        "with Mesh(workers=1) as mesh: assert mesh.submit(abs, -1).result(20) == 1\n"
        "sys.exit('zmq' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


ODD_PATHS = {
    "paths, and what is none": [pathlib.Path("/nowhere"), b"/nowhere", None, 3],
    "many": [f"/nowhere/{'x' * 200}/{number}" for number in range(800)],
    "options, and not UTF-8": ["-c", "--", "", "/nowhere/\udcff"],
}


@pytest.mark.parametrize("hub", ["thread", "process"])
@pytest.mark.parametrize("odd", ODD_PATHS)
def test_slots_start_with_any_module_search_path(monkeypatch, odd, hub):
    monkeypatch.setattr(sys, "path", [*sys.path, *ODD_PATHS[odd]])

    with Mesh(workers=1, hub=hub) as mesh:
        path, line = mesh.submit(eval, "(__import__('sys').path, __import__('sys').argv)").result(WAIT_S)

    if odd != "paths, and what is none":
        assert path[-len(ODD_PATHS[odd]) :] == ODD_PATHS[odd]
    assert line == ["-c", "taskmesh:local"]
