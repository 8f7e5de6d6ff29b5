"""`taskmesh store status`: a hub's journal, looked at from outside, while the hub runs or not."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from taskmesh.cli.command import command
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.hub.machine.views.quantities import Bytes

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.hub.journal.store import JournalStore

WORDS = {
    "c": "chunks",
    "d": "cursors",
    "e": "ends",
    "f": "dead letters",
    "h": "house",
    "k": "kept",
    "l": "limits",
    "o": "outcomes",
    "p": "schedules",
    "s": "specs",
    "v": "values",
    "w": "windows",
}
"""The kinds of entries in words, by the letters that their keys begin with."""


def store_of(config: Config) -> JournalStore:
    """Return the store of the journal that the options or the configuration name.

    Raises:
        ConfigError: none is named, or its name cannot be used.
    """
    from taskmesh.hub.journal.journal import journal_store

    if not config.hub.journal and not config.hub.journal_file:
        raise ConfigError("which journal? Say so with --journal FILE|URL, --journal-file or TASKMESH_JOURNAL")
    return journal_store(config.hub)


@command("journal", "journal_file", "strict", subject=store_of)
def status(journal: JournalStore, out: Output) -> None:
    """Show where the journal is, what it holds, and what that survives.

    Example:
        taskmesh store status --journal tasks.db
    """
    from taskmesh.hub.journal.store import JournalUnavailable

    with closing(journal):
        try:
            found = {**journal.status(), **contents(journal)}
        except JournalUnavailable as error:
            raise TaskMeshError(f"the journal cannot be used now: {error}") from None
    out.value(found, in_words)


def contents(journal: JournalStore) -> dict[str, Any]:
    """Return how many entries there are by `kinds`, and how many `tasks` are not over.

    Such tasks wait, run, or have an outcome that nobody has fetched.

    Raises:
        ConfigError: an entry is damaged, or of another version.
    """
    from taskmesh.hub.journal.entries import decode
    from taskmesh.messages.journal_entries import Ends, JournalChunk

    kinds: Counter[str] = Counter()
    tasks = 0
    for key, data in chain.from_iterable(journal.load()):
        entry = decode(key.decode(errors="backslashreplace"), data)
        kinds[WORDS[chr(key[0])]] += 1
        if isinstance(entry, JournalChunk):
            tasks += sum(len(run.seqs) for run in entry.runs)
        elif isinstance(entry, Ends):
            tasks -= len(entry.seqs)
    return {"kinds": kinds, "tasks": tasks}


def in_words(found: dict[str, Any]) -> str:
    """Return the text of `status`."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found["kinds"].items()))
    holds = f"{sum(found['kinds'].values()):,} entries{f' ({kinds})' if kinds else ''}"
    return "\n".join(
        [
            f"journal:   {found['where']}, opened {found['epoch']:,} times, transaction {found['number']:,}",
            f"holds:     {holds}, {found['tasks']:,} tasks that are not over",
            f"takes:     {Bytes(found['bytes'])}, {Bytes(found['disk_bytes'])} on disk",
            f"survives:  {found['survives']}",
        ]
    )
