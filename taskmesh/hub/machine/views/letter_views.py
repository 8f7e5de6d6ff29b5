"""Dead letters as people see them, and what they may have done with them."""

from __future__ import annotations

from itertools import islice
from typing import Any

from taskmesh.core.ids import parse, text_of
from taskmesh.hub.machine.owners import sees_all
from taskmesh.hub.machine.state import HubState
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalLetter

LISTED, SHOWN, CALL = "dead", "dead-letter", "dead-call"
"""Queries: all letters, the newest first; one of them; and the call of one, to be submitted again."""
PURGE = "dead-purge"
"""The command that has a letter forgotten."""

HAS_VALUES = (
    "results of other tasks were among its arguments, and they are not kept: submit it again from a program"
)


def answer(hub: HubState, query: m.Query, user: str) -> m.Answer | None:
    """Answer a query; None if it is about something else.

    Args:
        query: the question.
        user: the user who asks: an operator is told of all letters, others of those of their own tasks.
            A call is told to the one whose task it was.
    """
    letters = hub.letters.letters
    if query.what == LISTED:
        seen = (one for one in reversed(letters.data.items()) if sees_all(user) or one[1].user == user)
        newest = islice(seen, max(1, query.limit))
        return m.Answer(query.number, [_row(text_of(task), letter) for task, letter in newest])
    if query.what not in (SHOWN, CALL):
        return None
    task = _parsed(query.argument)
    letter = letters.get(task)
    if letter is None:
        return m.Answer(query.number, None, _unknown(query.argument))
    if query.what == SHOWN and (sees_all(user) or letter.user == user):
        return m.Answer(query.number, _details(text_of(task), letter))
    if letter.user != user:
        whose = f"the key {letter.user}" if letter.user else "a program without a key"
        may = "can run it again" if query.what == CALL else "and operators are shown it"
        return m.Answer(query.number, None, f"only {whose}, whose task it was, {may}")
    if letter.run.needs:
        return m.Answer(query.number, None, HAS_VALUES)
    return m.Answer(query.number, text_of(task), specs=[letter.spec], runs=[letter.run])


def obey(hub: HubState, command: m.Command) -> m.Answer | None:
    """Obey a command; None if it is about something else."""
    if command.verb != PURGE:
        return None
    task = _parsed(command.target)
    if task not in hub.letters.letters:
        return m.Answer(command.number, None, _unknown(command.target))
    hub.letters.drop(task)
    return m.Answer(command.number, {"purged": text_of(task)})


def _parsed(text: str) -> int:
    """Return the id in a text; 0, which no task has, if it is none."""
    try:
        return parse(text)
    except ValueError:
        return 0


def _unknown(text: str) -> str:
    return f"there is no dead letter {text!r}: `taskmesh dead list` shows those that there are"


def _row(task: str, letter: JournalLetter) -> dict[str, Any]:
    end = letter.failed
    return {
        "task_id": task,
        "name": letter.spec.name,
        "state": letter.state,
        "ended": letter.at,
        "attempts": end.attempt,
        "error": f"{end.type_name}: {end.text}"[:300] if end.type_name else f"{end.kind} {end.text}"[:300],
    }


def _details(task: str, letter: JournalLetter) -> dict[str, Any]:
    end = letter.failed
    return {
        **_row(task, letter),
        "client": letter.client,
        "user": letter.user,
        "queue": letter.spec.queue,
        "key": letter.run.key,
        "worker": end.worker,
        "kind": end.kind,
        "type": end.type_name,
        "text": end.text,
        "traceback": end.traceback,
        "output": end.output,
    }
