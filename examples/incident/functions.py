"""Functions for the incident: one that naps, one that fails, one that kills its process."""

import os
import signal
import time

from taskmesh import task


@task
def nap(seconds: float) -> float:
    """Sleep, and return for how long."""
    time.sleep(seconds)
    return seconds


@task
def flaky(number: int) -> None:
    """Fail."""
    raise ConnectionError(f"no answer to {number}")


@task
def poison() -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)
