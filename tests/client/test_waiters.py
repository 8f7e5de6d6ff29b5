"""How threads that wait for a mesh's futures are woken: one alone through a descriptor, several by locks."""

import os
import select
import threading

import pytest

from taskmesh.client.futures import waiters as waiters_module
from taskmesh.client.futures.waiters import CROWD, LoneWaiter, Waiter, WaiterPool
from tests.harness.waiting import wait_until

WAIT_S = 10


class WatchedFuture:
    """A future as a waiter sees it."""

    def __init__(self):
        self.watchers = []
        self.ended = False

    def _watch(self, watcher):
        if not self.ended:
            self.watchers.append(watcher)
        return not self.ended

    def _unwatch(self, watcher):
        self.watchers.remove(watcher)

    def end(self):
        self.ended = True
        for watcher in self.watchers:
            watcher(self)


@pytest.fixture
def waiter_pool():
    waiter_pool = WaiterPool()
    yield waiter_pool
    waiter_pool.close()


@pytest.fixture
def waiting(waiter_pool):
    """Begins to wait in a thread; returns the future and the thread."""
    threads = []

    def begin(timeout=WAIT_S):
        future = WatchedFuture()
        thread = threading.Thread(target=waiter_pool.wait, args=(future, timeout))
        thread.start()
        threads.append(thread)
        wait_until(lambda: future.watchers or not thread.is_alive())
        return future, thread

    yield begin
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture
def interrupted(monkeypatch):
    """The next wait ends with Ctrl-C."""

    def strike(waiter, timeout):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(LoneWaiter, "wait", strike)


def is_rung(waiter):
    return bool(select.select([waiter._wake_up.fd], [], [], 0)[0])


def gate_of(future):
    (waiter,) = future.watchers
    return waiter


def test_a_thread_that_waits_alone_has_the_same_descriptor_again_and_again(waiting):
    first, thread = waiting()
    first.end()
    thread.join(WAIT_S)
    second, _ = waiting()
    second.end()

    assert isinstance(gate_of(first), LoneWaiter)
    assert gate_of(second) is gate_of(first)


def test_it_waits_until_it_is_told(waiting):
    for _ in range(3):
        future, thread = waiting()
        assert thread.is_alive()
        future.end()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_threads_beside_it_have_locks_and_so_have_the_next(waiting):
    futures = [waiting()[0] for _ in range(3)]
    for future in futures:
        future.end()
    later, _ = waiting()
    later.end()

    assert [type(gate_of(future)) for future in (*futures, later)] == [LoneWaiter, Waiter, Waiter, Waiter]


def test_the_crowd_is_forgotten(waiter_pool, waiting):
    first, first_thread = waiting()
    second, second_thread = waiting()
    first.end()
    second.end()
    first_thread.join(WAIT_S)
    second_thread.join(WAIT_S)
    for _ in range(CROWD):
        waiter_pool.wait(WatchedFuture(), 0)

    last, _ = waiting()
    last.end()
    assert gate_of(last) is gate_of(first)


def test_what_ended_before_is_not_waited_for(waiter_pool):
    future = WatchedFuture()
    future.end()

    waiter_pool.wait(future, None)


def test_a_late_word_after_a_wait_in_vain_does_not_wake_the_next(waiter_pool, waiting):
    late = WatchedFuture()
    kept = []
    late._unwatch = kept.append
    waiter_pool.wait(late, 0.0)

    future, thread = waiting()
    late.end()  # the port's thread was going through its watchers
    assert gate_of(future) is not kept[0]
    assert not is_rung(gate_of(future))
    assert thread.is_alive()
    future.end()


def test_an_interrupt_takes_the_watcher_back_and_the_next_wait_is_as_any(waiter_pool, waiting, interrupted):
    future = WatchedFuture()
    with pytest.raises(KeyboardInterrupt):
        waiter_pool.wait(future, None)
    assert not future.watchers

    other, _ = waiting()
    other.end()
    assert isinstance(gate_of(other), LoneWaiter)


def test_without_a_descriptor_a_lock_does(waiter_pool, waiting, monkeypatch):
    def none_left():
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(waiters_module, "Wakeup", none_left)
        future, thread = waiting()
        future.end()
        thread.join(WAIT_S)
    other, _ = waiting()
    other.end()

    assert [type(gate_of(one)) for one in (future, other)] == [Waiter, LoneWaiter]


def test_closed_it_lets_go_of_the_descriptor_when_nobody_waits(waiter_pool, waiting):
    future, thread = waiting()
    fd = gate_of(future)._wake_up.fd
    waiter_pool.close()
    os.fstat(fd)

    future.end()
    thread.join(WAIT_S)
    future.watchers.clear()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_mesh_tells_who_waits_alone_last(mesh, port):
    """Who tells it may lose the GIL; whoever else is told must not wait for that."""
    port.gate.clear()
    future = mesh.submit(abs, -1)
    alone = LoneWaiter()
    told = []
    future._watch(alone)
    future._watch(lambda ended: told.append(is_rung(alone)))
    port.release()

    assert alone.wait(WAIT_S)
    assert told == [False]
    assert future.result(WAIT_S) == 1
