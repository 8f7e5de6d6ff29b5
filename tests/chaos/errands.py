"""What the clients of an episode submit: a seed and a number make a task, and say how it may end.

So the judge knows afterwards what each task was, without asking anybody who has taken part.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskmesh import Retry, current_task, gather, task
from tests.faults.checker import CANCELLED
from tests.faults.workload import (
    LONGEST,
    answer,
    around,
    digest,
    misbehave,
    misbehave_by_turns,
    ordinary,
    produce,
    product,
)
from tests.harness.journal import Journal

NO_VALUE = "none"
FOREVER = 30.0
PATIENT = Retry(max=30, backoff=0.02)
CHILDREN = 3


@dataclass(frozen=True)
class Errand:
    """One task to submit.

    Attributes:
        value: what it has to give, as the client's log has it. errors: other right endings, strikes or not.
        again: it may run more than once where nothing strikes. ends: when it has run, its log has its end.
        cancel: the client gives it up so many seconds after it has submitted it.
    """

    function: Callable[..., Any]
    arguments: tuple[object, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    value: str = ""
    errors: frozenset[str] = frozenset()
    again: bool = False
    ends: bool = True
    cancel: float | None = None
    kind: str = ""


@task
def child(depth: int) -> int:
    """One of a family; it has children of its own unless the depth is 0."""
    return sum(gather([child.submit(depth - 1) for _ in range(CHILDREN)])) if depth else 1


def parent(log: str, index: int, depth: int) -> str:
    """A task that submits tasks and waits for them."""

    def count() -> None:
        found = sum(gather([child.submit(depth) for _ in range(CHILDREN)]))
        assert found == CHILDREN ** (depth + 1), found

    return around(log, index, count)


async def coroutine(log: str, index: int, turns: int) -> str:
    """A checksum task that gives way to others so many times."""
    journal, me = Journal(log), current_task()
    fields = (me.id, me.attempt, os.getpid())
    journal.write("start", index, *fields)
    for _ in range(turns):
        await asyncio.sleep(0)
    journal.write("end", index, *fields)
    return answer(index)


def triple(number: int) -> int:
    """An item of a map."""
    return 3 * number


def errand(seed: int, index: int, only: tuple[str, ...] = ()) -> Errand:
    """The task with this number of the client with this seed; `only`: of these kinds."""
    chance = random.Random(f"{seed}-{index}")
    kinds = only or tuple(KINDS)
    kind = chance.choices(kinds, [KINDS[name][0] for name in kinds])[0]
    made = KINDS[kind][1](index, chance)
    return Errand(**{**vars(made), "kind": kind})


# --- the kinds --------------------------------------------------------------------------------------------


def _ordinary(index: int, chance: random.Random, longest: float = LONGEST, **more: Any) -> Errand:
    return Errand(ordinary, (b"", chance.random() * longest), value=answer(index), **more)


def _napping(index: int, chance: random.Random) -> Errand:
    return _ordinary(index, chance, 0.8)


def _urgent(index: int, chance: random.Random) -> Errand:
    return _ordinary(index, chance, 0.02, options={"priority": chance.randint(-3, 3)})


def _bound(index: int, chance: random.Random) -> Errand:
    options = {"on_client_loss": "cancel"}
    return _ordinary(index, chance, 0.05, options=options, errors=frozenset({CANCELLED}), ends=False)


def _expiring(index: int, chance: random.Random) -> Errand:
    options = {"expires": chance.choice((0.05, 0.5, 2.0))}
    return _ordinary(index, chance, 0.02, options=options, errors=frozenset({"TaskExpired"}), ends=False)


def _once(index: int, chance: random.Random) -> Errand:
    options = {"acks": "early"}
    return _ordinary(index, chance, 0.1, options=options, errors=frozenset({"TaskLost"}), ends=False)


def _given_up(index: int, chance: random.Random) -> Errand:
    cancel = chance.choice((0.0, chance.random() * 0.5))
    return _ordinary(index, chance, 0.5, cancel=cancel, errors=frozenset({CANCELLED}), ends=False)


def _heavy(index: int, chance: random.Random) -> Errand:
    data = chance.randbytes(1 << 16) * chance.choice((1, 1, 16, 64))
    return Errand(ordinary, (data, 0.0), value=answer(index, data))


def _producing(index: int, chance: random.Random) -> Errand:
    size = chance.choice((1, 1, 2, 4)) << 20
    return Errand(produce, (size,), value=digest(product(index, size)))


def _coroutine(index: int, chance: random.Random) -> Errand:
    return Errand(coroutine, (chance.randint(0, 20),), value=answer(index))


def _parent(index: int, chance: random.Random) -> Errand:
    return Errand(parent, (chance.choice((0, 0, 1)),), value=answer(index))


def _failing(index: int, chance: random.Random) -> Errand:
    return Errand(misbehave, ("fail",), value=NO_VALUE, errors=frozenset({"LookupError"}), ends=False)


def _flaky(index: int, chance: random.Random) -> Errand:
    deeds = [["fail"]] * chance.randint(1, 3)
    return Errand(misbehave_by_turns, (deeds,), {"retries": PATIENT}, answer(index), again=True)


def _slow(index: int, chance: random.Random) -> Errand:
    errors = frozenset({"TaskTimeout"})
    return Errand(ordinary, (b"", FOREVER), {"timeout": 0.4}, NO_VALUE, errors, ends=False)


def _stuck(index: int, chance: random.Random) -> Errand:
    errors = frozenset({"TaskTimeout"})
    return Errand(misbehave, ("hold_gil", FOREVER), {"hard_timeout": 0.5}, NO_VALUE, errors, ends=False)


def _crashing(index: int, chance: random.Random) -> Errand:
    errors = frozenset({"WorkerCrashed"})
    return Errand(misbehave, ("kill_self",), value=NO_VALUE, errors=errors, again=True, ends=False)


KINDS: dict[str, tuple[float, Callable[[int, random.Random], Errand]]] = {
    "ordinary": (34, _ordinary),
    "nap": (8, _napping),
    "urgent": (6, _urgent),
    "bound": (4, _bound),
    "expiring": (3, _expiring),
    "once": (6, _once),
    "given-up": (5, _given_up),
    "heavy": (2, _heavy),
    "producing": (2, _producing),
    "coroutine": (5, _coroutine),
    "parent": (4, _parent),
    "failing": (3, _failing),
    "flaky": (4, _flaky),
    "slow": (1, _slow),
    "stuck": (0.6, _stuck),
    "crashing": (0.4, _crashing),
}
"""Each kind with its weight."""
