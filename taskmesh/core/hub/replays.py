"""Replays: dead letters run again, as new tasks with new ids."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from taskmesh.core.hub.state import HubState
from taskmesh.core.hub.submission import Submissions
from taskmesh.core.ids import task_id, text_of
from taskmesh.core.specs import spec_number
from taskmesh.wire.journal import JournalLetter, LetterTask
from taskmesh.wire.runs import KEYED, MAGIC, Run, Spec

KEEP = 86_400.0
"""Seconds for which the outcome of a replay is kept, at least."""

SIGNED = (
    "its call is signed for the id that it had (mesh.secret), and the hub has no key to sign it for another: "
    "submit it again from a program"
)


class Replays:
    """Runs dead letters again, with the tasks that they have blocked.

    The new tasks are those of a client that nobody is: their outcomes are kept for whoever asks by id. What
    the old tasks depended on and got is not computed again.

    Args:
        hub: the books of the hub.
        submissions: enters tasks.
    """

    def __init__(self, hub: HubState, submissions: Submissions) -> None:
        self._hub = hub
        self._submissions = submissions

    @staticmethod
    def refusal(letter: JournalLetter) -> str:
        """Return the reason why a letter cannot be run again; empty if it can."""
        payloads = [payload for each in (letter.task, *letter.blocked) for payload in each.run.payloads]
        heads = {bytes(getattr(payload, "head", payload)[: len(MAGIC)]) for payload in payloads}
        return SIGNED if heads & {MAGIC, KEYED} else ""

    def replay(self, task: int, letter: JournalLetter) -> str:
        """Run a letter again; return the id of its new task, empty if the hub is full."""
        config, tasks = self._hub.config, [letter.task, *letter.blocked]
        if len(self._hub.ledger.tasks) + len(tasks) > config.max_tasks:
            return ""
        label = f"replay {text_of(task)} {len(letter.replays)}"
        client = int.from_bytes(blake2b(label.encode(), digest_size=8).digest(), "big")
        old = [*(each.run.seqs[0] for each in tasks), *(value.seq for value in letter.values)]
        numbers = {seq: number for number, seq in enumerate(dict.fromkeys(old), 1)}
        self._hub.result_cache.forget_failure(
            (letter.task.spec.name, letter.task.run.key), self._hub.now, wall=self._hub.wall
        )
        values = [replace(value, seq=numbers[value.seq]) for value in letter.values]
        specs = {spec_number(spec): spec for spec in map(_detached, tasks)}
        runs = [_renumbered(each, numbers) for each in tasks]
        self._submissions.enter_own(client, letter.user, label, specs=specs, runs=runs, values=values)
        replay = text_of(task_id(client, numbers[letter.task.run.seqs[0]]))
        self._hub.letters.replayed(task, replay)
        self._hub.log("letter.replayed", {"task_id": text_of(task), "replay": replay, "tasks": len(tasks)})
        return replay


def _detached(task: LetterTask) -> Spec:
    """Return the spec of a task that nobody waits for."""
    return replace(task.spec, detach=True, on_client_loss="run", keep=max(task.spec.keep, KEEP))


def _renumbered(task: LetterTask, numbers: dict[int, int]) -> Run:
    """Return the run of a task with other counters; edges to tasks that are not in the letter go."""

    def edges(lists: Iterable[list[int]]) -> list[list[int]]:
        found = [[numbers[seq] for seq in each if seq in numbers] for each in lists]
        return found if any(found) else []

    run = task.run
    return replace(
        run,
        spec=spec_number(_detached(task)),
        seqs=[numbers[run.seqs[0]]],
        needs=edges(run.needs),
        after=edges(run.after),
    )
