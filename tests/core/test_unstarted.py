"""Tasks that are given up unless they have started: the hub finds out, and tells which had not."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import FromClient, LinksLost, Requested
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Failed, Held, Run
from tests.core.client_rig import delivery
from tests.core.rig import ONE, HubRig, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def recalls(rig: HubRig) -> list[tuple[str, int]]:
    """What pools were asked to hand back."""
    return [(pool, message.count) for pool, message in rig.published if isinstance(message, m.Recall)]


def test_a_queued_task_is_never_sent_and_its_client_hears_of_it(rig):
    rig.submit(1, 2)
    rig.cancel_unstarted(1, 1)
    session = rig.join()

    assert rig.held[session] == [(1, 2, 1)]
    assert rig.outcomes() == {1: "cancelled"}


def test_a_pool_decides_what_of_its_tasks_has_not_started(rig):
    session = rig.join(slots=3)
    rig.submit(1, 3)
    rig.cancel_unstarted(1, 1, 2)

    assert recalls(rig) == [("p", 3)]
    assert rig.outcomes() == {}
    rig.report(session, done=((1, 1, 1),), returned=((1, 2, 1), (1, 3, 1)))
    assert rig.outcomes() == {1: "done", 2: "cancelled"}
    assert rig.held[session] == [(1, 3, 2)]


def test_more_than_ten_thousand_of_them(rig):
    """The hub was asked which had started. It tells of 10,000 at most, and then nothing was cancelled."""
    session = rig.join(slots=3)
    rig.client(2, credit=1 << 24)
    rig.submit(2, 1)
    rig.report(session, done=((2, 1, 1),), elapsed=1e-6)
    seqs = rig.submit(2, 12_000)
    assert len(rig.held[session]) == 12_000
    rig.cancel_unstarted(2, *seqs)
    started = rig.held[session][:3]
    rig.report(session, returned=tuple(rig.held[session][3:]))
    rig.report(session, done=tuple(started))

    found = rig.outcomes(2)
    assert [found[seq] for seq in seqs] == ["done"] * 3 + ["cancelled"] * 11_997
    assert rig.held[session] == []


def test_a_pool_is_asked_again_until_what_it_has_is_known_to_run(rig):
    """Tasks may have been on their way to it."""
    session = rig.join()
    rig.submit(1, 2)
    rig.cancel_unstarted(1, 1, 2)
    rig.beat(session, running=((1, 1, 1),))
    assert recalls(rig) == [("p", 2)] * 2
    rig.beat(session, running=((1, 1, 1), (1, 2, 1)))
    rig.beat(session)

    assert len(recalls(rig)) == 2


def test_one_that_was_taken_for_running_and_comes_back_unstarted_is_cancelled(rig):
    session = rig.join()
    rig.submit(1, 1)
    rig.beat(session, running=((1, 1, 1),))
    rig.cancel_unstarted(1, 1)
    assert recalls(rig) == []
    rig.report(session, returned=((1, 1, 1),))

    assert rig.outcomes() == {1: "cancelled"}


def test_one_that_waits_for_its_retry_had_started(rig):
    session = rig.join()
    rig.submit(1, 1, spec("again", max_retries=1, backoff=1.0, jitter=False))
    rig.fail(session, (1, 1, 1))
    rig.cancel_unstarted(1, 1)
    rig.beat(session)
    rig.after(1.2)

    assert rig.held[session] == [(1, 1, 2)]


@pytest.mark.parametrize("first", ["given up", "refused"])
def test_one_that_a_pool_has_refused_has_not_started(rig, first):
    """It goes to another pool, uncharged, and nobody wants it there."""
    rig.join("good", slots=1)
    rig.submit(1, 2)
    bad = rig.join("bad", slots=1)
    assert rig.held[bad] == [(1, 2, 1)]
    if first == "given up":
        rig.cancel_unstarted(1, 2)
    rig.fail(bad, (1, 2, 1), "function", retryable=False)
    if first == "refused":
        rig.cancel_unstarted(1, 2)
    rig.report(rig.session("good"), done=((1, 1, 1),))

    assert rig.outcomes() == {1: "done", 2: "cancelled"}
    assert rig.held[rig.session("good")] == []


@pytest.mark.parametrize("kind", ["crash", "lost"])
def test_so_had_one_that_is_run_again_after_its_slot_has_died(rig, kind):
    session = rig.join()
    rig.submit(1, 1)
    rig.cancel_unstarted(1, 1)
    rig.fail(session, (1, 1, 1), kind)

    assert rig.held[session] == [(1, 1, 2)]


def test_of_what_a_dead_pool_had_only_what_was_known_to_run_is_run_again(rig):
    session = rig.join()
    rig.submit(1, 2)
    rig.cancel_unstarted(1, 1, 2)
    rig.beat(session, running=((1, 2, 1),))
    rig.tell(LinksLost(rig.session()))
    rig.after(rig.config.links_grace + 0.5)
    session = rig.join(instance=2)

    assert rig.outcomes() == {1: "cancelled"}
    assert rig.held[session] == [(1, 2, 2)]


def test_a_pool_that_comes_back_with_it_is_asked_in_its_new_session(rig):
    rig.join()
    rig.submit(1, 1)
    rig.cancel_unstarted(1, 1)
    session = rig.join(number=2, inventory=[Held(1, 1, [1])])
    assert len(recalls(rig)) == 2
    rig.report(session, returned=((1, 1, 1),))

    assert rig.outcomes() == {1: "cancelled"}


@pytest.mark.parametrize("claimed", [False, True])
def test_after_a_restart_pools_have_their_time_to_come_back_with_it(rig, claimed):
    again = Run(ONE, 0, [1], [b"x"], again=True)
    rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [again])))
    rig.tell(FromClient(1, m.Submit(2, [], [], unstarted=[1])))
    assert rig.state(1, 1) == "WAITING"
    rig.after(rig.config.lease - 1)
    assert rig.outcomes() == {}
    if claimed:
        session = rig.join(inventory=[Held(1, 1, [1])])
        assert recalls(rig) == [("p", 1)]
        rig.report(session, done=((1, 1, 1),))
    rig.after(2)
    rig.tell(FromClient(1, m.ClientBeat()))

    assert rig.outcomes() == {1: "done" if claimed else "cancelled"}


def test_ahead_of_submits_that_wait_for_room(rig):
    rig.submit(1, 1)
    rig.tell(FromClient(1, m.CancelTasks([], [1, 2])))
    rig.submit(1, 1)

    assert rig.outcomes() == {1: "cancelled"}
    assert rig.state(1, 2) == "QUEUED"


@pytest.mark.parametrize("sent", [False, True])
def test_it_takes_nothing_from_another_with_the_same_key(rig, sent):
    rig.client(2)
    session = rig.join() if sent else 0
    rig.submit(1, 1, key="k")
    rig.submit(2, 1, key="k")
    rig.cancel_unstarted(1, 1)
    if sent:
        assert rig.outcomes(1) == {}
        rig.report(session, returned=((1, 1, 1),))
    session = session or rig.join()
    assert rig.outcomes(1) == {1: "cancelled"}
    rig.report(session, done=((1, 1, 2 if sent else 1),))

    assert rig.outcomes(2) == {1: "done"}


class TestClient:
    """A hub that comes after one that is lost has to be told again: it decides which had not started."""

    def test_a_new_hub_is_told_again_of_what_has_no_outcome(self, session):
        session.submit(1, 2, 3, 4)
        session.tell(Requested(m.CancelTasks([], [1, 2, 3])))
        session.hear(m.Accepted(2))
        session.hear(delivery(1, 1))
        session.hear(m.Deliver(1, 2, [], [Failed(7, 2, 0, "cancelled")]))
        session.welcome(epoch=2)
        session.sent.clear()
        session.welcome(epoch=2)

        submit = session.of(m.Submit)[0]
        assert (submit.runs[0].seqs, submit.unstarted) == ([3], [3])

    def test_nothing_is_said_of_what_has_been_given_up_altogether(self, session):
        session.submit(1)
        session.tell(Requested(m.CancelTasks([], [1])))
        del session.pending[1]
        session.tell(Requested(m.CancelTasks([1])))
        session.welcome(epoch=2)
        session.sent.clear()
        session.welcome(epoch=2)

        assert session.submitted() == []

    def test_what_waits_for_room_says_so_when_it_comes_in(self, session):
        """Room for a Submit is work for a pool: its tasks started before the word on them had its turn."""
        session.submit(1, 2)
        session.hear(m.Busy(1, 0.1))
        session.tell(Requested(m.CancelTasks([], [2, 9])))
        session.sent.clear()
        session.after(0.2)
        session.hear(m.Accepted(1))

        assert [submit.unstarted for submit in session.of(m.Submit)] == [[2], [2, 9]]

    def test_the_same_hub_knows(self, session):
        session.submit(1)
        session.tell(Requested(m.CancelTasks([], [1])))
        session.hear(m.Accepted(2))
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(known=True)

        assert session.submitted() == []
