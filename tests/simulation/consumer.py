"""A simulated program that takes from a sink, by the production `Sink`: late, and in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from taskmesh.client.sink import Sink, SinkOutcome
from taskmesh.core.events import SinkAcked, SinkClosed, SinkOpened
from taskmesh.messages.runs import PICKLE

if TYPE_CHECKING:
    from tests.simulation.client_host import ClientHost

CREDITS = (1, 120, 600, 1 << 20)
"""Bytes that a consumer holds: one outcome, a few, all."""


class Consumer:
    """One consumer of one sink on a simulated client: the program, its client and its port in one.

    Args:
        host: where it runs; it ends with that.
        name: the sink's.
        idle: True if it takes nothing until all is mended.

    Attributes:
        closed, driver, result_codec: of a client.
    """

    def __init__(self, host: ClientHost, name: str, *, idle: bool) -> None:
        self.closed = False
        self.driver = None
        self.result_codec = PICKLE
        self._host = host
        self._setting = host.setting
        self._life = host.life
        self._name = name
        self._idle = idle
        self._sink: Sink | None = None
        self._hands: list[SinkOutcome] = []
        self._acked: set[tuple[int, int]] = set()
        host.programs.append(self)
        self._step()

    # --- the program --------------------------------------------------------------------------------------

    def _step(self) -> None:
        host, chance = self._host, self._setting.chance
        if not host.up or host.life != self._life:
            return
        all_is_well = self._setting.audit.consumption.all_is_well
        self._setting.timetable.after(chance.choice((0.01, 0.05, 0.2, 0.5)), self._step)
        if host.paused or (self._idle and not all_is_well):
            return
        if self._sink is None:
            self._open()
            return
        self._take(self._sink)
        if all_is_well:
            self._acknowledge(self._sink, len(self._hands))
        elif chance.random() < 0.03:
            self._close(self._sink)
        elif chance.random() < 0.6:
            self._acknowledge(self._sink, chance.randint(0, len(self._hands)))

    def woken(self) -> None:
        """SIGCONT: the program goes on before the port's thread does."""
        if self._sink is not None and self._host.life == self._life:
            self._take(self._sink)

    def _open(self) -> None:
        if self._name not in self._host.intakes:  # the hub has heard that the one before is closed
            credit = self._setting.chance.choice(CREDITS)
            self._sink = Sink(cast("Any", self), self._name, credit, "manual")
            self._sink._clock = self._host.clock
            self._sink.__enter__()
            self._acked = set()

    def _close(self, sink: Sink) -> None:
        self._setting.audit.faults["closes and opens again", "consumer"] += 1
        self._acknowledge(sink, self._setting.chance.randint(0, len(self._hands)))
        self._hands.clear()
        sink.close()
        self._sink = None

    def _take(self, sink: Sink) -> None:
        while True:
            try:
                outcome = sink.get(0.0)
            except TimeoutError:
                return
            plan = self._setting.workload.plans[outcome.task]
            line, now = (self._host.client, self._name, sink._generation), self._setting.timetable.now
            self._setting.audit.consumption.taken(plan, outcome, self._acked, line=line, now=now)
            self._hands.append(outcome)

    def _acknowledge(self, sink: Sink, count: int) -> None:
        self._setting.chance.shuffle(self._hands)
        done, self._hands = self._hands[:count], self._hands[count:]
        for outcome in done:
            self._acked.add(outcome.task)
            self._setting.audit.consumption.acknowledged.add(outcome.task)
            sink.ack(outcome)

    # --- client and port ----------------------------------------------------------------------------------

    def open(self) -> Consumer:
        """Return the port."""
        return self

    def open_sink(self, name: str, credit: int, intake: Sink) -> None:
        """Take from a sink."""
        self._host.intakes[name] = intake
        self._host.tell(SinkOpened(name, credit))

    def sink_acked(self, name: str) -> None:
        """The loop looks at it a little later."""
        self._setting.timetable.after(self._setting.chance.choice((0.0, 0.05)), self._tell_acked, name)

    def close_sink(self, name: str) -> None:
        """Take no more; nobody waits for the hub's word."""
        self._tell_acked(name)
        self._host.tell(SinkClosed(name))
        if self._sink is not None:
            self._sink.end()

    def _tell_acked(self, name: str) -> None:
        """Tell the client what was acknowledged, when it comes to it."""
        intake = self._host.intakes.get(name)
        if intake is not None and self._host.up and self._host.life == self._life:
            self._host.tell(SinkAcked(name, intake.take_acked()))
