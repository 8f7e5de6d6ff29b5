"""Tasks whose threads go on when they are over."""

import contextlib
import threading

from taskmesh import task
from taskmesh.errors import TaskMeshError


@task
def add(one, other):
    return one + other


def leave_thread():
    def ask():
        for _ in range(200):
            with contextlib.suppress(TaskMeshError):
                add.submit(1, 1)
            threading.Event().wait(0.0005)

    threading.Thread(target=ask, daemon=True).start()
