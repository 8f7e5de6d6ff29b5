"""Pools and clients with other versions than the hub's: warned of, or refused."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.settings import Versions, difference
from taskmesh.messages import mesh_messages as m
from tests.core.rig import HubRig

OURS = Versions("3.11.7", 5, "3.1.2")


def client_hello(rig: HubRig, **stated: object) -> None:
    rig.tell(ev.FromClient(7, m.ClientHello(7, 0, name="laptop", **stated)))


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (Versions("3.11.7", 5, "3.1.2"), ""),
        (Versions("3.11.9", 5, "3.1.2"), ""),
        (Versions(), ""),
        (Versions("3.12.1", 5, "3.1.2"), "Python 3.12 where the hub has 3.11"),
        (Versions("3.11.7", 4, "3.1.2"), "pickle protocol 4 where the hub has 5"),
        (Versions("3.11.7", 5, "3.0.0"), "cloudpickle 3.0.0 where the hub has 3.1.2"),
    ],
)
def test_what_differs_is_told(theirs, words):
    found = difference(OURS, theirs)

    assert bool(found) == bool(words)
    assert words in found


def test_all_differences_are_told_at_once():
    assert difference(OURS, Versions("3.12", 4, "1.0")).count("where the hub has") == 3


class TestPools:
    def test_a_difference_is_a_warning_and_the_pool_works(self):
        rig = HubRig(versions=OURS)
        rig.client()
        session = rig.join("p", python="3.12.1")
        rig.submit(count=2)

        assert len(rig.held[session]) == 2
        assert "Python 3.12" in rig.hub.snapshot()["warnings"]["pool p"]
        assert [record.kind for record in rig.records].count("pool.versions") == 1

    def test_by_policy_it_is_refused_with_the_reason(self):
        rig = HubRig(versions=OURS, policy="refuse")
        rig.hello("p", cloudpickle="2.0")
        rig.hello("p", cloudpickle="2.0")

        assert not rig.hub.state.lanes
        refusals = [message for _, message in rig.published if isinstance(message, m.Refused)]
        assert len(refusals) == 2
        assert "cloudpickle 2.0" in refusals[0].reason
        assert rig.hub.snapshot()["refused"] == {"p": refusals[0].reason}
        assert [record.kind for record in rig.records] == ["pool.refused"]

    def test_one_that_comes_again_with_the_right_ones_is_no_longer_listed(self):
        rig = HubRig(versions=OURS, policy="refuse")
        rig.hello("p", cloudpickle="2.0")
        rig.join("p", cloudpickle="3.1.2", instance=2)

        assert rig.hub.snapshot()["refused"] == {}

    def test_another_protocol_is_refused_whatever_the_policy(self):
        rig = HubRig(versions=OURS)
        rig.hello("p", protocol=m.PROTOCOL + 1)

        assert "install the same taskmesh" in rig.hub.snapshot()["refused"]["p"]


class TestClients:
    def test_a_difference_is_a_warning(self):
        rig = HubRig(versions=OURS)
        client_hello(rig, python="3.10.2")
        client_hello(rig, python="3.10.2")

        assert isinstance(rig.told[7][0], m.ClientWelcome)
        assert "Python 3.10" in rig.hub.snapshot()["warnings"]["client laptop"]
        assert [record.kind for record in rig.records] == ["client.versions"]

    def test_by_policy_it_is_refused(self):
        rig = HubRig(versions=OURS, policy="refuse")
        client_hello(rig, cloudpickle="1.0")

        (refused,) = rig.told[7]
        assert isinstance(refused, m.ClientRefused)
        assert "cloudpickle 1.0" in refused.reason
        assert 7 not in rig.hub.state.clients
