"""Requests that a program ends."""

import signal
from collections.abc import Iterator

import pytest

from taskmesh.system import signals
from taskmesh.system.loop import Loop
from taskmesh.system.signals import StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    with StopRequest(Loop()).listening() as listening:
        yield listening


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])
    return clock


def test_a_signal_that_comes_twice_at_once_is_one_request(stop: StopRequest, now: list[float]):
    for seconds in (0.0, 0.002, 0.4, 0.4):
        now[0] += seconds
        signal.raise_signal(signal.SIGTERM)
    assert stop.asked == 1

    now[0] += 0.6
    signal.raise_signal(signal.SIGTERM)
    assert stop.asked == 2


def test_two_kinds_of_signals_are_two_requests(stop: StopRequest, now: list[float]):
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)

    assert stop.asked == 2


def test_a_terminal_that_closes_does_not_insist(stop: StopRequest, now: list[float]):
    signal.raise_signal(signal.SIGTERM)
    now[0] += 10.0
    signal.raise_signal(signal.SIGHUP)

    assert stop.asked == 1
