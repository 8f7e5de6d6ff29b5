"""What an episode's logs say: the fault tests' checker for each client, and what may have ended how."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chaos.company import Life, Record
from tests.chaos.errands import Errand, errand
from tests.faults.checker import CANCELLED, OK, Sample, check
from tests.harness.cluster import LEASE
from tests.harness.journal import Entry, Journal
from tests.harness.program import Program

CRASHED = "WorkerCrashed"
CRASH_LIMIT = 3
RESUBMISSION = 10.0
"""Seconds after a hub's death in which a client has given all that it has to the next hub, if it lives."""
SPREADING = 10.0 * LEASE
"""Seconds in which a cancellation reaches everybody: hubs are away and pools stand still meanwhile."""
TRACES = ("Traceback", "Fatal Python error", "Exception ignored", "Assertion failed")
"""Words that no program of ours says, whatever is done to it."""
SHOWN = 5


class Account:
    """One client's tasks: what each was, what was done to it, and what it has ended with.

    Args:
        only: the kinds that its errands were restricted to.
    """

    def __init__(self, folder: Path, life: Life, only: tuple[str, ...] = ()) -> None:
        name = life.program.name
        self.life = life
        self.log = Journal(folder / f"{name}.log")
        self.executions = Journal(folder / f"{name}-executions.log")
        self.errands: dict[int, Errand] = {}
        self.ids: dict[int, str] = {}
        self.endings: dict[int, str] = {}
        self.starts: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.log.entries():
            match entry.kind:
                case "plan":  # it comes first, where the seed does not say what the task is
                    self.errands[entry.index] = _planned(*entry.fields)
                case "submit" if entry.index not in self.errands:
                    self.errands[entry.index] = errand(life.seed, entry.index, only)
                case "submitted":
                    self.ids[entry.index] = entry.fields[0]
                case "outcome":
                    self.endings[entry.index] = entry.fields[0]
        for entry in self.executions.entries():
            if entry.kind == "start":
                self.starts[entry.index].append(entry)

    def of_kind(self, *kinds: str) -> set[int]:
        return {index for index, made in self.errands.items() if made.kind in kinds}


def _planned(kind: str, value: str, *errors: str) -> Errand:
    """The task that a client has written down."""
    return Errand(print, value=value, errors=frozenset(errors), ends=not errors, kind=kind)


def judge(account: Account, record: Record, *, harsh: bool) -> list[str]:
    """What is wrong with one client's tasks, in words."""
    name = account.life.program.name
    verdict = check(
        account.log,
        account.executions,
        lambda index: account.errands[index].value if index in account.errands else "",
        client_gone=account.life.killed is not None,
        once=account.of_kind("once"),
        hubs=1 + len(record.hub_kills),
        excused=_excused(account, record),
        cancellation=SPREADING,
    )
    found = [f"{name}: {violation}" for violation in verdict.violations]
    found += _wrong_endings(account, record)
    if not harsh:
        again = [index for index in verdict.repeated if not account.errands[index].again]
        found += [f"{name}: run again without a cause: {_told(account, again)}"] if again else []
    return found


def _excused(account: Account, record: Record) -> set[int]:
    """Tasks of a client that is gone that were accepted, and yet may have left no end in the logs."""
    killed = account.life.killed
    if killed is None:
        return set()
    if any(moment > killed - RESUBMISSION for moment in record.hub_kills):
        return set(account.errands)  # nobody is left who could have told the next hub of them
    unlogged = {index for index, made in account.errands.items() if not made.ends}
    cancelled = {index for index, task in account.ids.items() if task in record.cancelled}
    crashed = {index for index in account.starts if _struck(account, index, record) >= CRASH_LIMIT}
    return unlogged | cancelled | crashed | set(account.endings)


def _wrong_endings(account: Account, record: Record) -> list[str]:
    """Endings that a task may not have had: another's errors, cancelled by nobody, blamed without guilt."""
    wrong: dict[str, list[int]] = defaultdict(list)
    for index, kind in account.endings.items():
        made, task = account.errands[index], account.ids.get(index, "")
        if kind == CRASHED:
            if _guilt(account, index, record) < CRASH_LIMIT:
                wrong["blamed for a crash that it had no part in"].append(index)
        elif kind == CANCELLED:
            if CANCELLED not in made.errors and task not in record.cancelled:
                wrong["cancelled by nobody"].append(index)
        elif kind == OK:
            if task in record.confirmed and not record.hub_kills:
                wrong["cancelled by an operator, and yet given a value"].append(index)
        elif kind not in made.errors:
            wrong[f"ended with {kind}"].append(index)
    name = account.life.program.name
    return [f"{name}: {what}: {_told(account, indexes)}" for what, indexes in sorted(wrong.items())]


def _guilt(account: Account, index: int, record: Record) -> int:
    """Return the number of deaths of slots that may be charged to a task, its own deeds among them.

    One more may have been struck between its ticket and the first line of its function, which writes the
    start: 30 minutes of faults on a busy machine had two such, each within 0.2 s of the kill.
    """
    if account.errands[index].kind == "crashing":
        return len(account.starts[index]) + bool(record.struck)
    return _struck(account, index, record)


def _struck(account: Account, index: int, record: Record) -> int:
    return sum(int(entry.fields[2]) in record.struck for entry in account.starts[index])


def _told(account: Account, indexes: Iterable[int]) -> str:
    found = sorted(indexes)
    words = [f"{index} ({account.errands[index].kind}, {account.ids.get(index, '?')})" for index in found]
    return ", ".join(words[:SHOWN]) + f" ... ({len(found)})" * (len(found) > SHOWN)


def books(status: Sample) -> list[str]:
    """What is wrong with a hub's status when nothing is under way any more."""
    tasks, pools = status["tasks"], status["pools"]
    assert isinstance(tasks, dict)
    assert isinstance(pools, list)
    found = []
    if any(tasks.values()) or status["accepted"] != status["finished"]:
        found.append(
            f"the ledger is not empty: {status['accepted']} accepted, {status['finished']} finished; {tasks}"
        )
    found += [f"{pool['pool']} still holds {pool['outstanding']}" for pool in pools if pool["outstanding"]]
    return found


def traces(programs: Iterable[Program]) -> list[str]:
    """What programs have said that none of ours may say."""
    found = []
    for program in programs:
        for stream in ("stdout", "stderr"):
            text = program.text(stream)
            places = [text.find(trace) for trace in TRACES if trace in text]
            if places:
                found.append(f"{program.name} says on {stream}: {text[min(places) :][:1500]}")
        found += [
            f"{program.name}: {event['text']}" for event in program.events() if event.get("event") == "wrong"
        ]
    return found


def endings(accounts: Iterable[Account]) -> Mapping[str, int]:
    """How many tasks have ended how."""
    return Counter(kind for account in accounts for kind in account.endings.values())
