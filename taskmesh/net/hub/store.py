"""The store that a hub's settings ask for: checked, opened, its package loaded only then."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from taskmesh.config import Config, HubConfig
from taskmesh.core.events import Restored, StoreTold
from taskmesh.core.hub.result_cache import KEPT_BYTES
from taskmesh.errors import ConfigError
from taskmesh.security.key_files import read_secret
from taskmesh.stores.address import StoreAddress
from taskmesh.stores.port import OutcomeStore

PATIENCE: Final = 5.0
"""Seconds that a hub waits for its store when it starts."""
REPORT: Final = 0.1
"""Seconds between two looks at the store's state."""
FLUSH: Final = 2.0
"""Seconds in which waiting outcomes are written when the hub ends."""


@contextlib.contextmanager
def outcome_store(config: Config) -> Iterator[tuple[OutcomeStore | None, list[object]]]:
    """Open the store that the settings ask for, until the end of the block; yield it, and events for the hub.

    The stored outcomes are read, for PATIENCE seconds at most.

    Raises:
        ConfigError: its settings cannot be used, or its client package is not installed.
    """
    source = store_source(config.hub)
    if source is None:
        yield None, []
        return
    store = _redis_store(source)
    try:
        yield store, [Restored(store.load(KEPT_BYTES, PATIENCE))]
    finally:
        store.close(FLUSH)


class StoreReports:
    """A timer of the hub's loop: it passes on to the machine what a store has to say.

    Args:
        store: the store.
        hub: the hub's events.
    """

    def __init__(self, store: OutcomeStore, hub: deque[object]) -> None:
        self.deadline = 0.0
        self._store = store
        self._hub = hub

    def turn(self, now: float) -> None:
        """Report a change of the store's state."""
        self.deadline = now + REPORT
        if self._store.changed:
            self._hub.append(StoreTold(*self._store.status()))


def store_reports(store: OutcomeStore | None, hub: deque[object]) -> list[StoreReports]:
    """Return the timer for a store, if there is one."""
    return [] if store is None else [StoreReports(store, hub)]


def _redis_store(source: Callable[[], StoreAddress]) -> OutcomeStore:
    try:
        from taskmesh.stores.redis import RedisLink
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise ConfigError("a store needs the Python package redis: pip install 'taskmesh[redis]'") from None
    from taskmesh.stores.writer import WritingStore

    return WritingStore(RedisLink(source), source().shown)


def store_source(hub: HubConfig) -> Callable[[], StoreAddress] | None:
    """Return a function that reads the store's address, or None without one; raises as `address_source`."""
    return address_source("store", hub.store, hub.store_file)


def address_source(what: str, url: str, file: str) -> Callable[[], StoreAddress] | None:
    """Return a function that reads an address, for a mounted Secret may change; None if neither is given.

    Args:
        what: the setting: "store" or "journal".
        url: the address.
        file: the path of a file with the address.

    Raises:
        ConfigError: the address cannot be used, others can read its file, or its password could be seen.
    """
    if url and file:
        raise ConfigError(f"give the {what}'s URL once: either hub.{what} or hub.{what}_file")
    if file:
        source = partial(_from_file, Path(file), what)
        source()
        return source
    if not url:
        return None
    address = StoreAddress.of(url)
    if address.secret:
        raise ConfigError(
            f"the {what}'s URL has a password, which others could read in the list of processes, in the "
            "environment or in a file of settings: write the URL into a file of mode 0600, and give "
            f"--{what}-file FILE (TASKMESH_{what.upper()}_FILE, hub.{what}_file)"
        )
    return lambda: address


def _from_file(file: Path, what: str) -> StoreAddress:
    return StoreAddress.of(read_secret(file, f"the file with the {what}'s URL"))
