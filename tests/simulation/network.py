"""The simulated network: links that lose, repeat, reorder and delay, that are cut and reset."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from tests.simulation.timetable import Timetable

T = TypeVar("T")
_PACK = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Weather:
    """How likely each fault is for one message; all zero when it is fair."""

    lost: float = 0.0
    duplicated: float = 0.0
    reordered: float = 0.0
    delayed: float = 0.0

    def fault(self, roll: float) -> str:
        """Which fault a number in [0, 1) stands for, if any."""
        if roll < self.lost:
            return "lost"
        roll -= self.lost
        if roll < self.duplicated:
            return "duplicated"
        roll -= self.duplicated
        if roll < self.reordered:
            return "reordered"
        return "delayed" if roll - self.reordered < self.delayed else ""


def unpacked(data: object, decode: Callable[[bytes], T]) -> T:
    """The message that has arrived, decoded unless it was handed over as it is."""
    return decode(data) if isinstance(data, bytes) else cast("T", data)


class Link:
    """One direction between two processes.

    Attributes:
        kind: "gateway", "lane", "collector", "control" or "beat". deliver: takes a message at the far end.
        blocked: "" | "hold" (kept until it is unblocked, as TCP does) | "drop".
    """

    __slots__ = ("blocked", "deliver", "generation", "held", "kind", "last")

    def __init__(self, kind: str, deliver: Callable[[object], None]) -> None:
        self.kind = kind
        self.deliver = deliver
        self.generation = 0
        self.last = 0.0
        self.blocked = ""
        self.held: list[object] = []

    def reset(self) -> None:
        """The connection is reset: what is in flight on it is lost."""
        self.generation += 1
        self.held.clear()


class Network:
    """Carries messages: each is encoded when sent and decoded at every arrival, so nothing is shared.

    Attributes:
        weather: what may happen to each message, None when it is fair. faults: what did.
        by_reference: messages are handed over as they are, as in an embedded mesh; none can come twice then.
    """

    def __init__(self, chance: random.Random, timetable: Timetable) -> None:
        self.weather: Weather | None = None
        self.faults: Counter[tuple[str, str]] = Counter()
        self.by_reference = False
        self._chance = chance
        self._timetable = timetable

    def send(self, link: Link, message: object) -> None:
        """Sends a message; what the weather does to it is counted."""
        self._carry(link, message if self.by_reference else _PACK(message))

    def _carry(self, link: Link, data: object) -> None:
        if link.blocked:
            if link.blocked == "hold":
                link.held.append(data)
            return
        chance = self._chance
        when = self._timetable.now + 0.0001 + 0.0004 * chance.random()
        if self.weather is not None:
            fault = self.weather.fault(chance.random())
            if fault == "duplicated" and self.by_reference:
                fault = ""
            if fault:
                self.faults[fault, link.kind] += 1
            if fault == "lost":
                return
            if fault == "duplicated":
                self._arrive(link, data, when + chance.random() * chance.choice((0.002, 0.5, 3.0)))
            elif fault == "reordered":
                self._arrive(link, data, when + chance.random() * chance.choice((0.005, 0.5)))
                return
            elif fault == "delayed":
                when += chance.random() * chance.choice((0.01, 0.2, 2.0))
        link.last = when = max(when, link.last)
        self._arrive(link, data, when)

    def _arrive(self, link: Link, data: object, when: float) -> None:
        self._timetable.at(when, self._arrived, link, link.generation, data)

    @staticmethod
    def _arrived(link: Link, generation: int, data: object) -> None:
        if link.generation != generation:
            return
        if link.blocked:
            if link.blocked == "hold":
                link.held.append(data)
            return
        link.deliver(data)

    def unblock(self, link: Link) -> None:
        """The way is free: what was held goes on, in order."""
        link.blocked = ""
        held, link.held = link.held, []
        for data in held:
            self._carry(link, data)
