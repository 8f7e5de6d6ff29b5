"""The guards that the promises of sinks rest on, each with a way to take it out."""

from collections import deque
from collections.abc import Callable, Iterable

import pytest

from taskmesh.hub.machine import collector, sink_values
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.books.sinks import Consumer, SinkQueue, Sinks
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.mesh_messages import SinkReport, SinkReportAck
from taskmesh.messages.runs import DoneRun

Patch = pytest.MonkeyPatch


def taken_back(patch: Patch) -> None:
    """The hub forgets outcomes that a consumer had not acknowledged, together with it."""
    take_back = SinkQueue.take_back

    def forget(self: SinkQueue, consumer: Consumer) -> None:
        self.size -= consumer.size
        consumer.held.clear()
        take_back(self, consumer)

    patch.setattr(SinkQueue, "take_back", forget)


def told_when_acknowledged(patch: Patch) -> None:
    """A client is told of a success as soon as that is in the sink."""
    pass_on = collector._pass_on

    def tell(hub: HubState, run: DoneRun, entry: SpecEntry | None, after: int = 0) -> int:
        size = pass_on(hub, run, entry, after)
        if entry is not None and entry.spec.sink:
            collector.acknowledged(hub, run)
        return size

    patch.setattr(collector, "_pass_on", tell)


def ends_in_sinks(patch: Patch) -> None:
    """A hub does not know how a task has ended whose outcome is in a sink."""
    patch.setattr(Sinks, "unacknowledged", lambda self, client, seqs: [])


def order_of_values(patch: Patch) -> None:
    """A value that comes goes before those that wait for room in its sink."""

    def jump(hub: HubState, sink: str, records: Iterable[TaskRecord]) -> None:
        hub.sink_values.waiting.setdefault(sink, deque()).extendleft(reversed([*records]))
        sink_values.go_on(hub, sink)

    patch.setattr(sink_values, "enter", jump)


def room_for_values(patch: Patch) -> None:
    """Nobody looks whether values wait when consumers have made room."""
    go_on = sink_values.go_on

    def forget(hub: HubState, sink: str) -> None:
        if sink not in hub.sinks.closed:
            go_on(hub, sink)

    patch.setattr(sink_values, "go_on", forget)


def written_acknowledgements(patch: Patch) -> None:
    """A consumer hears that its acknowledgement is taken in before the journal has it."""
    told = Sinks.told

    def at_once(self: Sinks, report: SinkReport, consumer: Consumer | None, after: int) -> SinkReportAck:
        return told(self, report, consumer, 0)

    patch.setattr(Sinks, "told", at_once)
    patch.setattr(Journal, "ended", lambda self, client, outcome: 0)


SINK_GUARDS: tuple[Callable[[Patch], None], ...] = (
    taken_back,
    told_when_acknowledged,
    ends_in_sinks,
    order_of_values,
    room_for_values,
    written_acknowledgements,
)
