"""The writer's own part, over a link that does what the test wants."""

import threading
import time

from taskmesh.stores import writer
from taskmesh.stores.writer import StoreUnavailable, WritingStore, Written
from tests.harness.waiting import wait_until
from tests.stores.outcomes import becomes, kept_for, success


class Scripted:
    """A link whose `write` is the test's."""

    def __init__(self, write) -> None:
        self.write = write
        self.opened = self.cuts = 0
        self.released = threading.Event()

    def open(self) -> None:
        self.opened += 1

    def read(self, limit, found, skipped, stop) -> None:
        """Nothing is stored."""

    def check(self) -> None:
        """It is there."""

    def disconnect(self) -> None:
        self.cuts += 1
        self.released.set()


def store_over(write) -> WritingStore:
    store = WritingStore(Scripted(write), "somewhere")
    store.load(1, 5.0)
    return store


def test_a_batch_over_which_the_link_breaks_is_tried_a_few_times_and_given_up(monkeypatch):
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.01)
    tries = []

    def write(entries):
        if entries[0].kept.key == "bad":
            tries.append(len(entries))
            raise StoreUnavailable("it broke", broken=True)
        return Written(len(entries))

    store = store_over(write)
    try:
        store.put(kept_for(60, success("bad")))
        becomes(store, dropped=1, waiting=0)
        store.put(kept_for(60, success("good")))
        becomes(store, stored=1, state="connected")
    finally:
        store.close(2.0)

    assert len(tries) == writer.TRIES


def test_what_is_refused_for_the_moment_waits(monkeypatch):
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.01)
    open_now = threading.Event()

    def write(entries):
        if not open_now.is_set():
            raise StoreUnavailable("a replica")
        return Written(len(entries))

    store = store_over(write)
    try:
        store.put(kept_for(60, success("a")))
        wait_until(lambda: store._link.opened > 4, 10)
        becomes(store, state="away", waiting=1, dropped=0)
        open_now.set()
        becomes(store, stored=1, state="connected")
    finally:
        store.close(2.0)


def test_a_store_that_comes_and_goes_does_not_fill_the_log(monkeypatch):
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.001)
    reasons = iter(range(10_000))

    def write(entries):
        raise StoreUnavailable(f"reason {next(reasons)}")

    store = store_over(write)
    try:
        store.put(kept_for(60, success("a")))
        wait_until(lambda: store._link.cuts > 60, 20)
    finally:
        store.close(2.0)

    news = [kind for kind, _ in store.status()[1]]
    assert news.count("store.away") == writer.AT_ONCE


def test_a_link_that_hangs_does_not_hold_up_the_end():
    begun = threading.Event()

    def write(entries):
        begun.set()
        store._link.released.wait(30)
        raise StoreUnavailable("disconnect")

    store = store_over(write)
    store.put(kept_for(60, success("a")))
    assert begun.wait(10)

    began = time.monotonic()
    store.close(0.5)

    assert 0.4 < time.monotonic() - began < 3
    assert not store._thread.is_alive()


def test_one_that_was_never_asked_to_load_just_closes():
    store = WritingStore(Scripted(None), "somewhere")

    store.close(2.0)

    assert store.status()[0]["state"] == "away"
