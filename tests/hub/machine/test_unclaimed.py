"""What pools hold after a restart of the hub for clients that do not ask for it any more."""

import pytest

from taskmesh.core.events import ClientGone, FromClient, FromPool, LinksLost
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run
from tests.core.rig import EPOCH, ONE, HubRig, spec

AGAIN = Run(ONE, 0, [1], [b"x"], again=True)
HELD = [Held(1, 1, [1, 2, 3]), Held(1, 4, [4]), Held(2, 1, [1])]


@pytest.fixture
def rig() -> HubRig:
    return HubRig()


def come_back(rig: HubRig, *, whole: bool = True) -> None:
    """A client submits its first task again; that is all that it waits for."""
    rig.client()
    rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [AGAIN])))
    if whole:
        rig.tell(FromClient(1, m.Submit(2, [], [], whole=True)))


def dropped(rig: HubRig) -> list[Held]:
    return [held for _, message in rig.published if isinstance(message, m.Cancel) for held in message.tasks]


def test_what_a_client_that_is_back_does_not_submit_again_is_dropped(rig):
    rig.join(epoch=EPOCH - 1, inventory=HELD)
    assert rig.hub.snapshot()["unclaimed"] == 5
    come_back(rig, whole=False)
    assert dropped(rig) == []
    assert rig.hub.snapshot()["unclaimed"] == 4
    rig.tell(FromClient(1, m.Submit(2, [], [], whole=True)))

    assert dropped(rig) == [Held(1, 1, [2, 3]), Held(1, 4, [4])]
    assert rig.hub.snapshot()["unclaimed"] == 1
    assert rig.state(1, 1) == "SENT"


def test_so_is_what_a_pool_lists_that_comes_back_later(rig):
    come_back(rig)
    rig.join(epoch=EPOCH - 1, inventory=HELD)

    (welcome,) = [message for _, message in rig.published if isinstance(message, m.Welcome)]
    assert welcome.stale == [Held(1, 1, [2, 3]), Held(1, 4, [4])]
    assert rig.state(1, 1) == "SENT"


def test_a_pool_whose_links_close_before_that_goes_on_with_its_work(rig):
    """Seed 120001897: it says Hello of this hub by then, which has sent it nothing of what it has."""
    session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
    rig.tell(LinksLost(session))
    while rig.hub.state.lane_of("p"):
        rig.after(0.2)
    come_back(rig)
    rig.hello(epoch=EPOCH, number=2, inventory=[Held(1, 1, [1])])
    session = rig.session()
    rig.beat(session)
    assert rig.state(1, 1) == "SENT"
    rig.report(session, done=((1, 1, 1),))

    assert rig.outcomes() == {1: "done"}


def test_what_an_old_hello_lists_and_the_next_one_does_not_may_have_run(rig):
    """Seed 150009980: the pool had reported it to the earlier hub, so the next attempt has another number."""
    come_back(rig)
    rig.hello(epoch=EPOCH - 1, number=4, inventory=[Held(1, 1, [1])])
    rig.join(epoch=EPOCH - 1, number=5)

    [run] = rig.pushed[-1].runs
    assert (run.attempt, run.returns) == (2, 0)


def test_it_is_said_again_while_it_runs(rig):
    """The first word of it may have been lost."""
    session = rig.join(epoch=EPOCH - 1, inventory=HELD)
    come_back(rig)
    rig.published.clear()
    rig.beat(session, running=((1, 2, 1), (2, 1, 1)))

    assert dropped(rig) == [Held(1, 1, [2])]


def test_its_result_is_not_kept(rig):
    session = rig.join(epoch=EPOCH - 1, inventory=HELD)
    come_back(rig)
    rig.report(session, done=((1, 2, 1), (2, 1, 1)))

    assert list(rig.hub.state.unclaimed._results) == [2 << 64 | 1]


def test_a_client_whose_first_hub_this_is_has_nothing_that_could_be_claimed(rig):
    rig.join()
    rig.client()
    rig.submit(1, 1)

    assert rig.hub.snapshot()["unclaimed"] == 0
    assert dropped(rig) == []


class TestBound:
    """Hub and client have died together, and the hub is back; a pool holds what was bound to the client."""

    @pytest.fixture
    def rig(self) -> HubRig:
        return HubRig(client_grace=5.0)

    BOUND = (Held(1, 1, [1, 2], bound=True), Held(1, 2, [3]), Held(2, 1, [1], bound=True))

    def wait(self, rig: HubRig, session: int, seconds: float, **more: object) -> None:
        for _ in range(round(seconds / 0.5)):
            rig.beat(session, **more)
            rig.after(0.5)

    def test_they_are_dropped_when_it_does_not_come_back_in_time(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND)
        rig.client(2)  # the other one is back
        self.wait(rig, session, 4.5)
        assert dropped(rig) == []
        rig.tell(FromClient(2, m.ClientBeat(EPOCH)))
        self.wait(rig, session, 1.0)

        assert dropped(rig) == [Held(1, 1, [1, 2])], "the rest runs on"
        assert rig.hub.snapshot()["unclaimed"] == 2

    def test_nothing_is_dropped_of_a_client_that_comes_in_time(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        self.wait(rig, session, 4.5)
        come_back(rig, whole=False)
        self.wait(rig, session, 4.5)

        assert dropped(rig) == []
        assert rig.state(1, 1) == "SENT"

    def test_one_that_comes_and_dies_before_it_has_asked_is_gone_like_others(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        rig.client()
        rig.tell(ClientGone(1))
        self.wait(rig, session, 6.0)

        assert dropped(rig) == [Held(1, 1, [1, 2])]

    def test_it_is_said_again_to_a_pool_that_runs_one_or_lists_one(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        self.wait(rig, session, 6.0)
        rig.published.clear()
        rig.beat(session, running=((1, 2, 1),))
        assert dropped(rig) == [Held(1, 1, [2])]

        rig.join(number=2, epoch=EPOCH, session=session, inventory=[Held(1, 1, [2], bound=True)])
        (welcome,) = [message for _, message in rig.published if isinstance(message, m.Welcome)]
        assert welcome.stale == [Held(1, 1, [2])]

    def test_a_client_that_comes_too_late_has_them_run_again_and_not_adopted(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        self.wait(rig, session, 12.0)
        come_back(rig)
        rig.after(0.2)

        assert rig.held[session] == [(1, 1, 2)], "under another number: the first one is dropped"

    def test_what_a_session_held_is_not_dropped_when_it_is_over(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        rig.tell(FromPool(m.Bye(EPOCH, session)))
        rig.after(6.0)

        assert dropped(rig) == []
        assert rig.hub.snapshot()["unclaimed"] == 0

    def test_the_time_that_the_hub_stood_still_does_not_count(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=self.BOUND[:1])
        self.wait(rig, session, 4.0)
        rig.now += 7.0
        self.wait(rig, session, 0.5)
        assert dropped(rig) == []
        self.wait(rig, session, 1.0)
        assert dropped(rig) == [Held(1, 1, [1, 2])]

    def test_the_grace_is_the_clients_and_begins_when_a_pool_first_lists_them(self, rig):
        """A pool that says Hello again and again must not put it off."""
        for number in range(1, 14):
            rig.join(number=number, epoch=EPOCH - 1, inventory=self.BOUND[:1])
            rig.after(0.4)

        assert dropped(rig) == [Held(1, 1, [1, 2])]


class TestWhenItsClientComesLater:
    def test_what_a_pool_has_had_until_its_end_gets_the_next_number(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.tell(FromPool(m.Bye(EPOCH, session)))
        other = rig.join("q")
        come_back(rig)
        rig.after(0.2)

        assert rig.held[other] == [(1, 1, 2)]

    def test_what_a_pool_has_run_does_not_run_again_though_it_is_put_off_once_more(self, rig):
        """Its time had come; then the clock was set back by which the next hub reckons what is left."""
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.report(session, done=((1, 1, 1),))
        rig.client()
        put_off = Run(ONE, 0, [1], [b"x"], again=True, delay=0.5)
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [put_off])))
        rig.after(1.0)

        assert rig.held[session] == []
        assert rig.state(1, 1) == "finished"
