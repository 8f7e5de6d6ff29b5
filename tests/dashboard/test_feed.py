"""The share of a hub's answers that the dashboard keeps, and the number of pages that it takes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from taskmesh.dashboard.access import (
    MOST_SESSIONS,
    STREAMS,
    STREAMS_OF_ONE,
    Access,
    RequestRefused,
    dashboard_settings,
)
from taskmesh.dashboard.feed import COARSE, FINE, Flow, HubSession, Questions
from taskmesh.errors import HubUnreachable, TaskMeshError


def status(accepted: int, failed: int = 0, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "accepted": accepted, "finished": accepted, "ended": {"failed": failed}}


def test_rates_are_those_between_two_answers():
    flow = Flow()
    flow.take(status(100), 10.0)
    flow.take(status(130, failed=5), 20.0)

    assert flow.points() == [(20.0, 3.0, 3.0, 0.5)]


def test_a_hub_that_was_started_anew_has_no_negative_rates():
    flow = Flow()
    flow.take(status(100), 10.0)
    flow.take(status(3, epoch=2), 11.0)
    flow.take(status(4, epoch=2), 12.0)

    assert flow.points() == [(12.0, 1.0, 1.0, 0.0)]


def test_an_hour_is_kept_in_few_points():
    flow = Flow()
    for second in range(10_000):
        flow.take(status(2 * second), float(second))

    points = flow.points()
    assert 3500 < points[-1][0] - points[0][0] < 3700
    assert len(points) <= FINE + COARSE
    assert {point[1] for point in points} == {2.0}


class Hub:
    """Answers with the number of the question, after it was asked for the first time."""

    def __init__(self, error: str = "") -> None:
        self.asked: list[str] = []
        self._error = error

    def query(self, what: str, argument: str, limit: int) -> int:
        self.asked.append(f"{what} {argument}".strip())
        if self._error:
            raise TaskMeshError(self._error)
        return len(self.asked)


def test_pages_that_ask_the_same_share_an_answer():
    hub = Hub()

    async def pages() -> list[bytes]:
        questions = Questions(cast(HubSession, hub))
        same = [questions.ask("tasks", "running", 100) for _ in range(20)]
        return await asyncio.gather(*same, questions.ask("tasks", "failed", 100))

    answers = asyncio.run(pages())
    assert answers == [b"1"] * 20 + [b"2"]
    assert hub.asked == ["tasks running", "tasks failed"]


def test_a_refusal_is_shared_and_a_crowd_is_turned_away():
    async def pages() -> list[Any]:
        questions = Questions(cast(HubSession, Hub("no such task")))
        asking = [asyncio.create_task(questions.ask("task", str(number), 1)) for number in range(200)]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        turned_away = await asyncio.gather(*asking[-100:], return_exceptions=True)
        (first,) = await asyncio.gather(asking[0], return_exceptions=True)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return [*turned_away, first]

    *turned_away, first = asyncio.run(pages())
    assert {type(error) for error in turned_away} == {HubUnreachable}
    assert str(first) == "no such task"


def test_pages_and_sessions_are_bounded():
    access = Access(dashboard_settings("127.0.0.1:5581"))
    for number in range(STREAMS):
        access.take_stream(str(number // STREAMS_OF_ONE))
    with pytest.raises(RequestRefused, match="too many pages"):
        access.take_stream("another")
    access.give_stream("0")
    access.take_stream("another")
    first = access.opened(access.made)
    for _ in range(MOST_SESSIONS):
        last = access.opened(access.made)
    assert not access.is_open(first)
    assert access.is_open(last)
