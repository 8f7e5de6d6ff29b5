"""The sinks that a client takes outcomes from: numbers, acknowledgements and new beginnings of each.

Both directions are numbered and repeated, as all that the hub and a client must not lose. Over a new link,
or at a hub that does not know it, a consumer begins anew with the next generation: the hub takes back what
was not acknowledged. So it does if a consumer stands still: what is here may be given out only for a while
after a report, and one that has said nothing for longer asks first.
"""

from __future__ import annotations

from taskmesh.core.actions import ClientAction, Renew, Send, Tell
from taskmesh.link.link import ReceiveWindow, SendWindow
from taskmesh.messages.mesh_messages import SinkDeliver, SinkReport, SinkReportAck

ALIVE = 1.0
"""Seconds between two reports of a consumer that has nothing to say."""
RESEND_AFTER = 1.0
"""Seconds without an answer after which reports are sent again."""
FRESH = 1.5 * ALIVE
"""Seconds after a report in which the hub surely gives nobody else what is here: less than a lease."""
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
        self._said = self._asked = 0.0

    @property
    def is_over(self) -> bool:
        """True if it is closed, and the hub has all reports."""
        return self.closed and not self._reports.kept

    @property
    def deadline(self) -> float:
        return min(self._alive_at, self._reports.deadline(RESEND_AFTER))

    def begin(self, generation: int, now: float) -> list[ClientAction]:
        self.generation = generation
        self._said, self._asked = now, 0.0  # nothing is here
        self._reports.restart(1)
        self._deliveries.restart()
        return self.report([], now)

    def report(self, acked: list[tuple[int, int]], now: float) -> list[ClientAction]:
        message = self._message(self._reports.next, acked, now)
        self._reports.append(message, 16 * len(acked) + 32, now, sent=True)
        return self._said_now([message], now)

    def _said_now(self, reports: list[SinkReport], now: float) -> list[ClientAction]:
        """Send reports; what is here may be given out for longer, unless the hub may have taken it back."""
        self._alive_at = now + ALIVE
        if now - self._said > FRESH:
            self._asked = now
        self._said = now
        return [*map(Send, reports), *self._renewed()]

    def _renewed(self) -> list[ClientAction]:
        return [] if self._asked else [Renew(self.name, self.generation, self._said + FRESH)]

    def told(self, message: SinkDeliver | SinkReportAck, now: float) -> list[ClientAction]:
        """The hub has these reports; if it was asked it still counts on this consumer."""
        self._reports.acknowledge(message.reports, now)
        if not self._asked or isinstance(message, SinkDeliver) or message.echo < self._asked:
            return []
        self._asked = 0.0
        return self._renewed()

    def take(self, number: int) -> bool:
        """Take a delivery in; return False if it has been here, or comes too early."""
        return self._deliveries.take(number)

    def due(self, now: float) -> list[ClientAction]:
        """Return what is to be sent now: reports once more, or that the consumer lives."""
        if now >= self._reports.deadline(RESEND_AFTER):
            self._reports.repeat(now)
            return self._said_now(self._reports.send(), now)
        return self.alive(now) if now >= self._alive_at else []

    def alive(self, now: float) -> list[ClientAction]:
        return self._said_now([self._message(0, [], now)], now)

    def _message(self, number: int, acked: list[tuple[int, int]], now: float) -> SinkReport:
        received = self._deliveries.to
        return SinkReport(self.name, self.generation, number, received, self.credit, acked, self.closed, now)


class OpenSinks:
    """All sinks that are open here.

    Attributes:
        by_name: The sinks.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, OpenSink] = {}
        self._generation = 0

    @property
    def deadline(self) -> float:
        """The time at which `on_time` has something to do; there is a sink."""
        return min([sink.deadline for sink in self.by_name.values()])

    def open(self, name: str, credit: int, now: float, *, linked: bool) -> list[ClientAction]:
        sink = self.by_name[name] = OpenSink(name, credit)
        return self._begin(sink, now) if linked else []

    def _begin(self, sink: OpenSink, now: float) -> list[ClientAction]:
        """Begin anew: a hub that still has an earlier consumer here takes back what that held."""
        self._generation += 1
        return sink.begin(self._generation, now)

    def acknowledge(
        self, name: str, tasks: list[tuple[int, int]], now: float, *, linked: bool
    ) -> list[ClientAction]:
        """Acknowledge outcomes; without a link they have gone back to the hub."""
        sink = self.by_name.get(name)
        return sink.report(tasks, now) if sink is not None and linked and tasks else []

    def close(self, name: str, now: float, *, linked: bool) -> list[ClientAction]:
        """Take no more; the hub gives to others what is not acknowledged."""
        sink = self.by_name.get(name)
        if sink is None:
            return []
        sink.closed = True
        if linked:
            return sink.report([], now)
        del self.by_name[name]  # a new link would not know it any more
        return [Tell(SinkReportAck(name, sink.generation, 0))]

    def welcomed(self, now: float) -> list[ClientAction]:
        """There is a new link: all begin anew."""
        return [action for sink in self.by_name.values() for action in self._begin(sink, now)]

    def on_message(self, message: SinkDeliver | SinkReportAck, now: float) -> list[ClientAction]:
        sink = self.by_name.get(message.sink)
        if sink is None or message.generation != sink.generation:
            return []
        if isinstance(message, SinkReportAck) and not message.known:
            if sink.closed:
                del self.by_name[message.sink]
                return [Tell(message)]
            return self._begin(sink, now)
        renewed = sink.told(message, now)
        if sink.is_over:
            del self.by_name[message.sink]
            return [Tell(SinkReportAck(message.sink, message.generation, message.reports))]
        if isinstance(message, SinkReportAck) or sink.closed:
            return renewed
        new = sink.take(message.number)
        told: list[ClientAction] = [Tell(message)] if new else []
        return [*told, *sink.alive(now)]

    def on_time(self, now: float) -> list[ClientAction]:
        return [action for sink in self.by_name.values() for action in sink.due(now)]
