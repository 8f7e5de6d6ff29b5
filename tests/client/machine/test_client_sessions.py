"""How many client sessions a hub remembers, and for how long."""

import pytest

from taskmesh.core.events import ClientGone, FromClient
from taskmesh.hub.machine.clients import IDLE_TTL
from taskmesh.messages import mesh_messages as m
from tests.core.rig import HubRig


@pytest.fixture
def rig() -> HubRig:
    return HubRig(max_clients=3)


def test_a_client_above_the_cap_is_told_why(rig):
    for client in (1, 2, 3, 4):
        rig.client(client)

    (refused,) = rig.told[4]
    assert isinstance(refused, m.ClientRefused)
    assert "hub.max_clients" in refused.reason
    rig.client(3)  # who has a session keeps it
    assert isinstance(rig.told[3][-1], m.ClientWelcome)


def test_clients_that_are_away_and_have_nothing_make_room(rig):
    for client in (1, 2, 3):
        rig.client(client)
    rig.submit(2, 1)
    for client in (1, 2):
        rig.tell(ClientGone(client))

    rig.client(4)

    assert isinstance(rig.told[4][-1], m.ClientWelcome)
    assert set(rig.hub.state.clients) == {2, 3, 4}


def test_who_went_without_a_word_and_left_nothing_is_forgotten_after_a_while(rig):
    rig.join()
    rig.client(1)
    rig.client(2)
    rig.submit(2, 1)
    rig.report(1, done=((2, 1, 1),))  # an outcome that waits for its client
    for client in (1, 2):
        rig.tell(ClientGone(client))

    rig.after(IDLE_TTL - 6)
    assert set(rig.hub.state.clients) == {1, 2}
    rig.after(12)
    assert set(rig.hub.state.clients) == {2}
    assert set(rig.hub.state.ledger.accounts) == {2}


def test_a_client_that_stays_is_not_forgotten(rig):
    rig.client(1)
    for _ in range(40):
        rig.after(2)
        rig.tell(FromClient(1, m.ClientBeat()))

    assert set(rig.hub.state.clients) == {1}
