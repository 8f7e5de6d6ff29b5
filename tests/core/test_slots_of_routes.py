"""A client that has tasks is told, in answer to its beats, how many slots serve them."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.clients import MOST_ROUTES
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Spec
from tests.core.client_rig import Client
from tests.core.rig import EPOCH, HubRig, spec

SWEEP_S = 0.5
GRACE = 5.0
GPU = spec("gpu", queue="gpu", tags=("a100", "big"))


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig(first=True)
    rig.client()
    return rig


def told(rig: HubRig) -> list[tuple[str, list[str], int]]:
    """The hub's answer to a beat once it has looked at its pools."""
    rig.after(SWEEP_S)
    rig.tell(ev.FromClient(1, m.ClientBeat(EPOCH)))
    return next(message for message in reversed(rig.told[1]) if isinstance(message, m.Accepted)).slots


class TestAHub:
    def test_a_client_without_tasks_is_told_nothing(self, rig):
        rig.join(slots=3)

        assert told(rig) == []

    def test_one_is_told_of_the_slots_for_its_tasks_as_pools_come_and_go(self, rig):
        rig.submit(one=GPU)
        assert told(rig) == [("gpu", ["a100", "big"], 0)]

        rig.join("other", slots=7)
        rig.join("less", slots=7, queues=["gpu"], tags=["a100"])
        assert told(rig) == [("gpu", ["a100", "big"], 0)]
        session = rig.join("able", slots=3, queues=["gpu"], tags=["a100", "big", "more"])
        assert told(rig) == [("gpu", ["a100", "big"], 3)]
        rig.tell(ev.LaneLost(session))
        assert told(rig) == [("gpu", ["a100", "big"], 0)]

    def test_a_pool_that_leaves_does_not_count(self, rig):
        session = rig.join(slots=3)
        rig.submit()
        assert told(rig) == [("default", [], 3)]

        rig.beat(session, state="draining")
        assert told(rig) == [("default", [], 0)]

    def test_slots_that_another_hub_keeps_busy_count(self, rig):
        session = rig.join(slots=3)
        rig.submit()

        rig.beat(session, slots=0)
        assert told(rig) == [("default", [], 3)]

    def test_two_functions_of_one_route_are_told_once_and_each_route_for_itself(self, rig):
        rig.join(slots=3)
        for one in (spec("f"), spec("g"), GPU):
            rig.submit(one=one)

        assert told(rig) == [("default", [], 3), ("gpu", ["a100", "big"], 0)]

    def test_routes_of_tasks_that_have_ended_are_forgotten_when_the_client_is_silent(self, rig):
        session = rig.join()
        rig.submit()
        rig.report(session, done=((1, 1, 1),))
        rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 1)))
        rig.after(GRACE)
        assert told(rig) == []

        rig.submit(one=GPU)
        assert told(rig) == [("gpu", ["a100", "big"], 0)]

    def test_an_answer_is_never_long(self, rig):
        for number in range(MOST_ROUTES + 1):
            rig.submit(one=Spec(b"", "f", queue=f"q{number}"))

        assert len(told(rig)) == MOST_ROUTES


class TestAClient:
    def test_it_keeps_what_it_was_told_and_when(self):
        client = Client()
        client.welcome()
        client.submit(1)
        client.after(1.1)
        at = client.now
        client.hear(m.Accepted(1, slots=[("gpu", ["a"], 3), ("default", [], 0)]))

        client.after(0.5)
        client.hear(m.Accepted(1))
        assert client.machine.slots == {("gpu", frozenset("a")): (3, at), ("default", frozenset()): (0, at)}
        client.hear(m.Accepted(1, slots=[("default", [], 2)]))
        assert client.machine.slots == {("default", frozenset()): (2, client.now)}
