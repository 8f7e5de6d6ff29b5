"""A killed worker: its task runs again in another process, and all others go on."""

import os
import signal

from taskmesh import Mesh, current_task, task
from taskmesh.errors import WorkerCrashed


def die() -> None:
    """Do what the kernel does with a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@task
def double(x: int) -> int:
    if x == 3 and current_task().attempt == 1:
        die()
    return 2 * x


@task
def always_dies() -> None:
    die()


if __name__ == "__main__":
    with Mesh(workers=2):
        futures = [double.submit(x) for x in range(5)]
        hopeless = always_dies.submit()
        print([future.result() for future in futures])  # [0, 2, 4, 6, 8]
        print(futures[3].attempt, "attempts")  # 2 attempts

        # A task that kills each process that runs it is given up after three of them.
        print(isinstance(hopeless.exception(), WorkerCrashed))  # True
