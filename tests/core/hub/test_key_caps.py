"""What those who show one key may have together: sessions, and messages that are not dropped."""

import pytest

from taskmesh.core.events import ClientGone, FromClient, FromPool, OverRate
from taskmesh.wire import messages as m
from tests.core.rig import EPOCH, HubRig


@pytest.fixture
def rig() -> HubRig:
    return HubRig(max_clients=3)


# --- clients -----------------------------------------------------------------------------------------------


def hello(rig: HubRig, client: int, user: str) -> object:
    rig.tell(FromClient(client, m.ClientHello(client, 0), user))
    return rig.told[client][-1]


def test_a_key_has_so_many_clients_and_the_next_is_told_the_cure():
    rig = HubRig(key_sessions=2)
    for client in (1, 2):
        assert isinstance(hello(rig, client, "client:a"), m.ClientWelcome)
    refused = hello(rig, 3, "client:a")
    assert isinstance(refused, m.ClientRefused)
    assert "hub.key_sessions" in refused.reason
    assert "taskmesh keys new client" in refused.reason
    assert isinstance(hello(rig, 4, "client:b"), m.ClientWelcome)
    assert isinstance(hello(rig, 2, "client:a"), m.ClientWelcome), "who has a session keeps it"

    rig.tell(FromClient(1, m.ClientBye(), "client:a"))
    assert isinstance(hello(rig, 3, "client:a"), m.ClientWelcome)
    rig.tell(ClientGone(3))
    assert isinstance(hello(rig, 5, "client:a"), m.ClientWelcome), "who is away with nothing here makes room"


def test_clients_without_keys_are_not_counted_by_key():
    rig = HubRig(key_sessions=1)
    for client in (1, 2, 3):
        assert isinstance(hello(rig, client, ""), m.ClientWelcome)


def test_a_client_over_its_rate_is_told_to_wait_and_counts_as_alive(rig):
    hello(rig, 1, "client:a")
    for _ in range(20):
        rig.after(1)
        rig.tell(OverRate("client:a", 30, "hub.key_messages_per_s = 5", 0.4, {1, 99}, set()))

    assert rig.told[1][-1] == m.Busy(0, 0.4)
    assert not rig.hub.state.clients[1].lost
    assert rig.hub.snapshot()["over_rate"] == {
        "client:a": {"dropped": 600, "cap": "hub.key_messages_per_s = 5"}
    }


# --- pools -------------------------------------------------------------------------------------------------


def join(rig: HubRig, pool: str, user: str) -> object:
    """The answer to a Hello with this key."""
    hello = m.Hello(pool, 1, 1, 1, ["default"], [], 0, 0, [])
    rig.tell(FromPool(hello, user))
    answers = [message for to, message in rig.published if to == pool]
    return answers[-1] if answers else None


def test_a_key_has_so_many_pools_and_the_next_is_told_the_cure():
    rig = HubRig(key_sessions=2)
    for pool in ("a", "b"):
        assert isinstance(join(rig, pool, "worker:w"), m.Welcome)
    refused = join(rig, "c", "worker:w")
    assert isinstance(refused, m.Refused)
    assert "hub.key_sessions" in refused.reason
    assert "taskmesh keys new worker" in refused.reason
    assert "c" in rig.hub.snapshot()["refused"]
    assert isinstance(join(rig, "d", "worker:x"), m.Welcome)
    assert isinstance(join(rig, "b", "worker:w"), m.Welcome), "who has a session keeps it"

    rig.tell(FromPool(m.Bye(EPOCH, rig.session("a")), "worker:w"))
    assert isinstance(join(rig, "c", "worker:w"), m.Welcome)


def test_a_place_of_a_pool_that_seems_dead_is_waited_for():
    """A thousand pools that are started anew under other names are let in, a lease later."""
    rig = HubRig(key_sessions=1)
    join(rig, "a", "worker:w")
    rig.after(3)
    assert join(rig, "b", "worker:w") is None
    rig.after(8)
    assert isinstance(join(rig, "b", "worker:w"), m.Welcome)


def test_pools_without_keys_are_not_counted_by_key():
    rig = HubRig(key_sessions=1)
    assert isinstance(join(rig, "a", ""), m.Welcome)
    assert isinstance(join(rig, "b", ""), m.Welcome)


def test_a_pool_over_its_rate_is_told_to_wait_and_keeps_its_session():
    rig = HubRig()
    join(rig, "a", "worker:w")
    session = rig.session("a")
    for _ in range(20):
        rig.after(1)
        rig.tell(OverRate("worker:w", 10, "hub.key_bytes_per_s = 5", 0.4, set(), {session, 99}))

    assert rig.session("a") == session
    assert rig.published[-1] == ("a", m.BeatReply(EPOCH, session, 0, session, 0.4))
    assert rig.hub.snapshot()["over_rate"]["worker:w"]["dropped"] == 200
