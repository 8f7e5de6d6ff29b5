"""Sliding windows, and limits in words."""

import random

import pytest

from taskmesh.hub.machine.books.limits import EXACT, LimitCounter
from taskmesh.messages.limit_rules import LimitError, read_limit, read_named, text_of
from taskmesh.messages.runs import LimitRule


@pytest.mark.parametrize("count", [3, 50, EXACT, EXACT + 1, 64_000])
def test_a_window_never_has_more_than_its_count(count):
    rule, chance, now = LimitRule("x", count, 10.0), random.Random(count), 0.0
    counter, starts = LimitCounter(("x", ""), rule), []
    for _ in range(3000):
        now += chance.random() * 20.0 / min(count, 600)
        some = 0
        while some < max(1, count // 50) and counter.room_at(now) <= now:
            counter.add(now)
            some += 1
        if some:
            starts.append((now, some))
    first = total = 0
    for when, some in starts:
        total += some
        while starts[first][0] + 10.0 <= when:
            total -= starts[first][1]
            first += 1
        assert total <= count
    assert len(counter.blocks) <= EXACT


def test_a_start_that_has_left_the_window_cannot_be_given_back():
    counter = LimitCounter(("x", ""), LimitRule("x", 2, 1.0))
    counter.start(1, 0.0)
    counter.start(2, 5.0)
    counter.room_at(5.0)
    counter.end(1, unstarted=True)

    assert counter.started == 1


def test_a_start_that_was_not_counted_cannot_be_given_back():
    """The rule has become a rate while the task was at its pool."""
    counter = LimitCounter(("x", ""), LimitRule("x", 2))
    counter.start(1, 0.0)
    counter.change(LimitRule("x", 2, 1.0))
    counter.start(2, 0.1)
    counter.end(1, unstarted=True)

    assert counter.started == 1


@pytest.mark.parametrize("text", ["api:50/s", "gpu:2", "a:b:600/m", "x:1/d"])
def test_words(text):
    rule = read_named(text)

    assert f"{rule.name}:{text_of(rule)}" == text


@pytest.mark.parametrize(
    "text", ["api", "api:", ":2", "api:0", "api:-1", "api:5/w", "api:1.5/s", "api:" + "9" * 30]
)
def test_what_is_no_limit(text):
    with pytest.raises(LimitError):
        read_named(text)
    with pytest.raises(LimitError):
        read_limit("a\nb", "5")
