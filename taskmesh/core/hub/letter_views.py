"""Dead letters as operators see them, and what they may have done with them."""

from __future__ import annotations

from itertools import islice
from typing import Any

from taskmesh.core.hub.replays import Replays
from taskmesh.core.hub.state import HubState
from taskmesh.core.ids import parse, text_of
from taskmesh.wire import messages as m
from taskmesh.wire.journal import JournalLetter

LISTED, SHOWN = "dead", "dead-letter"
"""Queries: all letters, the newest first, and one of them."""
REPLAY, REPLAY_AGAIN, PURGE = "dead-replay", "dead-replay-again", "dead-purge"
"""Commands for one letter."""


class LetterViews:
    """Answers queries and commands about dead letters.

    Args:
        hub: the books of the hub.
        replays: runs them again.
    """

    def __init__(self, hub: HubState, replays: Replays) -> None:
        self._hub = hub
        self._replays = replays

    def answer(self, query: m.Query) -> m.Answer | None:
        """Answer a query; None if it is about something else."""
        letters = self._hub.letters.letters
        if query.what == LISTED:
            newest = islice(reversed(letters.items()), max(1, query.limit))
            return m.Answer(query.number, [_row(text_of(task), letter) for task, letter in newest])
        if query.what != SHOWN:
            return None
        task = _parsed(query.argument)
        letter = letters.get(task)
        if letter is None:
            return m.Answer(query.number, None, _unknown(query.argument))
        return m.Answer(query.number, _details(text_of(task), letter))

    def obey(self, command: m.Command) -> m.Answer | None:
        """Obey a command; None if it is about something else."""
        if command.verb not in (REPLAY, REPLAY_AGAIN, PURGE):
            return None
        task, number = _parsed(command.target), command.number
        letter = self._hub.letters.letters.get(task)
        if letter is None:
            return m.Answer(number, None, _unknown(command.target))
        if command.verb == PURGE:
            self._hub.letters.purge(task)
            return m.Answer(number, {"purged": text_of(task)})
        if letter.replays and command.verb == REPLAY:
            text = f"it was run again already, as task {letter.replays[-1]}: say --again to do that once more"
            return m.Answer(number, None, text)
        refusal = self._replays.refusal(letter)
        if refusal:
            return m.Answer(number, None, refusal)
        replay = self._replays.replay(task, letter)
        if not replay:
            return m.Answer(number, None, "the hub is full (hub.max_tasks): try again later")
        told = {"letter": text_of(task), "task_id": replay, "tasks": 1 + len(letter.blocked)}
        return m.Answer(number, told)


def _parsed(text: str) -> int:
    """Return the id in a text; 0, which no task has, if it is none."""
    try:
        return parse(text)
    except ValueError:
        return 0


def _unknown(text: str) -> str:
    return f"there is no dead letter {text!r}: `taskmesh dead list` shows those that there are"


def _row(task: str, letter: JournalLetter) -> dict[str, Any]:
    """Return a row about a letter in plain data."""
    end = letter.attempts[-1].failed
    return {
        "task_id": task,
        "name": letter.task.spec.name,
        "state": letter.state,
        "ended": letter.at,
        "attempts": len(letter.attempts),
        "error": f"{end.type_name}: {end.text}"[:300] if end.type_name else f"{end.kind} {end.text}"[:300],
        "blocked": len(letter.blocked),
        "replays": list(letter.replays),
    }


def _details(task: str, letter: JournalLetter) -> dict[str, Any]:
    """Return all about a letter in plain data."""
    spec = letter.task.spec
    return {
        **_row(task, letter),
        "client": letter.client,
        "queue": spec.queue,
        "key": letter.task.run.key,
        "blocked_tasks": [each.spec.name for each in letter.blocked[:1000]],
        "history": [
            {
                "at": each.at,
                "attempt": each.failed.attempt - each.failed.returns,
                "worker": each.failed.worker,
                "kind": each.failed.kind,
                "type": each.failed.type_name,
                "text": each.failed.text,
                "traceback": each.failed.traceback,
                "output": each.failed.output,
            }
            for each in letter.attempts
        ],
    }
