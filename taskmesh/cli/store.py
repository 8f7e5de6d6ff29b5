"""`taskmesh store`: a hub's journal, looked at and tidied up from outside, while the hub runs or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.exits import EPILOG, FAILED
from taskmesh.cli.options import ConfigFile, Journal, JournalFile, command, settings
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError, TaskMeshError

if TYPE_CHECKING:
    from taskmesh.journal.port import JournalStore

WORDS = {
    "a": "children",
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
Strict = Annotated[
    bool, typer.Option("--strict", help="The hub has this, too: it decides what a file survives.")
]

store = typer.Typer(
    name="store",
    help="Look at a hub's journal and tidy it up, while the hub runs or not.",
    no_args_is_help=True,
)


@dataclass
class Census:
    """The contents of a journal.

    Attributes:
        kinds: how many entries there are of each kind.
        tasks: tasks that are not over: they wait, run, or have an outcome that nobody has fetched.
        damaged: entries that cannot be read, with the reason; without a key if reading ended there.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    damaged: list[dict[str, str]] = field(default_factory=list)

    def view(self) -> dict[str, object]:
        """Return it in plain data."""
        return {"tasks": self.tasks, "kinds": dict(self.kinds), "damaged": self.damaged}

    def take(self, key: str, data: bytes) -> None:
        """Count an entry."""
        from taskmesh.journal.entries import decode
        from taskmesh.wire.journal import Ends, JournalChunk

        self.kinds[WORDS.get(key.partition("/")[0], "unknown")] += 1
        try:
            entry = decode(key, data)
        except ConfigError as error:
            self.damaged.append({"key": key, "why": str(error)})
            return
        if isinstance(entry, JournalChunk):
            self.tasks += sum(len(run.seqs) for run in entry.runs)
        elif isinstance(entry, Ends):
            self.tasks -= len(entry.seqs)


def store_of(
    *,
    journal: Journal = None,
    journal_file: JournalFile = None,
    strict: Strict = False,
    file: ConfigFile = None,
) -> JournalStore:
    """Return the store of the journal that the options or the configuration name.

    Raises:
        ConfigError: none is named, or its name cannot be used.
    """
    from taskmesh.net.hub.journal import journal_store

    given: dict[str, object] = {"hub__journal": journal, "hub__journal_file": journal_file}
    hub = settings(file, {**given, "hub__strict": strict or None}).hub
    if not hub.journal and not hub.journal_file:
        raise ConfigError("which journal? Say so with --journal FILE|URL, --journal-file or TASKMESH_JOURNAL")
    return journal_store(hub)


def store_command(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command a store, which is closed after it, and the options that name one."""
    return command(store_of)(run)


@contextmanager
def reached(journal: JournalStore) -> Iterator[JournalStore]:
    """Close the store at the end of the block; its failures become a command's.

    Raises:
        ConfigError: there is no journal, or it is none that can be read.
        TaskMeshError: it cannot be reached now.
    """
    from taskmesh.journal.port import JournalUnavailable

    with closing(journal):
        try:
            journal.check()
            yield journal
        except JournalUnavailable as error:
            raise TaskMeshError(f"the journal cannot be used now: {error}") from None


def census(journal: JournalStore) -> Census:
    """Read all entries; an entry whose bytes are damaged ends that."""
    from taskmesh.journal.port import JournalRefused

    found = Census()
    try:
        for portion in journal.load():
            for key, data in portion:
                found.take(key.decode(errors="backslashreplace"), data)
    except JournalRefused as error:
        found.damaged.append({"key": "", "why": str(error)})
    return found


def contents(found: dict[str, Any]) -> str:
    """Return in words what a journal holds."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found["kinds"].items()))
    entries = sum(found["kinds"].values())
    return f"{entries:,} entries{f' ({kinds})' if kinds else ''}, {found['tasks']:,} tasks that are not over"


@store_command
def status(journal: JournalStore, out: Output) -> None:
    """Show where the journal is, what it holds, and what that survives."""
    with reached(journal):
        found = {**journal.status(), **census(journal).view()}

    def told(found: dict[str, Any]) -> str:
        lines = [
            f"journal:   {found['where']}, opened {found['epoch']:,} times, transaction {found['number']:,}",
            f"holds:     {contents(found)}",
            f"takes:     {found['bytes']:,} bytes, {found['disk_bytes']:,} on disk",
            f"survives:  {found['survives']}",
        ]
        if found["damaged"]:
            lines.append(f"damaged:   {len(found['damaged']):,} entries; `taskmesh store check` names them")
        return "\n".join(lines)

    out.value(found, told)


@store_command
def check(journal: JournalStore, out: Output) -> None:
    """Read every entry, and name those that are damaged; the exit code is 1 if there are any."""
    with reached(journal):
        found = census(journal).view()

    def told(found: dict[str, Any]) -> str:
        lines = [contents(found)]
        lines += [f"{each['key'] or 'reading ended'}: {each['why']}" for each in found["damaged"]]
        return "\n".join(lines if found["damaged"] else [f"{lines[0]}: all can be read"])

    out.value(found, told)
    if found["damaged"]:
        raise typer.Exit(FAILED)


@store_command
def compact(journal: JournalStore, out: Output) -> None:
    """Give back the disk space of what has left the journal."""
    with reached(journal):
        before = journal.status()["disk_bytes"]
        journal.compact()
        after = journal.status()["disk_bytes"]
    out.value(
        {"disk_bytes_before": before, "disk_bytes": after}, f"{before:,} bytes on disk, now {after:,} bytes"
    )


for _each in (status, check, compact):
    store.command(epilog=EPILOG)(_each)
