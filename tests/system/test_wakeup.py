"""What wakes a loop from other threads."""

import os

import pytest

from taskmesh.system import wakeup as module
from taskmesh.system.wakeup import Wakeup


def test_a_wake_up_that_is_closed_while_another_thread_rings_writes_to_no_foreign_descriptor(
    monkeypatch,
):
    wake_up = Wakeup()
    wrote = []

    def write(fd, data):
        wake_up.close()
        os.fstat(fd)  # it is still ours: nobody can have been given its number meanwhile
        wrote.append(fd)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", write)
        wake_up.set()

    assert wrote
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wrote[0])
    wake_up.set()
    wake_up.clear()
    wake_up.close()
