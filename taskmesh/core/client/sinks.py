"""The sinks that a client takes outcomes from: numbers, acknowledgements and new beginnings of each.

Both directions are numbered and repeated, as all that the hub and a client must not lose. Over a new link,
or at a hub that does not know it, a consumer begins anew with the next generation: the hub takes back what
was not acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from taskmesh.core.actions import ClientAction, Send, Tell
from taskmesh.core.link import ReceiveWindow, SendWindow
from taskmesh.wire.messages import SinkDeliver, SinkReport, SinkTold

ALIVE = 1.0
"""Seconds between two reports of a consumer that has nothing to say."""
RESEND_AFTER = 1.0
"""Seconds without an answer after which reports are sent again."""
IN_ORDER = 0
"""Deliveries that are taken in beyond a missing one."""


class OpenSink:
    """One sink that is open here.

    Attributes:
        name: its name.
        credit: bytes of outcomes that may be here unacknowledged.
        generation: rises with each beginning, also when a sink is closed and opened again.
        closed: it takes no more; it goes when the hub has heard of that.
    """

    def __init__(self, name: str, credit: int) -> None:
        self.name = name
        self.credit = credit
        self.generation = 0
        self.closed = False
        self._reports: SendWindow[SinkReport] = SendWindow()
        self._deliveries = ReceiveWindow(IN_ORDER)
        self._alive_at = 0.0

    @property
    def is_over(self) -> bool:
        """True if it is closed, and the hub has all reports."""
        return self.closed and not self._reports.kept

    @property
    def deadline(self) -> float:
        return min(self._alive_at, self._reports.deadline(RESEND_AFTER))

    def begin(self, generation: int, now: float) -> list[SinkReport]:
        self.generation = generation
        self._reports.restart(1)
        self._deliveries.restart()
        return self.report([], now)

    def report(self, acked: list[tuple[int, int]], now: float) -> list[SinkReport]:
        message = self._message(self._reports.next, acked)
        self._reports.append(message, 16 * len(acked) + 32, now, sent=True)
        self._alive_at = now + ALIVE
        return [message]

    def told(self, reports: int, now: float) -> None:
        self._reports.acknowledge(reports, now)

    def take(self, number: int) -> bool:
        """Take a delivery in; return False if it has been here, or comes too early."""
        return self._deliveries.take(number)

    def due(self, now: float) -> list[SinkReport]:
        """Return what is to be sent now: reports once more, or that the consumer lives."""
        if now >= self._reports.deadline(RESEND_AFTER):
            self._reports.repeat(now)
            return self._reports.send()
        return [self.alive(now)] if now >= self._alive_at else []

    def alive(self, now: float) -> SinkReport:
        self._alive_at = now + ALIVE
        return self._message(0, [])

    def _message(self, number: int, acked: list[tuple[int, int]]) -> SinkReport:
        received = self._deliveries.to
        return SinkReport(self.name, self.generation, number, received, self.credit, acked, self.closed)


class OpenSinks:
    """All sinks that are open here."""

    def __init__(self) -> None:
        self._sinks: dict[str, OpenSink] = {}
        self._generation = 0

    def __bool__(self) -> bool:
        return bool(self._sinks)

    @property
    def deadline(self) -> float:
        """The time at which `on_time` has something to do."""
        return min((sink.deadline for sink in self._sinks.values()), default=math.inf)

    def open(self, name: str, credit: int, now: float, *, linked: bool) -> list[ClientAction]:
        sink = self._sinks[name] = OpenSink(name, credit)
        return self._begin(sink, now) if linked else []

    def _begin(self, sink: OpenSink, now: float) -> list[ClientAction]:
        """Begin anew: a hub that still has an earlier consumer here takes back what that held."""
        self._generation += 1
        return _sent(sink.begin(self._generation, now))

    def acknowledge(
        self, name: str, generation: int, numbers: Sequence[int], now: float, *, linked: bool
    ) -> list[ClientAction]:
        """Acknowledge outcomes; those of an earlier generation have gone back to the hub."""
        sink = self._sinks.get(name)
        if sink is None or not linked or generation != sink.generation or not numbers:
            return []
        return _sent(sink.report(ranges_of(numbers), now))

    def close(self, name: str, now: float, *, linked: bool) -> list[ClientAction]:
        """Take no more; the hub gives to others what is not acknowledged."""
        sink = self._sinks.get(name)
        if sink is None:
            return []
        sink.closed = True
        if linked:
            return _sent(sink.report([], now))
        del self._sinks[name]  # a new link would not know it any more
        return [Tell(SinkTold(name, sink.generation, 0))]

    def welcomed(self, now: float) -> list[ClientAction]:
        """There is a new link: all begin anew."""
        return [action for sink in self._sinks.values() for action in self._begin(sink, now)]

    def on_message(self, message: SinkDeliver | SinkTold, now: float) -> list[ClientAction]:
        sink = self._sinks.get(message.sink)
        if sink is None or message.generation != sink.generation:
            return []
        if isinstance(message, SinkTold) and not message.known:
            if sink.closed:
                del self._sinks[message.sink]
                return [Tell(message)]
            return self._begin(sink, now)
        sink.told(message.reports, now)
        if sink.is_over:
            del self._sinks[message.sink]
            return [Tell(SinkTold(message.sink, message.generation, message.reports))]
        if isinstance(message, SinkTold) or sink.closed:
            return []
        new = sink.take(message.number)
        told: list[ClientAction] = [Tell(message)] if new else []
        return [*told, Send(sink.alive(now))]

    def on_time(self, now: float) -> list[ClientAction]:
        return [action for sink in self._sinks.values() for action in _sent(sink.due(now))]


def ranges_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges, each from the first to before the second."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return ranges


def _sent(reports: list[SinkReport]) -> list[ClientAction]:
    return [Send(report) for report in reports]
