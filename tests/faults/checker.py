"""The offline checker: from the logs of a run, what was lost, duplicated, unexpected, recovered.

The four words are Jepsen's (total-queue), applied to outcomes; the invariants' names are those of the
project's reliability specification. It reads files only, after everything has ended, so that it cannot be
fooled by what the mesh believes of itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.harness.journal import Entry, Journal

OK = "ok"
"""Kind of an outcome that is a value; every other kind names an exception's class."""
CANCELLED = "CancelledError"
CANCELLATION = 1.0
"""Seconds in which the word that a task is cancelled reaches everybody."""

Sample = Mapping[str, object]
"""A hub's status, as `mesh.status()` gives it."""


@dataclass
class Verdict:
    """What the logs say.

    Attributes:
        submitted: tasks that the client asked for. acknowledged: those that the hub said it had.
        succeeded: tasks with a value. ended: kinds of all outcomes, counted.
        lost: acknowledged, and no outcome (or, when the client is gone: never run to the end).
        duplicated: more than one outcome. unexpected: an outcome or an execution of what nobody submitted.
        recovered: never acknowledged as far as the client's log goes, and yet it ended.
        executions: task -> how often it was started. repeated: those that were started more than once.
        violations: invariants that do not hold, in words.
    """

    submitted: int = 0
    acknowledged: int = 0
    succeeded: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    lost: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    unexpected: list[int] = field(default_factory=list)
    recovered: list[int] = field(default_factory=list)
    executions: Counter[int] = field(default_factory=Counter)
    repeated: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.submitted} submitted, {self.acknowledged} acknowledged, {self.succeeded} succeeded; "
            f"{len(self.lost)} lost, {len(self.duplicated)} duplicated, {len(self.unexpected)} unexpected, "
            f"{len(self.recovered)} recovered, {len(self.repeated)} run again"
        )


@dataclass
class _Client:
    submitted: set[int] = field(default_factory=set)
    ids: dict[int, str] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    cancelled: dict[int, float] = field(default_factory=dict)
    outcomes: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[int, int] = field(default_factory=dict)


@dataclass
class _Executions:
    starts: list[Entry] = field(default_factory=list)
    ends: set[tuple[int, int]] = field(default_factory=set)


def check(
    client_log: Journal,
    execution_log: Journal,
    expected: Callable[[int], str],
    *,
    samples: Iterable[Sample] = (),
    window: int = 4096,
    client_gone: bool = False,
    once: Iterable[int] = (),
    hubs: int = 1,
    excused: Iterable[int] = (),
    cancellation: float = CANCELLATION,
) -> Verdict:
    """Judge a run.

    Args:
        expected: what the task with this number has to give, as text.
        samples: the hub's status at several moments. window: most tasks that a slot may have outstanding.
        client_gone: the client was killed, so what has to hold is that acknowledged tasks ran.
        once: at-most-once tasks.
        hubs: how many there were, one after the other: each numbers attempts from 1; what had ended and
            was lost with a hub on its way to the client is run again.
        excused: tasks that are not lost without an outcome, for a reason that the logs do not know.
        cancellation: seconds in which the word that a task is cancelled reaches everybody.
    """
    client, runs = _read_client(client_log), _read_executions(execution_log)
    verdict = Verdict(submitted=len(client.submitted), acknowledged=len(client.accepted))
    verdict.executions.update(entry.index for entry in runs.starts)
    verdict.repeated = sorted(index for index, times in verdict.executions.items() if times > 1)
    _account(verdict, client, runs, client_gone=client_gone, excused=set(excused))
    _check_outcomes(verdict, client, runs, expected)
    _check_attempts(verdict, client, runs, hubs)
    _check_cancelled(verdict, client, runs, cancellation)
    often = [index for index in once if verdict.executions[index] > 1]
    if often:
        verdict.violations.append(f"at-most-once tasks were started again: {_some(often)}")
    for sample in samples:
        _check_books(verdict, sample, window)
    return verdict


def _read_client(log: Journal) -> _Client:
    client = _Client()
    for entry in log.entries():
        match entry.kind:
            case "submit":
                client.submitted.add(entry.index)
            case "submitted":
                client.ids[entry.index] = entry.fields[0]
            case "accepted":
                client.accepted.add(entry.index)
            case "cancel":
                client.cancelled[entry.index] = entry.when
            case "outcome":
                kind, value, attempt = entry.fields[:3]
                client.outcomes[entry.index].append((kind, value))
                client.attempts[entry.index] = int(attempt)
    return client


def _read_executions(log: Journal) -> _Executions:
    runs = _Executions()
    for entry in log.entries():
        if entry.kind == "start":
            runs.starts.append(entry)
        elif entry.kind == "end":
            runs.ends.add((entry.index, int(entry.fields[1])))
    return runs


def _account(
    verdict: Verdict, client: _Client, runs: _Executions, *, client_gone: bool, excused: set[int]
) -> None:
    ran = {index for index, _ in runs.ends}
    ended = ran if client_gone else set(client.outcomes)
    verdict.lost = sorted(client.accepted - ended - client.cancelled.keys() - excused)
    verdict.duplicated = sorted(index for index, told in client.outcomes.items() if len(told) > 1)
    verdict.unexpected = sorted((set(client.outcomes) | set(verdict.executions)) - client.submitted)
    verdict.recovered = sorted((ended & client.submitted) - client.accepted)
    verdict.ended = Counter(told[0][0] for told in client.outcomes.values())
    verdict.succeeded = verdict.ended[OK]
    if verdict.lost:
        verdict.violations.append(f"acknowledged and lost: {_some(verdict.lost)}")
    if verdict.unexpected:
        verdict.violations.append(f"nobody submitted: {_some(verdict.unexpected)}")
    if verdict.duplicated:
        verdict.violations.append(f"more than one outcome: {_some(verdict.duplicated)}")


def _check_outcomes(
    verdict: Verdict, client: _Client, runs: _Executions, expected: Callable[[int], str]
) -> None:
    changed = [index for index, told in client.outcomes.items() if len(set(told)) > 1]
    if changed:
        verdict.violations.append(f"outcomes that changed: {_some(changed)}")
    wrong = [
        index
        for index, told in client.outcomes.items()
        for kind, value in told
        if kind == OK and value != expected(index)
    ]
    if wrong:
        verdict.violations.append(f"values that are not their task's: {_some(wrong)}")
    revived = [index for index in client.cancelled if (OK, expected(index)) in client.outcomes.get(index, ())]
    if revived:
        verdict.violations.append(f"cancelled, and yet given a value: {_some(revived)}")


def _check_attempts(verdict: Verdict, client: _Client, runs: _Executions, hubs: int) -> None:
    """As far as it can be seen, an attempt of one hub runs once, in one place, under its task's id."""
    times: Counter[tuple[int, int]] = Counter()
    strange = []
    for entry in runs.starts:
        task, attempt = entry.fields[0], int(entry.fields[1])
        times[entry.index, attempt] += 1
        if attempt < 1 or client.ids.get(entry.index, task) != task:
            strange.append(entry.index)
    twice = sorted(index for (index, _), count in times.items() if count > hubs)
    if twice:
        verdict.violations.append(f"one attempt was started twice: {_some(twice)}")
    if strange:
        verdict.violations.append(f"run under another task's id, or as attempt 0: {_some(strange)}")
    unfounded = [
        index
        for index, told in client.outcomes.items()
        if told[0][0] == OK and (index, client.attempts[index]) not in runs.ends
    ]
    if unfounded:
        verdict.violations.append(f"the attempt said to have succeeded did not: {_some(unfounded)}")


def _check_cancelled(verdict: Verdict, client: _Client, runs: _Executions, within: float) -> None:
    """The word of a cancellation needs its time, but then nothing starts any more."""
    late = {
        entry.index
        for entry in runs.starts
        if entry.when > client.cancelled.get(entry.index, entry.when) + within
    }
    if late:
        verdict.violations.append(f"started after they were cancelled: {_some(late)}")


def _check_books(verdict: Verdict, sample: Sample, window: int) -> None:
    tasks, pools = sample["tasks"], sample["pools"]
    assert isinstance(tasks, dict)
    assert isinstance(pools, list)
    if sample["accepted"] != sum(tasks.values()) + sample["finished"]:
        verdict.violations.append(
            f"counts do not add up: {sample['accepted']} accepted; {tasks}, {sample['finished']} finished"
        )
    for pool in pools:
        if pool["outstanding"] > pool["slots"] * window:
            verdict.violations.append(
                f"more than the window: pool {pool['pool']} has {pool['outstanding']} tasks outstanding"
            )


def _some(indexes: Iterable[int]) -> str:
    found = sorted(indexes)
    return f"{found[:10]}{' ...' if len(found) > 10 else ''} ({len(found)})"
