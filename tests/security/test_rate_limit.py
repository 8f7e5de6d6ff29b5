"""What one key may say: accounts of messages and bytes, and what is told of what was dropped."""

from collections.abc import Iterator

import pytest

from taskmesh.security.peer_errors import PeerErrors
from taskmesh.security.rate_limit import MANY, SMALL, TELL, RateLimits

USER = "client:alice"
LINK = b"link"
PLENTY = bytes(SMALL + 1)


class Gate:
    """RateLimits with a clock by hand."""

    def __init__(self, messages: int = 0, size: int = 0) -> None:
        self.now = 100.0
        self.rates = RateLimits(messages, size, lambda: self.now)
        self.peer_errors = PeerErrors(lambda kind, fields: None)

    def admits(self, count: int, body: bytes = b"x", user: str = USER) -> int:
        """How many of so many messages are let through."""
        return len(list(self.rates.of_clients([(user, [LINK, body])] * count, {LINK: 7})))

    def told(self) -> list[tuple[str, int, float]]:
        return [(one.user, one.dropped, one.wait) for one in self.rates.reported(self.now, self.peer_errors)]


def test_a_second_s_worth_may_come_at_once_and_then_as_much_as_time_brings():
    gate = Gate(messages=100)
    assert gate.admits(150) == 100
    gate.now += 0.3
    assert gate.admits(100) == 30
    gate.now += 60
    assert gate.admits(300) == 100


def test_bytes_may_be_overdrawn_by_one_message_and_are_worked_off():
    gate = Gate(size=1_000_000)
    assert gate.admits(3, bytes(3_000_000)) == 1
    gate.now += 1.9
    assert gate.admits(1, PLENTY) == 0
    gate.now += 0.2
    assert gate.admits(1, PLENTY) == 1


def test_what_is_small_overtakes_what_is_large():
    gate = Gate(size=1000)
    gate.admits(1, bytes(1_000_000))
    assert gate.admits(1, PLENTY) == 0
    assert gate.admits(50, bytes(100)) == 50, "signs of life go through"


def test_keys_do_not_take_from_each_other():
    gate = Gate(messages=10)
    assert gate.admits(20) == 10
    assert gate.admits(20, user="client:bob") == 10


@pytest.mark.parametrize("body", [b"x", PLENTY])
def test_no_caps_no_drops(body):
    gate = Gate()
    assert gate.admits(5000, body) == 5000
    assert gate.told() == []


def test_drops_are_gathered_for_a_moment_and_told_with_the_time_to_wait():
    gate = Gate(messages=100)
    gate.admits(130)
    assert gate.told() == []
    assert gate.rates.tell_at == gate.now + TELL
    gate.now += TELL
    ((user, dropped, wait),) = gate.told()
    assert (user, dropped) == (USER, 30)
    assert wait == pytest.approx(0.4), "half a second's worth, of which there is a tenth"
    assert gate.told() == []
    assert gate.peer_errors.counts == {"rate.exceeded": 30}
    gate.now += wait
    assert gate.admits(60) >= 49


def test_it_is_told_whose_sessions_are_meant_and_which_cap():
    gate = Gate(messages=1)
    gate.admits(3)
    sent: Iterator[object] = gate.rates.of_pools([(USER, [b"t", b"x"])] * 2, lambda user, parts: 9)
    assert list(sent) == []
    gate.now += TELL
    (over,) = gate.rates.reported(gate.now, gate.peer_errors)
    assert (over.clients, over.sessions) == ({7}, {9})
    assert over.cap == "hub.key_messages_per_s = 1"

    gate = Gate(size=5)
    gate.admits(2, PLENTY)
    gate.now += TELL
    (over,) = gate.rates.reported(gate.now, gate.peer_errors)
    assert over.cap == "hub.key_bytes_per_s = 5"


def test_subscriptions_count_and_are_not_dropped():
    gate = Gate(messages=10)
    gate.rates.charge(iter([USER] * 8))
    assert gate.admits(5) == 2


def test_accounts_of_the_silent_go():
    gate = Gate(messages=10)
    for number in range(3 * MANY):
        gate.now += 0.01
        gate.admits(1, user=f"client:{number}")
    assert len(gate.rates._accounts) <= MANY + 1
