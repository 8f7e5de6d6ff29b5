"""Memory files of large arguments serve the next ones, and are gone with the last mesh."""

import gc
import os

import pytest

from taskmesh import Mesh
from taskmesh.shm import files
from taskmesh.shm.blob import ARGUMENT_MAP_FROM
from tests.harness.memory_files import memory_files
from tests.harness.waiting import wait_until

SIZE = 1 << 20

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there are no memfds here"),
    pytest.mark.usefixtures("processes"),
]


def use_two_meshes(size: int) -> None:
    data = os.urandom(size)
    with Mesh(workers=1) as mesh:
        with Mesh(workers=1) as other:
            assert other.submit(len, bytearray(data)).result(timeout=30) == size
        for number in range(20):
            changed = bytearray(data)
            changed[number] = 0
            assert mesh.submit(bytes, changed).result(timeout=30) == bytes(changed)


@pytest.mark.parametrize("size", [SIZE, ARGUMENT_MAP_FROM], ids=["copied", "mapped"])
def test_files_are_used_again_and_closed_with_the_last_mesh(size, monkeypatch):
    made = []
    make = os.memfd_create

    def counted(name: str, flags: int = 0) -> int:
        made.append(name)
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", counted)
    before = memory_files()

    use_two_meshes(size)

    assert len(made) < 10  # two outboxes, and far fewer than an argument each
    gc.collect()  # the last report of a pool, which nobody has acknowledged, goes with its mesh
    assert memory_files() == before


def test_an_idle_mesh_gives_them_back(monkeypatch):
    with Mesh(workers=1) as mesh:
        assert mesh.submit(len, bytearray(SIZE)).result(timeout=30) == SIZE
        wait_until(lambda: files._spares)
        monkeypatch.setattr(files, "KEPT_S", 0.05)

        wait_until(lambda: not files._spares)


def test_a_forked_child_keeps_none():
    with Mesh(workers=1) as mesh:
        assert mesh.submit(len, bytearray(SIZE)).result(timeout=30) == SIZE
        kept = memory_files()
        assert kept
        pid = os.fork()
        if not pid:
            os._exit(memory_files())  # noqa: TID251  a forked child
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert memory_files() == kept
        assert mesh.submit(len, bytearray(SIZE)).result(timeout=30) == SIZE
