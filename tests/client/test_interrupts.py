"""A signal that does not end the wait that it comes upon still gets its handler run, soon.

One that comes just before a wait begins is such a signal; so is one that the kernel hands to another thread,
which a test can bring about at will.
"""

import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError

import pytest

from taskmesh import Mesh, as_completed, gather, wait
from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.waiters import LOOK_S, LockEvent, Waiter, interruptible
from tests.harness.program import heeding_interrupts
from tests.harness.waiting import wait_until


class Interrupted(KeyboardInterrupt):
    pass


def stay(stays):
    if stays:
        threading.Event().wait()


@pytest.fixture
def interrupted(processes):
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
    assert interrupted(lambda: Waiter().wait(timeout)) < SOON


@pytest.mark.parametrize(
    "waiting",
    [
        lambda mesh, future: future.result(),
        lambda mesh, future: wait([future]),
        lambda mesh, future: wait([future], return_when=FIRST_COMPLETED),
        lambda mesh, future: next(as_completed([future], timeout=30)),
        lambda mesh, future: gather([future]),
        lambda mesh, future: next(mesh.map(stay, [True], chunksize=1)),
        lambda mesh, future: next(mesh.pipe([True], stay, len)),
        lambda mesh, future: mesh._client.wait_for_all(),
    ],
    ids=["result", "wait", "first", "as_completed", "gather", "map", "pipe", "close"],
)
def test_each_way_of_waiting_for_tasks(mesh, interrupted, waiting):
    future = mesh.submit(stay, True)
    try:
        assert interrupted(lambda: waiting(mesh, future)) < SOON
    finally:
        future.cancel()


def test_the_wait_for_callbacks(interrupted):
    callbacks, busy = CallbackThread("callbacks"), threading.Event()
    callbacks.put([lambda: busy.wait(20)])

    assert interrupted(callbacks.flush) < SOON
    busy.set()
    callbacks.close(10)


def test_a_wait_in_steps_lasts_as_long_as_it_is_told():
    steps = []

    def step(seconds):
        steps.append(seconds)
        return len(steps) == 3

    assert interruptible(step, None)
    assert steps == [LOOK_S] * 3
    assert not interruptible(lambda _: False, 0)


def test_a_bell_wakes_once_however_often_it_was_rung():
    bell = LockEvent()
    bell.set()
    bell.set()

    assert bell.wait(0)
    assert not bell.wait(0)
    bell.set()
    bell.clear()
    assert not bell.wait(0)


# --- interrupts while a map submits


def same(value):
    return value


class Struck:
    """An item during whose pickling in the main thread Ctrl-C strikes, when `ready()`."""

    def __init__(self, ready):
        self.ready = ready

    def __reduce__(self):
        if threading.current_thread() is threading.main_thread():
            wait_until(self.ready)
            with heeding_interrupts():
                signal.raise_signal(signal.SIGINT)
        return int, (0,)


@pytest.mark.usefixtures("processes")
def test_map_that_is_interrupted_as_it_begins_is_given_up(mesh):
    session = mesh._client

    def has_ended():  # the first item, while the map still submits
        [job] = session.maps
        return not job.futures

    with pytest.raises(KeyboardInterrupt):
        mesh.map(same, [1, Struck(has_ended), *range(500)], chunksize=1)

    assert not session.maps
    session.wait_for_all()
    assert list(mesh.map(same, range(10))) == list(range(10))


@pytest.mark.usefixtures("processes")
def test_map_that_is_interrupted_while_it_submits_says_so_when_asked_again(mesh):
    results = mesh.map(same, [1, 2, Struck(lambda: True), 4], buffersize=2, chunksize=1)
    assert next(results) == 1

    with pytest.raises(KeyboardInterrupt):
        next(results)

    with pytest.raises(CancelledError, match="begin it again"):
        next(results)
    mesh._client.wait_for_all()


@pytest.mark.parametrize("buffersize", [None, 2])
def test_map_that_is_interrupted_while_it_waits_is_given_up(mesh, interrupted, buffersize):
    results = mesh.map(stay, [False, True, True, True], buffersize=buffersize, chunksize=1)
    assert next(results) is None

    interrupted(lambda: next(results))

    mesh._client.wait_for_all()  # although `results` is still held, as by a prompt's last traceback
    with pytest.raises(CancelledError, match="begin it again"):
        next(results)
    assert next(results, "end") == "end"
