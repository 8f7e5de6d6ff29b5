"""A pool that cannot run what it is given is put aside, and other pools get its tasks."""

import pytest

from taskmesh.core.events import LinksLost
from taskmesh.hub.machine.books.lanes import REFUSED_FOR
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import CHUNK
from tests.core.rig import HubRig, spec

LACKS = {
    "retryable": False,
    "type_name": "FunctionUnavailable",
    "text": "no module named x",
    "worker": "bad/0",
}


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def work_off(rig: HubRig, good: int, bad: int, kind: str = "function", most: int = 2000) -> int:
    """The bad pool refuses all that it gets, at once; the good one is slow. How many were refused."""
    refused = 0
    for _ in range(most):
        if rig.held[bad]:
            refused += 1
            rig.fail(bad, rig.held[bad][0], kind, **LACKS)
        elif rig.held[good]:
            rig.report(good, done=(rig.held[good][0],), elapsed=0.1)
        else:
            return refused
    pytest.fail("it does not come to an end")


@pytest.mark.parametrize("kind", ["function", "signature"])
@pytest.mark.parametrize(
    "one", [spec(), spec(kind=CHUNK), spec(acks="early")], ids=["call", "chunk", "early"]
)
def test_every_task_runs_at_the_other_pool(rig, kind, one):
    good, bad = rig.join("good", slots=2), rig.join("bad", slots=2)
    seqs = rig.submit(1, 500, one)
    refused = work_off(rig, good, bad, kind)

    assert rig.outcomes() == dict.fromkeys(seqs, "done")
    assert refused <= 2, "what it had when it refused the first"


def test_it_is_shown_with_the_reason(rig):
    good, bad = rig.join("good"), rig.join("bad")
    rig.submit(1, 20)
    work_off(rig, good, bad)

    warning = rig.hub.snapshot()["warnings"]["pool bad"]
    assert "does not run f: FunctionUnavailable: no module named x" in warning
    assert [record.kind for record in rig.records].count("pool.refuses") == 1


def test_where_every_pool_refuses_the_task_fails_with_the_error(rig):
    sessions = [rig.join(pool, slots=1) for pool in ("a", "b", "c")]
    (seq,) = rig.submit()
    refused = 0
    while not rig.outcomes():
        (session,) = [session for session in sessions if rig.held[session]]
        refused += 1
        rig.fail(session, rig.held[session][0], "function", **LACKS)

    assert (refused, rig.outcomes()) == (3, {seq: "function"})
    (failure,) = [one for told in rig.told[1] if isinstance(told, m.Deliver) for one in told.failed][:1]
    assert sum("refused" in line for line in failure.history) == 2
    (again,) = rig.submit()
    assert sum(len(rig.held[session]) for session in sessions) == 1, "the next one is tried all the same"
    assert again


def test_a_pool_that_is_alone_gets_its_tasks_though_it_refuses(rig):
    bad = rig.join("bad", slots=1)
    seqs = rig.submit(1, 3)
    for _ in seqs:
        rig.fail(bad, rig.held[bad][0], "function", **LACKS)

    assert rig.outcomes() == dict.fromkeys(seqs, "function")


def test_a_task_does_not_wait_for_a_pool_that_is_gone(rig):
    good, bad = rig.join("good", slots=1), rig.join("bad", slots=1)
    rig.submit(1, 4)
    rig.fail(bad, rig.held[bad][0], "function", **LACKS)
    assert rig.held[bad] == []
    rig.tell(LinksLost(good))
    rig.after(1.5)

    assert len(rig.held[bad]) == 1


def test_other_functions_run_there(rig):
    good, bad = rig.join("good", slots=1), rig.join("bad", slots=1)
    rig.submit(1, 2, spec("missing"))
    rig.fail(bad, rig.held[bad][0], "function", **LACKS)
    rig.report(good, done=tuple(rig.held[good]), elapsed=2.0)
    (there,) = rig.submit(1, 1, spec("present"))

    assert [seq for _, seq, _ in rig.held[bad]] == [there]


def test_a_pool_that_refuses_everything_gets_nothing(rig):
    good, bad = rig.join("good", slots=9), rig.join("bad", slots=1)
    for name in "abc":
        rig.submit(1, 2, spec(name))
        while rig.held[bad]:
            rig.fail(bad, rig.held[bad][0], "signature", **LACKS)
    rig.submit(1, 2, spec("d"))

    assert rig.held[bad] == []
    assert len(rig.held[good]) == 8
    assert "any function" in rig.hub.snapshot()["warnings"]["pool bad"]


def test_after_a_while_it_is_tried_again_and_has_no_complaint_when_it_runs_a_task(rig):
    good, bad = rig.join("good", slots=1), rig.join("bad", slots=1)
    rig.submit(1, 2)
    rig.fail(bad, rig.held[bad][0], "function", **LACKS)
    rig.report(good, done=tuple(rig.held[good]), elapsed=2.0)
    for _ in range(round(REFUSED_FOR)):
        rig.after(1.0)
        rig.beat(good, "good")
        rig.beat(bad, "bad")
    rig.submit(1, 2)
    assert len(rig.held[bad]) == 1

    rig.report(bad, done=tuple(rig.held[bad]), elapsed=2.0)
    assert "pool bad" not in rig.hub.snapshot()["warnings"]


def test_two_clients_of_which_one_is_not_trusted_do_not_keep_its_task_going_round(rig):
    """What succeeds in between clears a pool; the task that it refused has been there."""
    sessions = [rig.join(pool, slots=1) for pool in ("a", "b")]
    rig.client(2)
    (seq,) = rig.submit(2)
    refused = 0
    for _ in range(20):
        rig.submit(1, 1)
        for session in sessions:
            for key in tuple(rig.held[session]):
                if key[0] == 2:
                    refused += 1
                    rig.fail(session, key, "signature", **LACKS)
                else:
                    rig.report(session, done=(key,), elapsed=0.1)

    assert rig.outcomes(2) == {seq: "signature"}
    assert refused <= 3
