"""Which functions a slot and a pool know, and when they forget them."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Spec
from taskmesh.pool.machine import scheduler, slots
from tests.core.rig import PoolRig, number_of, spec

A, B, C, D = (spec(name) for name in "abcd")


@pytest.fixture
def rig() -> PoolRig:
    return PoolRig(slots=1)


def forgotten(rig: PoolRig) -> list[int]:
    """What the slot was told to forget, in order."""
    return [number for hand in rig.of(act.HandOver) for number, one in hand.message.specs if one is None]


def sent(rig: PoolRig, one: Spec) -> int:
    """How often the slot was sent a spec."""
    return sum((number_of(one), one) in hand.message.specs for hand in rig.of(act.HandOver))


def run(rig: PoolRig, *specs: Spec) -> None:
    for one in specs:
        rig.push(1, one=one)
        rig.finish(0)


class TestASlot:
    def test_forgets_the_oldest_of_too_many(self, rig, monkeypatch):
        monkeypatch.setattr(slots, "MOST_SPECS", 2)
        run(rig, A, B, C, D)

        assert forgotten(rig) == [number_of(A), number_of(B)]
        assert list(rig.pool.slots[0].specs) == [number_of(C), number_of(D)]

    def test_forgets_the_oldest_of_those_that_are_too_large(self, rig, monkeypatch):
        monkeypatch.setattr(slots, "SPEC_BYTES", 250)
        large = [spec(name * 100) for name in "abcd"]
        run(rig, A, *large)

        assert forgotten(rig) == [number_of(one) for one in (A, *large[:2])]
        assert rig.pool.slots[0].spec_bytes == 200

    def test_is_sent_again_what_it_has_forgotten(self, rig, monkeypatch):
        monkeypatch.setattr(slots, "MOST_SPECS", 2)
        run(rig, A, B, B, C, A, A)

        assert [sent(rig, one) for one in (A, B, C)] == [2, 1, 1]

    def test_keeps_those_of_the_tasks_that_it_holds(self, rig, monkeypatch):
        monkeypatch.setattr(slots, "MOST_SPECS", 2)
        run(rig, A, B, C)  # the pool knows now that they are short
        rig.push(1, one=B)
        rig.push(2, one=A)

        assert rig.handed[0] == [(1, 1, 1), (1, 2, 1)]
        assert forgotten(rig) == [number_of(A), number_of(C)], "not B, which is older"

    def test_of_which_none_can_be_forgotten_keeps_all(self, rig, monkeypatch):
        monkeypatch.setattr(slots, "SPEC_BYTES", 0)
        rig.push(1, one=A)

        assert not forgotten(rig)

    def test_starts_anew_with_none(self, rig):
        run(rig, A)
        rig.exited(0)

        rig.after(1.0)
        rig.tell(ev.SlotReady(0, 200))
        assert not rig.pool.slots[0].specs
        assert not rig.pool.slots[0].spec_bytes


class TestAPool:
    def test_forgets_what_no_hub_tells_it_to(self, rig, monkeypatch):
        monkeypatch.setattr(scheduler, "MOST_SPECS", 1)
        run(rig, A, B, C)
        rig.push(1, one=A)
        rig.push(2, one=B)
        rig.after(1.0)

        assert set(rig.pool.scheduler.specs) == {number_of(A), number_of(B)}, "its tasks need them"

        rig.push(3, one=C, known=False)
        assert rig.of(m.PoolNeedSpec)[-1].specs == [number_of(C)]

    def test_forgets_the_oldest_of_those_that_are_too_large(self, rig, monkeypatch):
        monkeypatch.setattr(scheduler, "SPEC_BYTES", 250)
        large = [spec(name * 100) for name in "abcd"]
        run(rig, *large)
        rig.after(1.0)

        assert list(rig.pool.scheduler.specs) == [number_of(one) for one in large[2:]]
