"""Verdicts: each says what is wrong and what to do, and is gone when that is mended."""

import pytest

from taskmesh.core.ids import text_of
from taskmesh.hub.machine.figures.errors import ErrorGroup
from taskmesh.hub.machine.views.verdicts import MOST, STORM
from taskmesh.messages.limit_rules import read_named
from tests.core.rig import HubRig, spec

TASK = text_of(1 << 64 | 1)


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def said(rig: HubRig) -> list[str]:
    return rig.hub.snapshot()["verdicts"]


def test_a_mesh_that_works_has_none(rig):
    session = rig.join(slots=2)
    rig.submit(1, 100)
    rig.beat(session, running=((1, 1, 1), (1, 2, 1)))

    assert said(rig) == []


def test_a_queue_that_no_pool_serves(rig):
    rig.join()
    rig.submit(1, 1, spec(queue="a", tags=("gpu", "big")))
    rig.submit(1, 2, spec(queue="b"))

    wanted = "queue 'a' with tags big, gpu"
    assert said(rig) == [
        "queue 'b': 2 tasks wait, and no pool serves it: taskmesh worker --queues b",
        f"{wanted}: 1 task waits, and no pool serves it: taskmesh worker --queues a --tags big,gpu",
    ]
    rig.join("q", queues=["a", "b"], tags=["gpu", "big"])
    assert said(rig) == []


def test_a_queue_whose_pools_are_paused(rig):
    session = rig.join()
    rig.beat(session, state="paused")
    rig.submit(1, 1)

    waits = "queue 'default': 1 task waits, and no pool that serves it takes work"
    assert said(rig) == [f"{waits}: p is paused: taskmesh pool resume p"]
    rig.beat(session)
    assert said(rig) == []


def test_a_pool_that_is_silent(rig):
    session = rig.join()
    rig.submit(1, 1)
    rig.after(3.0)

    assert said(rig) == ["pool p has not been heard of for 3 s: its 1 tasks go to others if it is gone"]
    rig.beat(session)
    assert said(rig) == []


def test_a_pool_whose_slots_cannot_start(rig):
    session = rig.join(slots=4)
    rig.beat(session, slots=3)

    assert said(rig) == ["pool p: 1 of 4 slots cannot start; its log says why"]
    rig.beat(session, slots=4)
    assert said(rig) == []


def test_a_function_that_fails_again_and_again(rig):
    session = rig.join(slots=STORM)
    for _ in range(STORM):
        assert said(rig) == []
        (seq,) = rig.submit(1, one=spec("parse", max_retries=0))
        rig.fail(session, (1, seq, 1), type_name="ValueError")

    assert said(rig) == ["parse: ValueError, 10 times in the last minute: taskmesh errors parse"]
    rig.after(61.0)
    assert [text for text in said(rig) if "parse" in text] == []


def test_one_crash_is_enough(rig):
    session = rig.join()
    (seq,) = rig.submit(1, one=spec("leak"))
    rig.fail(session, (1, seq, 1), "oom")

    assert said(rig) == ["leak: oom, once in the last minute: taskmesh errors leak"]


def test_a_group_counts_what_came_in_the_last_minute_or_two():
    group = ErrorGroup("f", "exception", "E", "", first=0.0)
    for second in range(0, 300, 10):
        group.grow(second)
        assert 1 <= group.lately(second) <= 12
    assert group.count == 30
    assert group.lately(349.0) > 0
    assert group.lately(350.0) == 0
    group.grow(1_000.0)
    assert group.lately(1_000.0) == 1


def test_a_task_that_runs_far_longer_than_others_of_its_function(rig):
    session = rig.join()
    rig.submit(1, 1, spec("parse"))
    figures = next(iter(rig.hub.state.specs.values())).figures
    rig.beat(session, running=((1, 1, 1),))
    rig.hub.state.lanes[session].running[0].elapsed = 15.0
    assert said(rig) == [], "nobody knows how long it takes"

    figures.run.add(1.0, 100)

    usual = "99 of 100 calls end within 974 ms"
    assert said(rig) == [f"parse runs on p/0 for 15 s, and {usual}: taskmesh stack {TASK}"]
    rig.report(session, done=((1, 1, 1),))
    assert said(rig) == []


def test_a_pool_that_is_idle_while_others_have_too_much(rig):
    busy = rig.join("busy", slots=1, queues=["a"])
    idle = rig.join("idle", slots=8, queues=["b"])
    rig.submit(1, 100, spec(queue="a"))
    rig.after(5.0)
    rig.beat(busy, running=((1, 1, 1),))
    rig.beat(idle)
    assert said(rig) == []
    for _ in range(4):
        rig.after(2.0)
        rig.beat(busy, running=((1, 1, 1),))
        rig.beat(idle)

    assert said(rig) == [
        "pool idle: its 8 slots are idle while 99 tasks wait in queue 'a', which it does not serve"
    ]


def test_what_a_limit_holds_back_is_no_verdict(rig):
    rig.join(slots=8)
    rig.join("idle", slots=8, queues=["b"])
    rig.submit(1, 5, spec(limits=(read_named("gpu:1"),)))
    for _ in range(10):
        rig.after(2.0)
        for pool in ("p", "idle"):
            rig.beat(rig.session(pool), pool)

    assert rig.hub.snapshot()["tasks"]["queued"] == 5
    assert said(rig) == []


def test_a_client_that_does_not_take_its_results(rig):
    rig.hub.state.ledger.backlog.withheld.add(1)

    (text,) = said(rig)
    assert text.endswith(" does not take its results: its tasks do not start until it does")


def test_a_journal_that_is_away_comes_first(rig):
    rig.submit(1, 1)
    rig.hub.state.diagnostics.journal = {"state": "away", "why": "connection refused", "full": False}
    rig.hub.state.diagnostics.shortage = "there are no descriptors left"

    assert [text.partition(":")[0] for text in said(rig)] == ["journal", "hub", "queue 'default'"]


def test_there_are_no_more_than_people_read(rig):
    for number in range(MOST + 5):
        rig.submit(1, 1, spec(queue=f"q{number}"))

    assert len(said(rig)) == MOST
