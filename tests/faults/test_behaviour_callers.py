"""User code around a mesh: forks, exceptions that come back."""

import os
import traceback
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from taskmesh.errors import ForkedMeshError, FunctionUnavailable, TaskMeshError, WorkerCrashed
from tests.faults.workload import DEEDS, misbehave, ordinary
from tests.harness.program import exists
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault


# --- exceptions -------------------------------------------------------------------------------------------


class Overdrawn(Exception):
    def __init__(self, account: str, *, missing: int) -> None:
        super().__init__(account, missing)
        self.account = account
        self.missing = missing


def withdraw(account: str, amount: int) -> None:
    balance = {"ann": 3}
    try:
        _check(balance[account], amount)
    except ValueError as error:
        error.add_note("while withdrawing")
        raise Overdrawn(account, missing=amount - balance[account]) from error


def _check(balance: int, amount: int) -> None:
    if amount > balance:
        raise ValueError(f"{amount} > {balance}")


def test_exceptions_come_back_as_themselves_with_frames_and_notes(embedded):
    mesh = embedded(workers=1).mesh

    future = mesh.submit(withdraw, "ann", 10)
    with pytest.raises(Overdrawn) as caught:
        future.result(10)

    error = caught.value
    assert (error.account, error.missing) == ("ann", 7)
    printed = "".join(traceback.format_exception(error))
    assert "in withdraw" in printed
    assert "in _check" in printed
    assert "ValueError: 10 > 3" in printed
    assert "while withdrawing" in printed
    assert "execution.py" not in printed, "only the user's frames"
    assert "in _check" in future.traceback_text
    notes = "\n".join(error.__notes__)
    for told in ("withdraw", future.task_id, "attempt 1", "worker local/0"):
        assert told in notes


def test_overflow_of_the_c_stack_is_a_typed_error(embedded):
    client = embedded(workers=1)
    bad = client.submit(misbehave, "recurse_deeply")
    client.submit_ordinary(20)

    client.wait_all(40)

    assert isinstance(client.futures[bad].exception(), WorkerCrashed | RecursionError | MemoryError)
    client.assert_clean(repeated=[bad])


def test_module_that_the_worker_lacks_is_named_with_the_cure(cluster, connect, tmp_path, monkeypatch):
    (tmp_path / "module_of_the_caller.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    cluster.programs.folder = tmp_path / "elsewhere"
    cluster.folder.mkdir()
    cluster.start_hub()
    cluster.start_workers(1)
    client = connect()
    monkeypatch.syspath_prepend(tmp_path)
    import module_of_the_caller

    error = client.mesh.submit(module_of_the_caller.double, 4).exception(10)

    assert isinstance(error, FunctionUnavailable)
    assert "module_of_the_caller" in str(error)
    assert "PYTHONPATH" in str(error) or "install" in str(error)
    client.submit_ordinary(20)
    client.wait_all()


# --- forks ------------------------------------------------------------------------------------------------


def test_child_that_a_task_forks_and_leaves_goes_with_its_slot(embedded, tmp_path):
    client = embedded(workers=1)
    leaver = client.mesh.submit(_leave_children)
    children = leaver.result(10)
    client.submit_ordinary(100)
    client.wait_all()
    client.assert_clean(repeated=[])
    assert all(map(exists, children)), "what a task starts may outlive it"

    client.mesh.close()

    wait_until(lambda: not any(map(exists, children)), 2, "but not its pool")


def _leave_children() -> list[int]:
    slot = psutil.Process()
    DEEDS["leave_child"]()
    DEEDS["leave_forked_child"]()
    return [child.pid for child in slot.children()]


def test_caller_that_forks_after_opening_the_mesh(embedded):
    client = embedded(workers=2)
    client.submit_ordinary(200)
    pending = client.submit(ordinary, b"", 0.2)
    reading, writing = os.pipe()

    child = os.fork()
    if child == 0:
        os.write(writing, _use_of_the_parents_mesh(client, pending).encode())
        os._exit(0)  # noqa: TID251  a fork of the test run must not go on with it
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "ForkedMeshError ForkedMeshError ok"
    assert os.waitpid(child, 0)[1] == 0

    client.submit_ordinary(200)
    client.wait_all()
    client.assert_clean(repeated=[])


def _use_of_the_parents_mesh(client, pending) -> str:
    """What a forked child gets: the parent's mesh refuses, a mesh of its own works."""
    words = []
    for use in (lambda: client.mesh.submit(os.getpid), lambda: client.futures[pending].result(5)):
        try:
            use()
            words.append("worked")
        except TaskMeshError as error:
            words.append(type(error).__name__)
    try:
        from taskmesh import Mesh

        with Mesh(workers=1) as own:
            words.append("ok" if own.submit(os.getppid).result(10) else "?")
    except BaseException as error:  # noqa: BLE001  told to the parent
        words.append(repr(error))
    return " ".join(words)


def test_mesh_of_a_caller_with_forking_threads_stays_its_own(embedded):
    """Forks at any moment, with the mesh's thread in the middle of its work."""
    client = embedded(workers=2)
    client.submit_ordinary(1500)

    def fork_and_leave(_: int) -> int:
        child = os.fork()
        if child == 0:
            os._exit(0)  # noqa: TID251  nothing of the test run may go on in it
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ThreadPoolExecutor(2) as forkers:
        assert list(forkers.map(fork_and_leave, range(30))) == [0] * 30
    client.wait_all()
    client.assert_clean(repeated=[])
    assert isinstance(ForkedMeshError("x"), TaskMeshError)
