"""Outcomes as hubs keep them, and stores that take them to a test's Redis."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskmesh.shm.blob import Blob
from taskmesh.stores.address import StoreAddress
from taskmesh.stores.writer import QUEUE_BYTES, StoreLink, WritingStore
from taskmesh.wire.runs import DoneRun, Failed, Kept
from tests.harness.waiting import wait_until

KEEP = 60.0


def success(key: str, payload: bytes | Blob = b"result", keep: float = KEEP) -> Kept:
    return Kept("tasks.f", key, keep, [DoneRun(5, 1, 1, "p/0", [7], [payload], 0.1)], [])


def failure(key: str) -> Kept:
    return Kept("tasks.f", key, KEEP, [], [Failed(1, 7, 1, "exception", "ValueError", "bad")])


def kept_for(seconds: float, *entries: Kept) -> list[tuple[float, Kept]]:
    return [(time.monotonic() + seconds, kept) for kept in entries]


def link_from(source: Callable[[], StoreAddress]) -> StoreLink:
    """A link to Redis; only tests that have a server come here, so its client is installed."""
    from taskmesh.stores.redis import RedisLink

    return RedisLink(source)


@contextmanager
def opened(url: str, limit: int = QUEUE_BYTES) -> Iterator[WritingStore]:
    """A store that has not loaded yet."""
    address = StoreAddress.of(url)
    store = WritingStore(link_from(lambda: address), address.shown, limit)
    try:
        yield store
    finally:
        store.close(2.0)


def view(store: WritingStore) -> dict[str, object]:
    return store.status()[0]


def becomes(store: WritingStore, timeout: float = 15.0, **expected: object) -> dict[str, object]:
    """The store's view once it is as expected."""

    def found() -> dict[str, object]:
        seen = view(store)
        return seen if seen.items() >= expected.items() else {}

    return wait_until(found, timeout, f"{expected}, not {view(store)}")


def loaded(url: str, limit: int = 1 << 28) -> dict[str, Kept]:
    """What a new hub would find, by key."""
    with opened(url) as store:
        return {kept.key: kept for _, kept in store.load(limit, 5.0)}
