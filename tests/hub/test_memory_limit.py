"""A hub whose memory goes to what peers send cuts them off, before the kernel ends it."""

from __future__ import annotations

from taskmesh.hub.memory_limit import LONGEST, PAUSE, SHORTEST, MemoryLimit


class Rig:
    """A limit of 1000 bytes, and what it has done."""

    def __init__(self) -> None:
        self.resident = 0
        self.cuts = 0
        self.told: list[str] = []
        self.limit = MemoryLimit(
            self.cut, lambda kind, fields: self.told.append(kind), limit=1000, resident=lambda: self.resident
        )

    def cut(self) -> None:
        self.cuts += 1

    def look(self, resident: int, now: float) -> float:
        self.resident = resident
        self.limit.turn(now)
        return self.limit.deadline - now


def test_peers_are_cut_off_above_three_quarters():
    rig = Rig()
    rig.look(750, 0.0)
    assert (rig.cuts, rig.told) == (0, [])

    rig.look(751, 1.0)

    assert (rig.cuts, rig.told) == (1, ["memory.short"])


def test_they_have_time_to_say_again_what_was_dropped():
    rig = Rig()
    for tick in range(10):
        rig.look(900, tick * PAUSE / 10)
    assert rig.cuts == 1

    rig.look(900, PAUSE)
    assert rig.cuts == 2


def test_it_looks_the_sooner_the_less_is_left():
    rig = Rig()

    assert rig.look(700, 0.0) == SHORTEST
    assert MemoryLimit(rig.cut, lambda *_: None, limit=1 << 40, resident=lambda: 0).deadline == 0.0
    far = MemoryLimit(rig.cut, lambda *_: None, limit=1 << 40, resident=lambda: 0)
    far.turn(0.0)
    assert far.deadline == LONGEST
