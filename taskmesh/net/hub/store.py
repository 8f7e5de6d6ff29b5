"""The store that a hub's settings ask for: checked, opened, its package loaded only then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from taskmesh.config import Config, HubConfig
from taskmesh.core.events import Restored
from taskmesh.core.hub.result_cache import KEPT_BYTES
from taskmesh.errors import ConfigError
from taskmesh.security.key_files import read_secret
from taskmesh.stores.address import StoreAddress
from taskmesh.stores.port import OutcomeStore

PATIENCE: Final = 5.0
"""Seconds that a hub waits for its store when it starts."""
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
    """Return a function that reads the store's address, for a mounted Secret may change; or None.

    Raises:
        ConfigError: the address cannot be used, others can read its file, or its password could be seen.
    """
    if hub.store and hub.store_file:
        raise ConfigError("give the store's URL once: either hub.store or hub.store_file")
    if hub.store_file:
        source = partial(_from_file, Path(hub.store_file))
        source()
        return source
    if not hub.store:
        return None
    address = StoreAddress.of(hub.store)
    if address.secret:
        raise ConfigError(
            "the store's URL has a password, which others could read in the list of processes, in the "
            "environment or in a file of settings: write the URL into a file of mode 0600, and give "
            "--store-file FILE (TASKMESH_STORE_FILE, hub.store_file)"
        )
    return lambda: address


def _from_file(file: Path) -> StoreAddress:
    return StoreAddress.of(read_secret(file, "the file with the store's URL"))
