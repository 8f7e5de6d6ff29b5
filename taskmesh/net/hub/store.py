"""The store that the settings ask for: checked, opened, and loaded what it needs only then."""

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
"""Seconds that the store has for what waits when the hub ends."""


@contextlib.contextmanager
def outcome_store(config: Config) -> Iterator[tuple[OutcomeStore | None, list[object]]]:
    """The store that the settings ask for, from here to the end of the block, and what the hub is to be told.

    Reads what is stored, for some seconds at most.

    Raises:
        ConfigError: it cannot be used as it is asked for, or its client is not installed.
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
    """What gives the store's address, anew each time, since a mounted Secret may change; None without one.

    Raises:
        ConfigError: the address cannot be used, its file can be read by others, or a password is in sight.
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
