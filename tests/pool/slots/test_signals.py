"""Signals that somebody else has blocked."""

import signal

import pytest

from tests.pool.slots import tasks
from tests.pool.slots.driver import Driver

pytestmark = pytest.mark.usefixtures("processes")


def test_signals_that_are_blocked_here_are_heard_by_fork_server_and_slots(processes):
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        driver = Driver()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    with driver:
        driver.start(0)
        driver.call(0, tasks.kill_self, (signal.SIGTERM,))

        assert driver.exit_of(0).status == -signal.SIGTERM
