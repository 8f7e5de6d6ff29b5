"""What failed handshakes mean: a hub that refuses, or a network that cuts off and spoils."""

from collections.abc import Callable
from typing import Any

import pytest

from taskmesh.net.endpoints import Endpoints
from taskmesh.net.refusals import FEW_FAILURES, Refusals
from taskmesh.net.ways import Way
from taskmesh.sockets import EventKind, MonitorEvent

CUT, SPOILT = EventKind.HANDSHAKE_FAILED_NO_DETAIL, EventKind.HANDSHAKE_FAILED_PROTOCOL
DENIED, LET_IN = EventKind.HANDSHAKE_FAILED_AUTH, EventKind.HANDSHAKE_SUCCEEDED
WAY = Way(Endpoints.of("tcp://127.0.0.1:5550"))


class Dialler:
    """A socket, its monitor and the loop that looks at it, with events made up."""

    def __init__(self, ways: int = 1) -> None:
        self.raw = object()
        self.failures: list[bool] = []
        self.cuts = 0
        self._waiting: list[MonitorEvent] = []
        self._look: Callable[[], None]
        self.refusals = Refusals(self, None, ways, self.failures.append, self.count_cut)  # type: ignore[arg-type]
        self.refusals.watch(self, WAY)  # type: ignore[arg-type]

    def count_cut(self) -> None:
        self.cuts += 1

    def monitor(self) -> "Dialler":
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
        """Let these happen; returns the verdict."""
        self._waiting = [MonitorEvent(kind, "", 0) for kind in kinds]
        self._look()
        return self.refusals.verdict


@pytest.mark.parametrize("kind", [CUT, SPOILT])
def test_a_hub_never_reached_that_cuts_off_several_times_is_taken_to_refuse(kind):
    dialler = Dialler()
    assert dialler.see(*[kind] * (FEW_FAILURES - 1)) == ""
    assert "it asks for keys" in dialler.see(kind)


@pytest.mark.parametrize("kind", [CUT, SPOILT])
def test_one_that_has_let_us_in_is_not(kind):
    dialler = Dialler()
    assert dialler.see(LET_IN, EventKind.DISCONNECTED, *[kind] * 50) == ""
    assert dialler.cuts == 1
    assert len(dialler.failures) == 50 - FEW_FAILURES + 1, "each of them is followed by a rest"


def test_the_first_failures_are_followed_by_another_attempt_at_once_and_later_ones_by_a_rest():
    dialler = Dialler(ways=2)
    dialler.see(LET_IN, EventKind.DISCONNECTED, *[CUT] * (2 * FEW_FAILURES - 1))
    assert dialler.refusals.rest == 0.0
    dialler.see(CUT)
    assert 0.5 < dialler.refusals.rest < 1.5
    dialler.see(LET_IN)
    assert dialler.refusals.rest == 0.0


def test_rests_grow_with_the_time_without_success_and_differ(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("taskmesh.net.refusals.time.monotonic", lambda: now[0])
    dialler = Dialler()
    dialler.see(LET_IN, EventKind.DISCONNECTED)
    rests = []
    for _ in range(2000):
        dialler.see(CUT)
        now[0] += dialler.refusals.rest
        rests.append((now[0] - 1000.0, dialler.refusals.rest))
    assert max(rest for past, rest in rests if past < 60) <= 2.6, (
        "a hub that was away for a minute is back soon"
    )
    last = [rest for past, rest in rests if past > 3600]
    assert 22 < min(last) < 25
    assert 35 < max(last) <= 37.5


def test_until_it_says_so():
    assert Dialler().see(LET_IN, EventKind.DISCONNECTED, DENIED) != ""


def test_a_handshake_that_succeeds_takes_the_verdict_back():
    dialler = Dialler()
    assert dialler.see(DENIED)
    assert dialler.see(LET_IN) == ""


def test_what_is_spoilt_on_its_way_ends_the_link_and_refuses_nobody():
    dialler = Dialler()
    assert dialler.see(LET_IN, SPOILT) == ""
    assert dialler.failures == [True], "libzmq does not dial this link again"


def test_all_ways_have_to_fail():
    dialler = Dialler(ways=2)
    assert dialler.see(DENIED) == ""
    dialler.refusals.watch(dialler, Way(WAY.hub, b"another"))  # type: ignore[arg-type]
    assert dialler.see(DENIED) != ""
