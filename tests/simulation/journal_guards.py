"""The guards that the promises of a journal rest on, each with a way to take it out."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from taskmesh.hub.machine import collector, journal_events
from taskmesh.hub.machine.books.client_session import ClientSession
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.books.journaled_dict import JournalChanges
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.journal_entries import ENDS, JournalChunk

Patch = pytest.MonkeyPatch


def accepted_when_written(patch: Patch) -> None:
    """Tasks are accepted before the journal has them."""
    patch.setattr(ClientSession, "accepted", property(lambda self: self.submitted))


def edges_written(patch: Patch) -> None:
    """The next hub reads tasks, and not what they depend on."""
    restore = journal_events.restore

    def forget(hub: HubState, chunk: JournalChunk, now: float) -> None:
        runs = [replace(run, needs=[], after=[]) for run in chunk.runs]
        restore(hub, replace(chunk, runs=runs), now)

    patch.setattr(journal_events, "restore", forget)


def outcomes_written(patch: Patch) -> None:
    """It does not look at the outcomes that wait for clients which are away."""
    patch.setattr(journal_events, "_restore_outcome", lambda hub, journal, task, found: None)


def ends_written(patch: Patch) -> None:
    """It does not look at which tasks are over."""
    fill = JournalChanges.fill
    patch.setattr(JournalChanges, "fill", lambda self, found: fill(self, {**found, ENDS: {}}))


def written_again(patch: Patch) -> None:
    """A journal that was emptied under its hub stays as it is."""
    patch.setattr(Journal, "rewrite", lambda self: setattr(self, "is_whole", True))


def outcomes_wait_for_the_journal(patch: Patch) -> None:
    """An outcome leaves the hub though the journal does not have it yet."""
    patch.setattr(JournalChanges, "pending", lambda self, number: 0)


def outcomes_of_several(patch: Patch) -> None:
    """An outcome that others wait for than the client of its task is not written."""
    patch.setattr(collector, "_write_down", lambda hub, record, outcome, waiting: 0)


JOURNAL_GUARDS: tuple[Callable[[Patch], None], ...] = (
    accepted_when_written,
    edges_written,
    outcomes_written,
    ends_written,
    written_again,
    outcomes_wait_for_the_journal,
    outcomes_of_several,
)
