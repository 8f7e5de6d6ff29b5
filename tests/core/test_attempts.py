"""The number of an attempt that people are shown: attempts that were handed back unstarted do not count."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import FromClient
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Failed, Held, LaneRun, Run
from tests.core.rig import EPOCH, ONE, HubRig, PoolRig, number_of, spec

AGAIN = Run(ONE, 0, [1], [b"x"], again=True)


def told(rig: HubRig) -> list[Failed]:
    deliveries = [message for message in rig.told[1] if isinstance(message, m.Deliver)]
    return [failure for delivery in deliveries for failure in delivery.failed]


def test_a_task_that_an_operator_cancels_before_it_has_started_had_no_attempt():
    rig = HubRig()
    session = rig.join()
    rig.client()
    rig.submit(1, 1)
    rig.client(2)
    rig.tell(FromClient(2, m.Command(1, "pause", "p")))
    rig.report(session, returned=((1, 1, 1),))
    rig.tell(FromClient(2, m.Command(2, "cancel", f"{1:016x}{1:016x}")))

    assert [(failure.kind, failure.attempt) for failure in told(rig)] == [("cancelled", 0)]


class TestAfterARestart:
    """A hub takes over from pools what they hold; how often that was handed back only they know."""

    def come_back(self, returns: int) -> tuple[HubRig, int]:
        rig = HubRig()
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 3, [1], returns=returns)])
        rig.client()
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [AGAIN])))
        return rig, session

    def test_what_had_been_handed_back_is_not_counted(self):
        rig, session = self.come_back(2)
        rig.beat(session, running=((1, 1, 3),))
        (notice,) = (message for message in rig.told[1] if isinstance(message, m.Notice))
        rig.fail(session, (1, 1, 3), "argument", worker="p/0", text="no")

        assert [progress.attempt for progress in notice.progress] == [1]
        ((attempt, history),) = ((failure.attempt, failure.history) for failure in told(rig))
        assert (attempt, history) == (1, ["attempt 1 on p/0: argument no"])

    @pytest.mark.parametrize(("returns", "attempt"), [(-5, 3), (99, 1)])
    def test_a_pool_that_makes_a_number_up_spoils_no_books(self, returns, attempt):
        rig, session = self.come_back(returns)
        rig.fail(session, (1, 1, 3), "argument")

        assert [failure.attempt for failure in told(rig)] == [attempt]

    def test_nor_where_its_client_comes_first(self):
        rig = HubRig()
        rig.client()
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [AGAIN])))
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 3, [1], returns=2)])
        rig.fail(session, (1, 1, 3), "argument")

        assert [failure.attempt for failure in told(rig)] == [1]

    def test_one_of_the_same_number_has_begun_where_another_is_handed_back(self):
        """A pool comes back late that holds attempt 1, and the hub has sent one of this number."""
        rig = HubRig(lease=1.0)
        rig.client()
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [AGAIN])))
        rig.after(1.5)
        session = rig.join("q")
        assert rig.held[session] == [(1, 1, 1)]
        rig.hello("p", epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.report(session, returned=((1, 1, 1),))
        rig.fail(session, (1, 1, 2), "argument")

        assert [failure.attempt for failure in told(rig)] == [2]

    def test_what_was_said_to_run_and_is_handed_back_is_none(self):
        """Its slot had got it, and died before it began: nobody else has had attempt 1."""
        rig = HubRig()
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.client()
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [AGAIN])))
        rig.report(session, returned=((1, 1, 1),))
        rig.fail(session, (1, 1, 2), "argument")

        assert [failure.attempt for failure in told(rig)] == [1]


def test_a_pool_lists_how_often_each_task_was_handed_back():
    rig = PoolRig(slots=1)
    runs = [LaneRun(number_of(spec()), 1, seq + 2, 2, [seq], [b"x"]) for seq in (1, 2, 3)]
    rig.tell(ev.FromHub(m.Tasks(EPOCH, 1, 1, 0, 1.0, [(number_of(spec()), spec())], runs)))
    rig.finish(0)
    rig.exited(0)
    rig.lose_lane()

    listed = {held.seqs[0]: (held.attempt, held.returns) for held in rig.of(m.Hello)[-1].inventory}
    assert listed == {1: (3, 2), 2: (4, 2), 3: (5, 2)}
    assert rig.failed() == {2: "lost", 3: "crash"}, "one that is done, and two bad ends"
