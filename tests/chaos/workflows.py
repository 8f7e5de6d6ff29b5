"""The kinds of workflow in a soak. With each task its client writes down how it has to end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from taskmesh import Mesh, Outcome, TaskFuture, TaskState, current_task
from taskmesh.client.batch import Batch
from taskmesh.errors import TaskMeshError
from tests.chaos.errands import NO_VALUE, parent
from tests.faults.checker import CANCELLED, OK
from tests.faults.workload import answer, around, digest, misbehave, ordinary, span
from tests.harness.journal import Journal

RATE = 20
AT_ONCE = 2
LIMITS = {"rate": f"soak-rate:{RATE}/s", "concurrency": f"soak-concurrency:{AT_ONCE}"}
EXPIRES = 25.0
"""Seconds after which a promise ends that nobody is left to fulfil."""
GONE = "gone"
"""Stands among the errors of a task that may never run when its client is gone."""
RECENT = 30
"""So many tasks of others are there to attach to."""
LONGEST_DELAY = 4.0
NAP = 0.3
NAPPERS = 30
"""One in so many tasks of a graph takes a nap."""


# --- what runs in slots -----------------------------------------------------------------------------------


def node(log: str, index: int, *inputs: object) -> str:
    """A task of a graph: what it gives is made of what it has got. Some last while a hub dies."""
    pause = NAP if index % NAPPERS == 0 else 0.0
    return around(log, index, lambda: span(pause), "".join(map(word, inputs)).encode())


def word(value: object) -> str:
    """An input as it goes into the value of the task that has got it."""
    match value:
        case Outcome():
            good = value.state == TaskState.SUCCEEDED
            return word(value.result()) if good else type(value.exception()).__name__
        case list():
            return "".join(map(word, value))
        case bytes():
            return digest(value)
    return str(value)


def timely(log: str, index: int, due: float) -> str:
    """A task that may not start before its time."""

    def check() -> None:
        assert time.time() >= due - 0.002, f"{due - time.time()} s early"

    return around(log, index, check)


def limited(log: str, index: int, spans: str, limits: str, nap: float) -> str:
    """A task that writes its span down beside those of all clients' limited tasks."""
    me, journal = current_task(), Journal(spans)
    fields = (limits, me.id, me.attempt, os.getpid())
    journal.write("begin", index, *fields)
    value = ordinary(log, index, b"", nap)
    journal.write("finish", index, *fields)
    return value


# --- the client's side ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A future, and the word for what it has to give."""

    future: TaskFuture[Any]
    value: str


class Ledger:
    """A client's tasks under way, and its log of them. It keeps nothing of what has ended.

    Attributes:
        log: The client's own. executions: That of its tasks.
        shared: Ids and values of tasks, for other clients. spans: Those of limited tasks of all clients.
        promises: Those that are still to be fulfilled, each with its value.
    """

    def __init__(self, mesh: Mesh, folder: Path, name: str, say: Callable[[str], object]) -> None:
        self.mesh = mesh
        self.name = name
        self.log = Journal(folder / f"{name}.log")
        self.executions = Journal(folder / f"{name}-executions.log")
        self.shared = Journal(folder / "shared.log")
        self.spans = Journal(folder / "spans.log")
        self.promises: dict[str, Node] = {}
        self._say = say
        self._next = 0
        self._open: set[TaskFuture[Any]] = set()
        self._unconfirmed: dict[int, TaskFuture[Any]] = {}

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: object,
        kind: str,
        errors: Iterable[str] = (),
        group: Batch | None = None,
        **options: Any,
    ) -> Node:
        """Submit a task; it has to end with the value that its number and inputs make, or with an error."""
        index = self._next
        self._next += 1
        inputs = "".join(one.value for one in arguments if isinstance(one, Node))
        value = NO_VALUE if function is misbehave else answer(index, inputs.encode())
        self.log.write("plan", index, kind, value, *errors)
        self.log.write("submit", index)
        # without options tasks of one function travel as one run, dependents too
        surface = group or (self.mesh.with_options(**options) if options else self.mesh)
        future = surface.submit(
            function,
            self.executions.path,
            index,
            *(one.future if isinstance(one, Node) else one for one in arguments),
        )
        self.log.write("submitted", index, future.task_id)
        self._unconfirmed[index] = future
        self._open.add(future)

        def ended(future: Future[Any]) -> None:
            assert isinstance(future, TaskFuture)
            found, value = ending(future)
            self.log.write("outcome", index, found, value, future.attempt)
            self._open.discard(future)

        future.add_done_callback(ended)
        return Node(future, value)

    def watch(self, future: TaskFuture[Any], value: str, *errors: str) -> Node:
        """Expect this end of what is no task of this client's."""
        self._open.add(future)

        def ended(future: Future[Any]) -> None:
            assert isinstance(future, TaskFuture)
            found = ending(future)
            if found != (OK, value) and found[0] not in errors:
                why = "" if future.cancelled() else f": {future.exception()!r}"
                self._say(f"{future!r} gave {found} instead of {value}{why}")
            self._open.discard(future)

        future.add_done_callback(ended)
        return Node(future, value)

    def tend(self) -> int:
        """Log what the hub has confirmed, fulfil promises; return how many tasks are under way."""
        for index, future in list(self._unconfirmed.items()):
            if future.accepted:
                self.log.write("accepted", index)
            if future.accepted or future.done():
                del self._unconfirmed[index]
        for key, promised in list(self.promises.items()):
            try:  # again and again: a hub that is killed forgets it
                if promised.future.done():
                    del self.promises[key]
                else:
                    self.mesh.fulfil(key, promised.value, timeout=0.5)
            except TaskMeshError:
                break
        return len(self._open)


def ending(future: TaskFuture[Any]) -> tuple[str, str]:
    """The kind and the value of an end, as logs have them."""
    try:
        return OK, word(future.result())
    except CancelledError:
        return CANCELLED, "-"
    except BaseException as error:  # noqa: BLE001  whatever the task ended with goes into the log
        return type(error).__name__, "-"


# --- the kinds --------------------------------------------------------------------------------------------


def chain(ledger: Ledger, chance: random.Random) -> None:
    last = ledger.submit(node, kind="chain")
    for _ in range(chance.randint(1, 8)):
        last = ledger.submit(node, last, kind="chain")
    ledger.shared.append(f"{last.future.task_id} {last.value}")


def graph(ledger: Ledger, chance: random.Random) -> None:
    """Layers in which each task has two upstreams; one task takes the last layer."""
    layer = [ledger.submit(node, kind="graph") for _ in range(chance.randint(2, 8))]
    for _ in range(chance.randint(0, 3)):
        layer = [ledger.submit(node, *chance.choices(layer, k=2), kind="graph") for _ in layer]
    ledger.submit(node, *layer, kind="graph")


def finalizer(ledger: Ledger, chance: random.Random) -> None:
    """One of the tasks fails: what depends on it does, but for those who want to know."""
    good = [ledger.submit(node, kind="finalizer") for _ in range(chance.randint(0, 3))]
    bad = ledger.submit(misbehave, "fail", kind="finalizer", errors=["LookupError"])
    bad = Node(bad.future, "LookupError")
    ledger.submit(node, *good, bad, kind="finalizer", when="done")
    ledger.submit(node, bad, kind="finalizer", when="failure")
    blocked = Node(bad.future, "")
    ledger.submit(node, blocked, kind="blocked", errors=["DependencyError"])


def delayed(ledger: Ledger, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 5)):
        delay = chance.random() * LONGEST_DELAY
        due = time.time() + delay
        when = {"at": datetime.fromtimestamp(due, UTC)} if chance.random() < 0.5 else {"delay": delay}
        ledger.submit(timely, due, kind="delayed", **when)


def limits(ledger: Ledger, chance: random.Random) -> None:
    names = chance.choice((["rate"], ["concurrency"], ["rate", "concurrency"]))
    for _ in range(chance.randint(1, 8)):
        arguments = (ledger.spans.path, "+".join(names), chance.random() * 0.05)
        ledger.submit(limited, *arguments, kind="limited", limit=[LIMITS[name] for name in names])


def batch(ledger: Ledger, chance: random.Random) -> None:
    with ledger.mesh.batch() as members:
        for _ in range(chance.randint(1, 20)):
            ledger.submit(node, kind="batch", group=members)
    ledger.submit(node, kind="after-batch", after=list(members))


def promised(ledger: Ledger, chance: random.Random) -> None:
    key = f"{ledger.name}-{chance.getrandbits(60)}"
    promise = ledger.watch(ledger.mesh.promise(key, expires=EXPIRES), key)
    ledger.promises[key] = promise
    for _ in range(chance.randint(1, 3)):
        ledger.submit(node, promise, kind="after-promise", errors=[GONE])


def put(ledger: Ledger, chance: random.Random) -> None:
    data = chance.randbytes(1 << 10) * chance.choice((1, 100, 1000))
    value = Node(ledger.mesh.put(data), digest(data))
    for _ in range(chance.randint(1, 5)):
        ledger.submit(node, value, kind="put")


def attached(ledger: Ledger, chance: random.Random) -> None:
    """Tasks of other clients, which may have ended, or be gone with their client and the hub."""
    for line in chance.sample(lines := ledger.shared.lines()[-RECENT:], min(2, len(lines))):
        task_id, value = line.split()
        other = ledger.watch(ledger.mesh.attach(task_id), value, "UnknownTask")
        ledger.submit(node, other, kind="after-attached", errors=["DependencyError"])
        ledger.submit(node, kind="after-id", after=task_id, errors=["DependencyError"])


def family(ledger: Ledger, chance: random.Random) -> None:
    ledger.submit(parent, chance.choice((0, 0, 1)), kind="parent")


WORKFLOWS: dict[Callable[[Ledger, random.Random], None], float] = {
    chain: 3,
    graph: 3,
    finalizer: 3,
    delayed: 2,
    limits: 1,
    batch: 2,
    promised: 0.3,
    put: 1,
    attached: 2,
    family: 1,
}
"""Each kind with its weight."""
