"""The guards that the promises of sinks rest on, each with a way to take it out."""

from collections.abc import Callable

import pytest

from taskmesh.client.sink import Sink
from taskmesh.core.hub.collector import Collector
from taskmesh.core.hub.ledger import SpecEntry
from taskmesh.core.hub.sinks import Consumer, SinkQueue, Sinks
from taskmesh.wire.messages import SinkDeliver
from taskmesh.wire.runs import DoneRun

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
    pass_on = Collector._pass_on

    def tell(self: Collector, run: DoneRun, entry: SpecEntry | None) -> int:
        size = pass_on(self, run, entry)
        if entry is not None and entry.spec.sink:
            self.acknowledged(run)
        return size

    patch.setattr(Collector, "_pass_on", tell)


def numbers_of_a_generation(patch: Patch) -> None:
    """A program acknowledges by its number what it had before its consumer began anew."""
    put = Sink.put

    def keep(self: Sink, message: SinkDeliver) -> None:
        numbers = dict(self._numbers)
        put(self, message)
        self._numbers.update({task: number for task, number in numbers.items() if not self._numbers[task]})

    patch.setattr(Sink, "put", keep)


def ends_in_sinks(patch: Patch) -> None:
    """A hub does not know how a task has ended whose outcome is in a sink."""
    patch.setattr(Sinks, "unacknowledged", lambda self, client, seqs: [])


SINK_GUARDS: tuple[Callable[[Patch], None], ...] = (
    taken_back,
    told_when_acknowledged,
    numbers_of_a_generation,
    ends_in_sinks,
)
