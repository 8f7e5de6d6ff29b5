"""What wakes a loop from other threads."""

import os

import pytest

from taskmesh.system import wake_up as module
from taskmesh.system.wake_up import WakeUp


@pytest.mark.parametrize("system", ["", "portable"])
def test_a_wake_up_that_is_closed_while_another_thread_rings_writes_to_no_foreign_descriptor(
    monkeypatch, system
):
    monkeypatch.setenv("TASKMESH_OS", system)
    wake_up = WakeUp()
    wrote = []

    def write(fd, data):
        wake_up.close()
        os.fstat(fd)  # it is still ours: nobody can have been given its number meanwhile
        wrote.append(fd)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", write)
        wake_up.ring()

    assert wrote
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wrote[0])
    wake_up.ring()
    wake_up.heard()
    wake_up.close()
