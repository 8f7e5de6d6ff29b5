"""The shell of a client machine: between a mesh's pending table and the link to a hub."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, Protocol

from taskmesh.client.futures.driver import Driver
from taskmesh.client.futures.waiters import interruptible
from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.requests import Request
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.core import actions as act
from taskmesh.core.events import Queued, Requested, SinkAcked, Tick
from taskmesh.errors import HubUnreachable, MeshClosed, MeshRefused, TaskMeshError
from taskmesh.link.shell import Shell
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Failed, Progress, Run, Spec, Value

SPECS_KEPT = 10_000
"""Specs remembered for a hub that has forgotten them; older ones come from the pending table."""
SPEC_BYTES_KEPT = 16 << 20
"""Bytes of functions that travel by value in these specs, at most."""
CLOSED = "this mesh was closed before the hub answered; open a new one"


class OpenTasks(Protocol):
    """The client's pending table, from which a port takes tasks, and to which it brings outcomes.

    Attributes:
        memfd: whether large payloads go into memory files at once, since the port can pass these on.
    """

    memfd: bool

    @property
    def unresolved(self) -> Collection[int]:
        """The tasks without an outcome."""
        return ()

    @property
    def queued(self) -> bool:
        """True if tasks wait for `drain()`."""
        return False

    def drain(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Take the tasks submitted since the last drain, with the specs that are new in them."""
        return [], []

    def pending_runs(self, seqs: Sequence[int] | None = None) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuild unfinished tasks (the given ones, or all drained ones), `again=True`, with their specs."""
        return [], []

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Return the outcomes of those of these tasks that have ended and that pending tasks depend on."""
        return []

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuild those of these tasks whose results are ignored, and such that they need, to run again."""
        return [], []

    def accepted(self, seqs: Sequence[int]) -> None:
        """Take note that these tasks are in the hub's ledger. Repeats are harmless."""
        return

    def resolve(self, done: list[DoneRun], failed: list[Failed]) -> None:
        """Resolve tasks that have ended; skip tasks that are unknown, cancelled or resolved already."""
        return

    def notice(self, progress: list[Progress]) -> None:
        return

    def broken(self, error: BaseException) -> None:
        """Fail every pending future, and every later submit, with `error`: the port cannot go on."""
        return


class NoTasks(OpenTasks):
    """The table of a session that submits nothing: its questions and commands are all there is."""

    memfd = False


class SinkIntake(Protocol):
    """A sink that a program takes from: `taskmesh.client.sink.Sink`."""

    def put(self, message: m.SinkDeliver) -> None: ...

    def renew(self, generation: int, until: float) -> None:
        """Give out what is here until then; if it is of an earlier generation, the hub has taken it back."""
        ...

    def take_acked(self) -> list[tuple[int, int]]:
        """Return the tasks whose outcomes were acknowledged since the last call."""
        ...

    def end(self) -> None:
        """The hub has heard of the end, or the port has ended."""
        ...


class OpenTasksView:
    """The client machine's view of a mesh's pending table."""

    def __init__(self, open_tasks: OpenTasks) -> None:
        self._open_tasks = open_tasks
        self._specs: OrderedDict[int, Spec] = OrderedDict()
        self._spec_bytes = 0
        self._lost: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._open_tasks.unresolved)

    def keep(self, specs: list[tuple[int, Spec]]) -> None:
        """Remember specs that were submitted; the oldest are forgotten beyond the bounds."""
        for number, spec in specs:
            if number not in self._specs:
                self._specs[number] = spec
                self._spec_bytes += len(spec.function)
        while len(self._specs) > SPECS_KEPT or self._spec_bytes > SPEC_BYTES_KEPT:
            self._spec_bytes -= len(self._specs.popitem(last=False)[1].function)

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]:
        """Return specs by number, if they are remembered or a task that has not ended needs them."""
        found = {number: self._specs[number] for number in numbers if number in self._specs}
        missing = set(numbers).difference(found)
        if missing:
            again = [
                (number, spec) for number, spec in self._open_tasks.pending_runs()[0] if number in missing
            ]
            found.update(again)
            self.keep(again)
        return [(number, found[number]) for number in numbers if number in found]

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Return every unresolved task that was drained before, except those that `lose_early` gave up."""
        specs, runs = self._open_tasks.pending_runs()
        lost, self._lost = self._lost, set()
        if lost:
            return self._open_tasks.pending_runs([s for run in runs for s in run.seqs if s not in lost])
        return specs, runs

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        return self._open_tasks.values_of(seqs)

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        return self._open_tasks.calls_of(seqs)

    def lose_early(self, unsent: Set[int]) -> list[Failed]:
        """Give up unresolved at-most-once tasks: their hub is gone, so nobody knows if they ran."""
        specs, runs = self._open_tasks.pending_runs()
        early = {number for number, spec in specs if spec.acks == "early"}
        seqs = [seq for run in runs if run.spec in early for seq in run.seqs if seq not in unsent]
        self._lost = set(seqs)
        text = "the hub was lost while it had this at-most-once task"
        return [Failed(0, seq, 0, "lost", text=text) for seq in seqs]


class Requests:
    """Queries and commands under way, each with a thread that waits for its answer.

    Attributes:
        driver: of a mesh without threads.
    """

    def __init__(self) -> None:
        self.driver: Driver | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[m.Answer]] = {}
        self._ended = False

    def numbered(self, make: Callable[[int], Request]) -> Request:
        """Return a request whose answer nobody waits for."""
        with self._lock:
            self._number += 1
            return make(self._number)

    def ask(self, make: Callable[[int], Request], put: Callable[[Requested], None], timeout: float) -> object:
        """Send a request and wait for its answer, plain data; of a dead letter's call, the whole `Answer`.

        Args:
            make: returns the request with a given number.
            put: passes it to the loop.
            timeout: seconds to wait.

        Raises:
            HubUnreachable: no answer came in time.
            MeshClosed: the mesh was closed.
            TaskMeshError: the hub refuses the request.
        """
        answered: Future[m.Answer] = Future()
        with self._lock:
            if self._ended:
                raise MeshClosed(CLOSED)
            self._number += 1
            number = self._number
            self._waiting[number] = answered
        try:
            put(Requested(make(number)))
            interruptible(partial(_has_come, answered), timeout, self.driver)
            answer = answered.result(0)
        except FutureTimeout:
            raise HubUnreachable(
                f"the hub did not answer within {timeout:g} s: is it running at this address?"
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer.error:
            raise TaskMeshError(answer.error)
        return answer if answer.runs else answer.value

    def end(self) -> None:
        """Fail every request that waits, and all later ones: no answer will come any more."""
        with self._lock:
            self._ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for answered in waiting:
            answered.set_exception(MeshClosed(CLOSED))

    def answered(self, answer: m.Answer) -> None:
        """Pass an answer to the thread that waits for it; one that comes twice or too late is dropped."""
        with self._lock:
            answered = self._waiting.pop(answer.number, None)
        if answered is not None:
            answered.set_result(answer)


def _has_come(answered: Future[m.Answer], seconds: float) -> bool:
    """Wait for an answer; return False if none has come within these seconds."""
    try:
        answered.exception(seconds)
    except FutureTimeout:
        return False
    return True


class ClientShell(Shell[ClientMachine]):
    """One client in a loop; other threads append their requests to `events`.

    Args:
        open_tasks: the pending table.
        config: the machine's settings.
        now: the time.
        send: sends a message to the hub.
        reconnect: drops the link and dials again.

    Attributes:
        table: the machine's view of the pending table.
        requests: queries and commands under way.
        opened: set when the hub has welcomed this client, or refuses it.
        intakes: the sinks that are open here, by name.
    """

    def __init__(
        self,
        open_tasks: OpenTasks,
        config: ClientSettings,
        now: float,
        send: Callable[[act.Send], None],
        reconnect: Callable[[act.Reconnect], None],
    ) -> None:
        self.table = OpenTasksView(open_tasks)
        perform: dict[type, Callable[[Any], object]] = {
            act.Send: send,
            act.Resolve: lambda action: open_tasks.resolve(action.done, action.failed),
            act.Accept: lambda action: open_tasks.accepted(action.seqs),
            act.Tell: lambda action: self._notify(action.message),
            act.Renew: self._renew,
            act.Reconnect: reconnect,
        }
        super().__init__(ClientMachine(config, self.table, now), perform, deque())
        self.requests = Requests()
        self.opened = threading.Event()
        self.intakes: dict[str, SinkIntake] = {}
        self._open_tasks = open_tasks
        self._opened = False

    @property
    def pending(self) -> bool:
        return bool(self.events) or self._open_tasks.queued

    def turn(self, now: float) -> None:
        """Take new tasks in, then requests and the hub's messages.

        Events that come in meanwhile are left for the next turn: one may be the cancellation of a task that
        was not there yet when new ones were taken in, and a hub forgets cancellations of unknown tasks.
        """
        events, machine, perform = self.events, self.machine, self._perform
        left = len(events)
        if self._open_tasks.queued:
            specs, runs = self._open_tasks.drain()
            if specs:
                self.table.keep(specs)
            events.appendleft(Queued(specs, runs))
            left += 1
        elif not left:
            events.append(Tick())
            left = 1
        while left:
            event = events.popleft()
            left -= 1
            if type(event) is SinkAcked:
                intake = self.intakes.get(event.name)
                event.tasks = [] if intake is None else intake.take_acked()
            if type(event) is Requested and isinstance(event.message, m.CancelTasks):
                left -= _gather(event.message, events, left)
            machine.take(event, now)
            for action in machine.act(now):  # at once: the next event looks into the table that this changes
                perform[type(action)](action)
        if not self._opened and self.machine.open:
            self._opened = True
            self.opened.set()

    def _renew(self, action: act.Renew) -> None:
        if (intake := self.intakes.get(action.sink)) is not None:
            intake.renew(action.generation, action.until)

    def _notify(
        self, message: m.Notice | m.Answer | m.ClientRefused | m.SinkDeliver | m.SinkReportAck
    ) -> None:
        if isinstance(message, m.Notice):
            self._open_tasks.notice(message.progress)
        elif isinstance(message, m.Answer):
            self.requests.answered(message)
        elif isinstance(message, m.SinkDeliver):
            if (intake := self.intakes.get(message.sink)) is not None:
                intake.put(message)
        elif isinstance(message, m.SinkReportAck):
            if (intake := self.intakes.pop(message.sink, None)) is not None:
                intake.end()
        else:
            self._open_tasks.broken(MeshRefused(f"the hub refuses this client: {message.reason}"))
            self.opened.set()


def _gather(cancel: m.CancelTasks, events: deque[object], most: int) -> int:
    """Merge the cancellations that follow, up to `most`, into one, for the hub looks for work after each.

    Returns:
        The number of cancellations that were merged.
    """
    taken = 0
    while taken < most and isinstance(ask := events[0], Requested) and isinstance(ask.message, m.CancelTasks):
        cancel.seqs += ask.message.seqs
        cancel.unstarted += ask.message.unstarted
        events.popleft()
        taken += 1
    return taken
