"""Outcomes that answer later submissions of their key."""

import time
from collections import OrderedDict

import pytest

from taskmesh.core.events import FromClient
from taskmesh.core.ids import task_id
from taskmesh.hub.machine import submission
from taskmesh.hub.machine.books.result_cache import ENTRY, ResultCache
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Run
from tests.core.rig import HubRig, number_of, spec, spec_entry

LASTING = {"keep": 60.0}


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client(1)
    rig.client(2)
    return rig


def outcomes(rig: HubRig, client: int) -> list:
    return [
        outcome
        for message in rig.told[client]
        if isinstance(message, m.Deliver)
        for outcome in [*message.done, *message.failed]
    ]


def test_a_success_answers_another_client_without_running_again(rig):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(**LASTING), key="k")
    rig.report(session, done=((1, first, 1),))

    (second,) = rig.submit(2, one=spec(**LASTING), key="k")

    assert rig.held[session] == []
    (told,) = outcomes(rig, 2)
    assert (told.client, told.seqs, told.payloads) == (2, [second], [b"r"])
    assert rig.hub.snapshot()["accepted"] == rig.hub.snapshot()["finished"] == 1


def test_without_being_asked_nothing_is_kept(rig):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(), key="k")
    rig.report(session, done=((1, first, 1),))

    rig.submit(2, one=spec(), key="k")

    assert len(rig.held[session]) == 1
    assert len(rig.hub.state.result_cache) == 0


def test_it_is_forgotten_when_its_time_is_over(rig):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(keep=2.0), key="k")
    rig.report(session, done=((1, first, 1),))
    assert rig.hub.state.result_cache.size > 0

    rig.after(1.0)
    rig.beat(session)
    rig.after(1.5)

    assert (len(rig.hub.state.result_cache), rig.hub.state.result_cache.size) == (0, 0)
    rig.submit(2, one=spec(keep=2.0), key="k")
    assert len(rig.held[session]) == 1


@pytest.mark.parametrize(
    ("kind", "kept"), [("exception", 1), ("result", 1), ("function", 0), ("argument", 0)]
)
def test_of_bad_ends_only_those_that_would_come_again(rig, kind, kept):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(**LASTING), key="k")
    rig.fail(session, (1, first, 1), kind, text="bad", retryable=False)

    (second,) = rig.submit(2, one=spec(**LASTING), key="k")

    assert (rig.hub.state.result_cache.find(("f", "k"), rig.now) is not None) == kept
    assert len(rig.held[session]) == 1 - kept
    assert [(told.client, told.seq, told.text, told.attempt) for told in outcomes(rig, 2)] == [
        (2, second, "bad", 1)
    ] * kept


def test_what_the_retry_filter_admits_may_go_better_the_next_time(rig):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(**LASTING), key="k")

    rig.fail(session, (1, first, 1), text="no route to host")

    assert len(outcomes(rig, 1)) == 1
    assert rig.hub.state.result_cache.find(("f", "k"), rig.now) is None


def test_shared_errors_do_not_share_successes_nor_what_is_on_its_way(rig):
    session = rig.join(slots=4)
    one = spec(keep=60.0, shared="errors")
    (first,) = rig.submit(1, one=one, key="k")
    (second,) = rig.submit(2, one=one, key="k")
    assert len(rig.held[session]) == 2

    rig.report(session, done=((1, first, 1),))
    (third,) = rig.submit(1, one=one, key="k")
    assert len(rig.held[session]) == 2

    rig.fail(session, (2, second, 1), retryable=False)
    rig.submit(2, one=one, key="k")

    assert rig.held[session] == [(1, third, 1)]
    assert len(outcomes(rig, 2)) == 2


def test_a_submission_that_comes_twice_is_answered_once(rig):
    session = rig.join()
    (first,) = rig.submit(1, one=spec(**LASTING), key="k")
    rig.report(session, done=((1, first, 1),))
    one = spec(**LASTING)
    specs, run = [(number_of(one), one)], Run(number_of(one), 0, [9], [b"x"], "k")

    for number in (1, 2):
        submission.on_submit(
            rig.hub.state,
            rig.hub.ventilator,
            rig.hub.state.clients[2],
            m.Submit(number, specs, [run]),
            rig.now,
        )

    assert len(list(rig.hub.state.clients[2].unacknowledged({9}))) == 1


def test_the_oldest_make_room():
    memory = ResultCache(limit=2 * (ENTRY + 150))
    for number in range(4):
        memory.keep(_record(f"k{number}"), DoneRun(1, 1, 1, "p", [number], [b"x" * 100], 0.1), 0.0)

    assert memory.find(("f", "k0"), 0.0) is None
    assert memory.find(("f", "k3"), 0.0) is not None
    assert memory.size <= 2 * (ENTRY + 150)
    memory.keep(_record("large"), DoneRun(1, 1, 1, "p", [9], [b"x" * 2000], 0.1), 0.0)
    assert memory.find(("f", "large"), 0.0) is None
    assert memory.find(("f", "k3"), 0.0) is not None, "what is too large drives nothing out"


def test_a_small_outcome_counts_for_what_it_takes():
    """Payloads alone were counted: 256 MiB of small ones took five GiB."""
    memory = ResultCache(limit=10 * ENTRY)
    for number in range(100):
        memory.keep(_record(f"k{number}"), DoneRun(1, 1, 1, "p", [number], [b"x"], 0.1), 0.0)

    assert len(memory) == 9


def test_what_is_over_goes_and_nothing_else_is_looked_at():
    class Unread(OrderedDict):
        def items(self):
            raise AssertionError("a million of them, four times a second")

        __iter__ = values = keys = items

    memory = ResultCache()
    for number, now in enumerate((1.0, 5.0, 3.0, 2.0)):
        memory.keep(_record(f"k{number}"), DoneRun(1, 1, 1, "p", [number], [b"x"], 0.1), now)
    memory.keep(_record("k0"), DoneRun(1, 1, 1, "p", [9], [b"x"], 0.1), 2.0)
    memory._kept = Unread(memory._kept)
    memory.sweep(3.0 + LASTING["keep"])

    assert len(memory) == 1
    assert memory.find(("f", "k1"), 3.0 + LASTING["keep"]) is not None


def test_the_same_key_again_and_again_leaves_nothing():
    memory = ResultCache()
    for number in range(1000):
        memory.keep(_record("k"), DoneRun(1, 1, 1, "p", [number], [b"x"], 0.1), 0.0)

    assert len(memory._ends) < 100


def test_many_who_wait_for_one_key_give_up_as_quickly_as_others():
    rig = HubRig()
    rig.client()
    one = spec(**LASTING)
    runs = [Run(1, 0, [number], [b"x"], "k") for number in range(1, 20_001)]
    rig.tell(FromClient(1, m.Submit(1, [(1, one)], runs)))
    began = time.process_time()
    rig.tell(FromClient(1, m.Submit(2, [], [], list(range(1, 20_001)))))

    assert time.process_time() - began < 2.0, "4.3 s when each looked at all others"
    assert rig.tasks == {}


def _record(key: str) -> TaskRecord:
    record = TaskRecord(0, 1, spec_entry(1, spec(**LASTING)), 0, b"")
    record.more().key = ("f", key)
    return record


@pytest.mark.parametrize("is_late", [False, True])
def test_a_user_asks_by_the_ids_of_its_own_tasks_whoever_else_has_waited_for_the_key(is_late):
    rig, one = HubRig(), spec(detach=True, **LASTING)
    for client, user in ((1, "a"), (2, "b")):
        rig.tell(FromClient(client, m.ClientHello(client, 0, credit=1 << 20), user))
    session = rig.join()
    (first,) = rig.submit(1, one=one, key="k")
    if is_late:
        rig.report(session, done=((1, first, 1),))
    (second,) = rig.submit(2, one=one, key="k")
    rig.report(session, done=tuple(rig.held[session]))

    cache = rig.hub.state.result_cache
    of_a, of_b = cache.of_task(task_id(1, first), rig.now), cache.of_task(task_id(2, second), rig.now)
    assert of_a is not None
    assert of_b is not None
    assert (of_a.user, of_b.user) == ("a", "b")


def test_tasks_that_a_key_answers_take_room_of_their_own(rig):
    one = spec(detach=True, **LASTING)
    session = rig.join()
    (first,) = rig.submit(1, one=one, key="k")
    rig.report(session, done=((1, first, 1),))
    cache = rig.hub.state.result_cache
    before = cache.size
    seqs = [rig.submit(2, one=one, key="k")[0] for _ in range(10)]

    assert cache.size >= before + 10 * ENTRY
    assert all(cache.of_task(task_id(2, seq), rig.now) for seq in seqs)
    assert max(len(cached.tasks) for cached in cache._kept.values()) == 1, "none is written again and again"
