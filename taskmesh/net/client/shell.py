"""The shell of a client machine: between a mesh's pending table and the link to a hub."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from taskmesh.core import actions as act
from taskmesh.core.client.machine import ClientMachine
from taskmesh.core.client.settings import ClientSettings
from taskmesh.core.events import Queued, Requested, Tick
from taskmesh.errors import HubUnreachable, MeshClosed, TaskMeshError
from taskmesh.net.client.ports import OutcomeSink
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Failed, Run, Spec

SPECS_KEPT = 10_000
"""Specs remembered for a hub that has forgotten them; older ones come from the pending table."""
SPEC_BYTES_KEPT = 16 << 20
"""The same in bytes of functions that travel by value."""


class SinkTable:
    """The client machine's view of a mesh's pending table."""

    def __init__(self, sink: OutcomeSink) -> None:
        self._sink = sink
        self._specs: OrderedDict[int, Spec] = OrderedDict()
        self._spec_bytes = 0
        self._lost: set[int] = set()

    def keep(self, specs: list[tuple[int, Spec]]) -> None:
        """Remembers specs that were submitted: the last of them, as far as the bounds go."""
        for number, spec in specs:
            if number not in self._specs:
                self._specs[number] = spec
                self._spec_bytes += len(spec.function)
        while len(self._specs) > SPECS_KEPT or self._spec_bytes > SPEC_BYTES_KEPT:
            self._spec_bytes -= len(self._specs.popitem(last=False)[1].function)

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]:
        """Specs by number, as far as they are remembered or a task that has not ended needs them."""
        found = {number: self._specs[number] for number in numbers if number in self._specs}
        missing = set(numbers).difference(found)
        if missing:
            again = [(number, spec) for number, spec in self._sink.pending_runs()[0] if number in missing]
            found.update(again)
            self.keep(again)
        return [(number, found[number]) for number in numbers if number in found]

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Every unresolved task that was drained before, less those that `lose_early` gave up."""
        specs, runs = self._sink.pending_runs()
        lost, self._lost = self._lost, set()
        if lost:
            runs = [run for run in runs if run.seqs[0] not in lost]
        return specs, runs

    def lose_early(self) -> list[Failed]:
        """Unresolved at-most-once tasks: their hub is gone, so nobody can say whether they ran."""
        specs, runs = self._sink.pending_runs()
        early = {number for number, spec in specs if spec.acks == "early"}
        seqs = [seq for run in runs if run.spec in early for seq in run.seqs]
        self._lost = set(seqs)
        text = "the hub was lost while it had this at-most-once task"
        return [Failed(0, seq, 0, "lost", text=text) for seq in seqs]


class Question:
    """One question and, when it has come, its answer."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.answer: m.Answer | None = None


class Questions:
    """Queries and commands on their way, each with a thread that waits for its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Question] = {}
        self._ended = False

    def ask(
        self, make: Callable[[int], m.Query | m.Command], put: Callable[[Requested], None], timeout: float
    ) -> object:
        """Sends a question and waits for its answer.

        Raises:
            HubUnreachable: no answer came in time.
            MeshClosed: nobody listens for one any more.
            TaskMeshError: the hub says why not.
        """
        question = Question()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = question
        try:
            if not self._ended:
                put(Requested(make(number)))
                question.event.wait(timeout)
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        answer = question.answer
        if answer is None:
            if self._ended:
                raise MeshClosed("this mesh was closed before the hub answered; open a new one")
            raise HubUnreachable(
                f"the hub did not answer within {timeout:g} s: is it running at this address?"
            )
        if answer.error:
            raise TaskMeshError(answer.error)
        return answer.value

    def end(self) -> None:
        """No answer will come any more: tells who waits for one."""
        self._ended = True
        with self._lock:
            waiting = list(self._waiting.values())
        for question in waiting:
            question.event.set()

    def answered(self, answer: m.Answer) -> None:
        """An answer has come."""
        with self._lock:
            question = self._waiting.get(answer.number)
        if question is not None:
            question.answer = answer
            question.event.set()


class ClientShell:
    """One client in a loop.

    Attributes:
        events: what the machine is to be told; other threads append their requests.
        send: gives a message to the hub. reconnect: drops the link and dials again.
    """

    def __init__(
        self,
        sink: OutcomeSink,
        config: ClientSettings,
        now: float,
        send: Callable[[m.ClientMessage], None],
        reconnect: Callable[[], None],
    ) -> None:
        self.table = SinkTable(sink)
        self.machine = ClientMachine(config, self.table, now)
        self.events: deque[object] = deque()
        self.questions = Questions()
        self.opened = threading.Event()
        self._sink = sink
        self._opened = False
        self._perform: dict[type, Callable[[Any], None]] = {
            act.Send: lambda action: send(action.message),
            act.Resolve: lambda action: sink.resolve(action.done, action.failed),
            act.Accept: lambda action: sink.accepted(action.seqs),
            act.Tell: lambda action: self._told(action.message),
            act.Reconnect: lambda _: reconnect(),
        }

    @property
    def deadline(self) -> float:
        """The machine's."""
        return self.machine.deadline

    @property
    def pending(self) -> bool:
        """Whether events or new tasks wait."""
        return bool(self.events) or self._sink.queued

    def turn(self, now: float) -> None:
        """Takes new tasks in, then requests and what the hub said.

        What comes in meanwhile is left for the next turn: it may be the cancellation of a task that was not
        there yet when new ones were taken in, and a hub forgets cancellations of what it does not know.
        """
        events, handle, perform = self.events, self.machine.handle, self.perform
        left = len(events)
        if self._sink.queued:
            specs, runs = self._sink.drain()
            if specs:
                self.table.keep(specs)
            if runs:
                perform(handle(Queued(specs, runs), now))
        elif not left:
            perform(handle(Tick(), now))
        while left:
            event = events.popleft()
            left -= 1
            if type(event) is Requested and isinstance(event.message, m.CancelTasks):
                left -= _gather(event.message, events, left)
            perform(handle(event, now))

    def perform(self, actions: Sequence[act.ClientAction]) -> None:
        """Performs actions in order."""
        table = self._perform
        for action in actions:
            table[type(action)](action)
        if not self._opened and self.machine.open:
            self._opened = True
            self.opened.set()

    def _told(self, message: m.Notice | m.Answer | m.ClientRefused) -> None:
        if isinstance(message, m.Notice):
            self._sink.notice(message.progress)
        elif isinstance(message, m.Answer):
            self.questions.answered(message)
        else:
            self._sink.broken(HubUnreachable(f"the hub refuses this client: {message.reason}"))
            self.opened.set()


def _gather(cancel: m.CancelTasks, events: deque[object], most: int) -> int:
    """Takes the cancellations that follow, up to `most`, into one, for the hub looks for work after each.

    Returns:
        How many.
    """
    taken = 0
    while taken < most and isinstance(ask := events[0], Requested) and isinstance(ask.message, m.CancelTasks):
        cancel.seqs += ask.message.seqs
        cancel.unstarted += ask.message.unstarted
        events.popleft()
        taken += 1
    return taken
