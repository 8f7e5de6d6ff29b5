"""The journal that a hub's settings ask for: opened, read, and written by a thread of its own."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from taskmesh.config import HubConfig
from taskmesh.core.actions import WriteJournal
from taskmesh.core.events import JournalRead, JournalTold, JournalWritten
from taskmesh.errors import ConfigError, TaskMeshError, missing_extra
from taskmesh.hub.journal.address import JournalAddress, looks_like_url
from taskmesh.hub.journal.entries import changes_of, decode
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.store import JournalStore, JournalUnavailable
from taskmesh.hub.journal.writer import JournalState, JournalWriter
from taskmesh.hub.shell import HubShell
from taskmesh.messages.journal_entries import lacking
from taskmesh.security.key_files import read_secret
from taskmesh.system.clock import monotonic, wall
from taskmesh.system.loop import Loop
from taskmesh.system.wakeup import Wakeup

REPORT: Final = 0.1
"""Seconds between two looks at the journal's state."""
FLUSH: Final = 5.0
"""Seconds in which what waits is written when the hub ends."""


class HubJournal:
    """A hub's journal: it has changes written, and tells the hub's machine how far that is.

    Args:
        writer: the thread that writes it.
        wakeup: set by the writer.
        first: the event with what was read.
    """

    def __init__(self, writer: JournalWriter, wakeup: Wakeup, first: JournalRead) -> None:
        self._writer = writer
        self._wakeup = wakeup
        self._first: JournalRead | None = first
        self._events: deque[object] = deque()
        self._positions: deque[tuple[int, int]] = deque()
        self._state = JournalState.CONNECTED
        self._seen = (0, 0)
        self.deadline = 0.0

    def start(self, loop: Loop, hub: HubShell) -> None:
        """Give the hub what was read before anybody speaks to it, and tell it from now on what is written."""
        self._events = hub.events
        if self._first is not None:
            self._events.append(self._first)
            self._first = None  # what the hub does not keep of it is to go
        self._writer.start()
        hub.turn(monotonic())
        loop.watch(self._wakeup.fd, self._on_wakeup)
        loop.timers.append(self)

    def write(self, action: WriteJournal) -> None:
        changes = changes_of(action.changes)
        put = self._writer.replace(changes.puts) if action.is_whole else self._writer.put(changes)
        self._positions.append((put, action.number))

    def turn(self, now: float) -> None:
        """Look at the journal's state.

        Raises:
            TaskMeshError: another hub has the journal.
        """
        self.deadline = now + REPORT
        seen, self._seen = self._seen, (self._writer.unconfirmed.size, self._writer.confirmed)
        if not self._writer.changed and seen == self._seen:
            return
        view, news = self._writer.status()
        state, self._state = self._state, self._writer.state
        is_lost = self._state is JournalState.REGRESSED and state is not self._state
        self._events.append(JournalTold(view, self._writer.is_full, is_lost, news))
        if self._state is JournalState.SUPERSEDED:
            raise TaskMeshError(f"this hub stops: {view['why']}")

    def _on_wakeup(self) -> None:
        self._wakeup.clear()
        written = 0
        while self._positions and self._positions[0][0] <= self._writer.confirmed:
            _, written = self._positions.popleft()
        if written:
            self._events.append(JournalWritten(written))
        self.deadline = -math.inf


@contextlib.contextmanager
def hub_journal(config: HubConfig) -> Iterator[HubJournal | None]:
    """Open and read the journal that the settings ask for, until the end of the block; None without one.

    Raises:
        ConfigError: it cannot be used, or would lose what is written.
    """
    if not config.journal and not config.journal_file:
        if config.strict:
            raise ConfigError("hub.strict is about a journal: give its place too (--journal, hub.journal)")
        yield None
        return
    store = journal_store(config)
    with contextlib.ExitStack() as closing:
        closing.callback(store.close)
        try:
            opened = store.open()
            read = _read(store)
        except JournalUnavailable as error:
            raise ConfigError(f"the journal cannot be used: {error}") from None
        wakeup = Wakeup()
        closing.callback(wakeup.close)
        writer = JournalWriter(store, opened, strict=config.strict, wake=wakeup.set)
        closing.callback(writer.close, FLUSH)
        journal = HubJournal(writer, wakeup, read)
        del read  # or it would stay for as long as the hub
        yield journal


def _read(store: JournalStore) -> JournalRead:
    """Read all entries; only those of one portion are there as bytes and as objects at a time."""
    entries = {}
    for portion in store.load():
        for data_key, data in portion:
            key = data_key.decode()
            entries[key] = decode(key, data)
    if missing := lacking(entries):
        raise ConfigError(
            f"the journal is damaged: {len(missing)} of its entries are missing ({', '.join(missing[:3])}), "
            "without which its tasks cannot run. Put back a copy, or move it away to begin with an empty one"
        )
    return JournalRead(entries, wall())


def journal_store(config: HubConfig) -> JournalStore:
    """Return the store of the journal that the settings name, not opened yet.

    Raises:
        ConfigError: its name cannot be used, or its client package is not installed.
    """
    is_address = looks_like_url(config.journal) or config.journal_file
    source = _address_source(config.journal, config.journal_file) if is_address else None
    if source is None:
        return FileJournal(Path(config.journal), strict=config.strict)
    try:
        from taskmesh.hub.journal.redis import RedisJournal
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise ConfigError(missing_extra("a journal in Redis", "the Python package redis", "redis")) from None
    return RedisJournal(source, strict=config.strict)


def _address_source(url: str, file: str) -> Callable[[], JournalAddress]:
    """Return a function that reads an address, for a mounted Secret may change.

    Args:
        url: the address.
        file: the path of a file with the address.

    Raises:
        ConfigError: the address cannot be used, others can read its file, or its password could be seen.
    """
    if url and file:
        raise ConfigError("give the journal's URL once: either hub.journal or hub.journal_file")
    if file:
        source = partial(_from_file, Path(file))
        source()
        return source
    address = JournalAddress.of(url)
    if address.secret:
        raise ConfigError(
            "the journal's URL has a password, which others could read in the list of processes, in the "
            "environment or in a file of settings: write the URL into a file of mode 0600, and give "
            "--journal-file FILE (TASKMESH_JOURNAL_FILE, hub.journal_file)"
        )
    return lambda: address


def _from_file(file: Path) -> JournalAddress:
    return JournalAddress.of(read_secret(file, "the file with the journal's URL"))
