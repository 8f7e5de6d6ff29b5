"""A signal that does not end the wait that it comes upon still gets its handler run, soon.

One that comes just before a wait begins is such a signal; so is one that the kernel hands to another thread,
which a test can bring about at will.
"""

import signal
import threading
import time

import pytest

from taskmesh import Mesh, wait
from taskmesh.attendance import LOOK_S, Gate, interruptible
from taskmesh.client.delivery import Delivery


class Interrupted(BaseException):
    pass


def nap(seconds):
    threading.Event().wait(seconds)


@pytest.fixture
def interrupted():
    """Interrupts a wait of this thread by a signal in another; gives how long the wait went on."""

    def handle(*_):
        raise Interrupted

    def measure(waiting):
        # the main thread is most probably waiting then; if not yet, all the better
        thread = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
        thread.start()
        start = time.monotonic()
        try:
            with pytest.raises(Interrupted):
                waiting()
            return time.monotonic() - start
        finally:
            thread.join()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield measure
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def mesh():
    with Mesh(workers=1) as mesh:
        mesh.submit(len, "open").result(20)
        yield mesh


SOON = LOOK_S + 1.0


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_the_wait_for_a_future(interrupted, timeout):
    assert interrupted(lambda: Gate().wait(timeout)) < SOON


@pytest.mark.parametrize(
    "waiting",
    [
        lambda mesh, future: future.result(),
        lambda mesh, future: wait([future]),
        lambda mesh, future: next(mesh.map(nap, [60], chunksize=1)),
        lambda mesh, future: mesh._session.wait_for_all(),
    ],
    ids=["result", "wait", "map", "close"],
)
def test_each_way_of_waiting_for_tasks(mesh, interrupted, waiting):
    future = mesh.submit(nap, 60)
    try:
        assert interrupted(lambda: waiting(mesh, future)) < SOON
    finally:
        future.cancel()


def test_the_wait_for_callbacks(interrupted):
    delivery, busy = Delivery("callbacks"), threading.Event()
    delivery.put([lambda: busy.wait(20)])

    assert interrupted(delivery.flush) < SOON
    busy.set()
    delivery.close(10)


def test_a_wait_in_steps_lasts_as_long_as_it_is_told():
    steps = []

    def step(seconds):
        steps.append(seconds)
        return len(steps) == 3

    assert interruptible(step, None)
    assert steps == [LOOK_S] * 3
    assert not interruptible(lambda _: False, 0)
