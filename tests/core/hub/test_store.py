"""Outcomes that outlive a hub: what the machine wants stored, and what it does with what it is told."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.hub.result_cache import ENTRY, ResultCache
from taskmesh.wire.runs import DoneRun, Failed, Kept, Spec
from tests.core.rig import HubRig, spec

LASTING = {"keep": 60.0}


def rig_of(*, stored: bool = True) -> HubRig:
    rig = HubRig(stored=stored)
    rig.client(1)
    return rig


@pytest.fixture
def rig() -> HubRig:
    return rig_of()


def finish(rig: HubRig, one: Spec, key: str = "k") -> None:
    session = rig.join()
    (seq,) = rig.submit(1, one=one, key=key)
    rig.report(session, done=((1, seq, 1),))


def test_what_is_kept_is_stored_once_with_its_end(rig):
    finish(rig, spec(**LASTING))

    ((until, kept),) = rig.stored
    assert until == rig.now + 60.0
    assert (kept.name, kept.key, kept.keep, kept.failed) == ("f", "k", 60.0, [])
    assert kept.done[0].payloads == [b"r"]


def test_a_bad_end_that_would_come_again_is_stored_and_no_other(rig):
    session = rig.join(slots=4)
    for key, more in (("a", {"retryable": False}), ("b", {"retryable": True})):
        (seq,) = rig.submit(1, one=spec(**LASTING), key=key)
        rig.fail(session, (1, seq, 1), **more)

    assert [(kept.key, kept.done, len(kept.failed)) for _, kept in rig.stored] == [("a", [], 1)]


@pytest.mark.parametrize(
    ("one", "key"), [(spec(), "k"), (spec(**LASTING), ""), (spec(keep=60.0, shared="errors"), "k")]
)
def test_nothing_else_is_stored(rig, one, key):
    finish(rig, one, key)

    assert rig.outcomes(1) == {1: "done"}
    assert rig.stored == []


def test_without_a_store_nothing_is_noted():
    rig = rig_of(stored=False)

    finish(rig, spec(**LASTING))

    assert rig.stored == rig.hub.state.result_cache.fresh == []
    assert len(rig.hub.state.result_cache) == 1


def test_a_hub_that_is_told_answers_without_running_it_again(rig):
    finish(rig, spec(**LASTING))
    successor = rig_of()

    successor.tell(ev.Restored(rig.stored))
    session = successor.join()
    (seq,) = successor.submit(1, one=spec(**LASTING), key="k")

    assert successor.held[session] == []
    assert successor.outcomes(1) == {seq: "done"}
    assert successor.stored == [], "what came from the store does not go there again"


def entry(
    rig: HubRig, seconds: float, key: str = "k", keep: float = 60.0, size: int = 1
) -> tuple[float, Kept]:
    done = DoneRun(1, 1, 1, "p", [1], [b"x" * size], 0.1)
    return rig.now + seconds, Kept("f", key, keep, [done], [])


def bad(kind: str, *, retryable: bool) -> Kept:
    return Kept("f", kind, 60.0, [], [Failed(1, 1, 1, kind, retryable=retryable)])


def test_nothing_lives_longer_than_its_task_asked_for(rig):
    rig.tell(ev.Restored([entry(rig, 1e9, keep=2.0), entry(rig, 1.0, "soon"), entry(rig, 0.0, "over")]))

    assert len(rig.hub.state.result_cache) == 2
    rig.after(1.2)
    assert len(rig.hub.state.result_cache) == 1
    rig.after(1.0)
    assert (len(rig.hub.state.result_cache), rig.hub.state.result_cache.size) == (0, 0)


def test_a_store_cannot_make_a_hub_keep_other_bad_ends(rig):
    entries = [
        bad("exception", retryable=False),
        bad("result", retryable=True),
        bad("crash", retryable=False),
    ]

    rig.tell(ev.Restored([(rig.now + 9, kept) for kept in entries]))

    assert rig.hub.state.result_cache.find(("f", "exception"), rig.now) is not None
    assert len(rig.hub.state.result_cache) == 1


def test_what_is_known_here_is_not_replaced(rig):
    finish(rig, spec(**LASTING))

    rig.tell(ev.Restored([entry(rig, 60.0)]))

    assert rig.hub.state.result_cache.find(("f", "k"), rig.now).payloads == [b"r"]


def test_the_limit_holds_for_what_is_told_too(rig):
    memory = ResultCache(limit=3 * (ENTRY + 350))

    memory.restore([entry(rig, 9.0, f"{number}", size=300) for number in range(9)], rig.now)

    assert memory.size <= 3 * (ENTRY + 350)
    assert len(memory) == 3
    memory.restore([entry(rig, 9.0, "huge", size=4000)], rig.now)
    assert memory.find(("f", "huge"), rig.now) is None


def test_how_the_store_is_shows_in_the_status_and_its_news_among_the_events(rig):
    assert rig.hub.snapshot()["store"] == {}

    rig.tell(ev.StoreTold({"state": "away", "stored": 3}, [("store.away", {"why": "gone"})]))

    assert rig.hub.snapshot()["store"] == {"state": "away", "stored": 3}
    assert [(record.kind, record.fields) for record in rig.records] == [("store.away", {"why": "gone"})]
    assert rig.hub.views.events("", 10, rig.now)[-1]["kind"] == "store.away"
