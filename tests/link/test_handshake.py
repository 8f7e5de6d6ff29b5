"""The meaning of failed handshakes: a hub that refuses, or a network that cuts off and spoils."""

from collections.abc import Callable
from typing import Any

import pytest

from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.link.handshake import FEW_FAILURES, Handshakes
from taskmesh.sockets import EventKind, MonitorEvent

CUT, SPOILT = EventKind.HANDSHAKE_FAILED_NO_DETAIL, EventKind.HANDSHAKE_FAILED_PROTOCOL
DENIED, LET_IN = EventKind.HANDSHAKE_FAILED_AUTH, EventKind.HANDSHAKE_SUCCEEDED
TARGET = Target(Endpoints.of("tcp://127.0.0.1:5550"))


class MadeUpSocket:
    """A socket, its monitor and the loop that looks at it, with events made up."""

    def __init__(self, targets: int = 1) -> None:
        self.raw = object()
        self.failures: list[bool] = []
        self.cuts = 0
        self._waiting: list[MonitorEvent] = []
        self._look: Callable[[], None]
        self.handshakes = Handshakes(self, None, targets, self.failures.append, self.count_cut)  # type: ignore[arg-type]
        self.handshakes.watch(self, TARGET)  # type: ignore[arg-type]

    def count_cut(self) -> None:
        self.cuts += 1

    def monitor(self) -> "MadeUpSocket":
        return self

    def watch(self, raw: object, look: Callable[[], None]) -> None:
        self._look = look

    def unwatch(self, raw: object) -> None:
        assert raw is self.raw

    def close(self) -> None:
        self._waiting = []

    def recv_many(self) -> list[Any]:
        found, self._waiting = self._waiting, []
        return found

    def see(self, *kinds: EventKind) -> str:
        """Let these happen; returns the rejection."""
        self._waiting = [MonitorEvent(kind, "", 0) for kind in kinds]
        self._look()
        return self.handshakes.rejection


@pytest.mark.parametrize("kind", [CUT, SPOILT])
def test_a_hub_never_reached_that_cuts_off_several_times_is_taken_to_refuse(kind):
    dialled = MadeUpSocket()
    assert dialled.see(*[kind] * (FEW_FAILURES - 1)) == ""
    assert "it asks for keys" in dialled.see(kind)


@pytest.mark.parametrize("kind", [CUT, SPOILT])
def test_one_that_has_let_us_in_is_not(kind):
    dialled = MadeUpSocket()
    assert dialled.see(LET_IN, EventKind.DISCONNECTED, *[kind] * 50) == ""
    assert dialled.cuts == 1
    assert len(dialled.failures) == 50 - FEW_FAILURES + 1, "each of them is followed by a back-off"


def test_the_first_failures_are_followed_by_another_attempt_at_once_and_later_ones_by_a_backoff():
    dialled = MadeUpSocket(targets=2)
    dialled.see(LET_IN, EventKind.DISCONNECTED, *[CUT] * (2 * FEW_FAILURES - 1))
    assert dialled.handshakes.backoff == 0.0
    dialled.see(CUT)
    assert 0.5 < dialled.handshakes.backoff < 1.5
    dialled.see(LET_IN)
    assert dialled.handshakes.backoff == 0.0


def test_backoffs_grow_with_the_time_without_success_and_differ(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("taskmesh.link.handshake.time.monotonic", lambda: now[0])
    dialled = MadeUpSocket()
    dialled.see(LET_IN, EventKind.DISCONNECTED)
    backoffs = []
    for _ in range(2000):
        dialled.see(CUT)
        now[0] += dialled.handshakes.backoff
        backoffs.append((now[0] - 1000.0, dialled.handshakes.backoff))
    assert max(backoff for past, backoff in backoffs if past < 60) <= 2.6, (
        "a hub that was away for a minute is back soon"
    )
    last = [backoff for past, backoff in backoffs if past > 3600]
    assert 22 < min(last) < 25
    assert 35 < max(last) <= 37.5


def test_until_it_says_so():
    assert MadeUpSocket().see(LET_IN, EventKind.DISCONNECTED, DENIED) != ""


def test_a_handshake_that_succeeds_clears_the_rejection():
    dialled = MadeUpSocket()
    assert dialled.see(DENIED)
    assert dialled.see(LET_IN) == ""


def test_what_is_spoilt_on_its_way_ends_the_link_and_refuses_nobody():
    dialled = MadeUpSocket()
    assert dialled.see(LET_IN, SPOILT) == ""
    assert dialled.failures == [True], "libzmq does not dial this link again"


def test_all_targets_have_to_fail():
    dialled = MadeUpSocket(targets=2)
    assert dialled.see(DENIED) == ""
    dialled.handshakes.watch(dialled, Target(TARGET.hub, b"another"))  # type: ignore[arg-type]
    assert dialled.see(DENIED) != ""
