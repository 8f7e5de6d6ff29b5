"""Sandboxes that refuse what the pool would rather use: it does with less."""

import sys

import pytest

from tests.harness import sandbox
from tests.harness.program import outcome_of
from tests.harness.requirement import require

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = """
import os, signal
from taskmesh import Mesh

def dies(attempts):
    if os.path.exists(attempts):
        return "lived"
    open(attempts, "x").close()
    os.kill(os.getpid(), signal.SIGKILL)

with Mesh() as mesh:
    print(mesh.submit(pow, 2, 10).result(20), mesh.submit(dies, ATTEMPTS).result(20))
    first = mesh.submit(os.getpid).result(20)
try:
    os.kill(first, 0)
except ProcessLookupError:
    print("gone")
"""
CALLS = ("eventfd2", "setsid", "waitid", "pidfd_open", "memfd_create", "sched_getaffinity")


@pytest.fixture(autouse=True)
def needs_seccomp():
    require(sandbox.is_available(), "seccomp filters, on x86_64 or aarch64")


def outcome(refused, program):
    return outcome_of(sandbox.line(refused, sys.executable, "-c", program))


@pytest.mark.parametrize("refused", [*CALLS, ",".join(CALLS)])
def test_a_mesh_works_where_a_call_is_refused(refused, tmp_path):
    ended = outcome(refused, PROGRAM.replace("ATTEMPTS", repr(str(tmp_path / "attempts"))))

    assert (ended.stdout.split(), ended.stderr) == (["1024", "lived", "gone"], "")


@pytest.mark.timeout(240)
def test_deaths_are_noticed_where_a_sandbox_refuses_all_of_them():
    """Without pidfd, say, the fork server's `waitpid` and the ends of sockets tell them."""
    program = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/pool/slots/test_deaths.py")
    program = (*program, "-k", "not sessions_of_their_own")  # nobody leaves a session without setsid
    ended = outcome_of(sandbox.line(",".join(CALLS), sys.executable, *program), timeout=200)

    assert ended.returncode == 0, ended.stdout


def test_a_mesh_in_a_process_of_its_own_needs_no_session():
    opened = "Mesh(workers=1, hub='process') as mesh"
    program = f"from taskmesh import Mesh\nwith {opened}: print(mesh.submit(abs, -1).result(20))"
    ended = outcome("setsid", program)

    assert (ended.stdout, ended.stderr) == ("1\n", "")


def test_where_epoll_is_refused_that_is_told():
    ended = outcome("epoll_create1", "from taskmesh import Mesh\nMesh(workers=1).submit(abs, -1)")

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "taskmesh.errors.TaskMeshError: slots cannot be started here"
    )
    assert "the system refuses epoll" in ended.stderr
