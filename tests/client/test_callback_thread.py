"""The callback thread does its jobs in order, starts late and ends with its mesh."""

import sys
import threading

from taskmesh.client.futures.callbacks import CallbackThread

WAIT_S = 10


def test_delivery_has_no_thread_before_the_first_job():
    before = threading.active_count()

    callbacks = CallbackThread()
    callbacks.flush()
    callbacks.close(WAIT_S)

    assert threading.active_count() == before


def test_delivery_does_jobs_in_order_and_flush_waits_for_them():
    callbacks = CallbackThread()
    done = []

    callbacks.put(lambda i=i: done.append(i) for i in range(100))
    callbacks.flush()

    assert done == list(range(100))
    callbacks.close(WAIT_S)


def test_delivery_goes_on_after_a_job_that_raises(caplog):
    callbacks = CallbackThread()
    done = []

    callbacks.put([lambda: sys.exit(3), lambda: done.append(1)])
    callbacks.close(WAIT_S)

    assert done == [1]
    assert "callback thread" in caplog.text


def test_delivery_takes_nothing_after_close():
    callbacks = CallbackThread()
    done = []
    callbacks.put([lambda: done.append(1)])

    callbacks.close(WAIT_S)
    callbacks.put([lambda: done.append(2)])

    assert done == [1]


def test_delivery_can_be_closed_and_flushed_by_a_job():
    callbacks = CallbackThread()
    ended = threading.Event()

    def job():
        callbacks.flush()
        callbacks.close(WAIT_S)
        ended.set()

    callbacks.put([job])

    assert ended.wait(WAIT_S)


def test_delivery_close_does_not_wait_longer_than_told_for_a_job_that_blocks():
    callbacks = CallbackThread()
    release = threading.Event()
    callbacks.put([lambda: release.wait(WAIT_S)])

    callbacks.close(0.05)

    release.set()


def test_delivery_whose_thread_could_not_start_tries_again_with_the_next_job(monkeypatch):
    callbacks = CallbackThread()
    done = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        callbacks.put([lambda: done.append(1)])
    callbacks.put([lambda: done.append(2)])
    callbacks.close(WAIT_S)

    assert done == [1, 2]


def test_delivery_closed_while_another_thread_begins_to_flush_keeps_that_one_waiting_no_longer():
    callbacks = CallbackThread()
    done = []
    callbacks.put([lambda: done.append(1)])
    worker = callbacks._thread

    def is_alive():
        del worker.is_alive  # once
        callbacks.close(WAIT_S)
        return True

    worker.is_alive = is_alive
    flusher = threading.Thread(target=callbacks.flush, daemon=True)
    flusher.start()
    flusher.join(WAIT_S)

    assert not flusher.is_alive()
    assert done == [1]
