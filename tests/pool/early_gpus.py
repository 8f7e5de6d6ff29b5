"""A module that looks for GPUs as it is imported, as some do."""

import os
import threading

from taskmesh import task

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES")


@task
def seen() -> tuple[int, int, str | None]:
    """Return the slot, the process, and what the import saw."""
    threading.Event().wait(0.05)  # the other slots get the next
    return int(os.environ["TASKMESH_SLOT"]), os.getpid(), SEEN
