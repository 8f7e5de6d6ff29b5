"""The delivery thread does its jobs in order, starts late and ends with its mesh."""

import sys
import threading

from taskmesh.client.delivery import Delivery

WAIT_S = 10


def test_delivery_has_no_thread_before_the_first_job():
    before = threading.active_count()

    delivery = Delivery()
    delivery.flush()
    delivery.close(WAIT_S)

    assert threading.active_count() == before


def test_delivery_does_jobs_in_order_and_flush_waits_for_them():
    delivery = Delivery()
    done = []

    delivery.put(lambda i=i: done.append(i) for i in range(100))
    delivery.flush()

    assert done == list(range(100))
    delivery.close(WAIT_S)


def test_delivery_goes_on_after_a_job_that_raises(caplog):
    delivery = Delivery()
    done = []

    delivery.put([lambda: sys.exit(3), lambda: done.append(1)])
    delivery.close(WAIT_S)

    assert done == [1]
    assert "delivery thread" in caplog.text


def test_delivery_takes_nothing_after_close():
    delivery = Delivery()
    done = []
    delivery.put([lambda: done.append(1)])

    delivery.close(WAIT_S)
    delivery.put([lambda: done.append(2)])

    assert done == [1]


def test_delivery_can_be_closed_and_flushed_by_a_job():
    delivery = Delivery()
    ended = threading.Event()

    def job():
        delivery.flush()
        delivery.close(WAIT_S)
        ended.set()

    delivery.put([job])

    assert ended.wait(WAIT_S)


def test_delivery_close_does_not_wait_longer_than_told_for_a_job_that_blocks():
    delivery = Delivery()
    release = threading.Event()
    delivery.put([lambda: release.wait(WAIT_S)])

    delivery.close(0.05)

    release.set()


def test_delivery_whose_thread_could_not_start_tries_again_with_the_next_job(monkeypatch):
    delivery = Delivery()
    done = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        delivery.put([lambda: done.append(1)])
    delivery.put([lambda: done.append(2)])
    delivery.close(WAIT_S)

    assert done == [1, 2]


def test_delivery_closed_while_another_thread_begins_to_flush_keeps_that_one_waiting_no_longer():
    delivery = Delivery()
    done = []
    delivery.put([lambda: done.append(1)])
    worker = delivery._thread

    def is_alive():
        del worker.is_alive  # once
        delivery.close(WAIT_S)
        return True

    worker.is_alive = is_alive
    flusher = threading.Thread(target=delivery.flush, daemon=True)
    flusher.start()
    flusher.join(WAIT_S)

    assert not flusher.is_alive()
    assert done == [1]
