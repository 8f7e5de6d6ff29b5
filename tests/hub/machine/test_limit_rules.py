"""Sliding windows, and limits in words."""

import random

import pytest

from taskmesh.hub.machine.books.limits import EXACT, LEEWAY, SLICES, Window
from taskmesh.messages.limit_rules import LimitError, read_limit, read_named, text_of
from taskmesh.messages.runs import LimitRule


@pytest.mark.parametrize("count", [3, 50, EXACT, EXACT + 1, 64_000])
def test_a_window_never_has_more_than_its_count(count):
    rule, chance, now = LimitRule("x", count, 10.0), random.Random(count), 0.0
    window, starts = Window(rule), []
    for _ in range(3000):
        now += chance.random() * 20.0 / min(count, 600)
        window.pass_to(now)
        free = max(0, count - window.count)
        if free:
            some = chance.randint(1, max(1, min(free, count // 50)))
            window.add(now, some)
            starts.append((now, some))
    first = total = 0
    for when, some in starts:
        total += some
        while starts[first][0] + 10.0 <= when:
            total -= starts[first][1]
            first += 1
        assert total <= count
    assert len(window._log) <= max(EXACT, SLICES + 1)


def test_a_start_that_was_late_counts_from_when_it_was():
    window = Window(LimitRule("x", 5, 1.0))
    for when in (1.0, 1.1, 1.2):
        window.add(when)
    window.put_off(1.0, 1.01)
    window.put_off(1.0, 1.15)
    window.put_off(0.5, 1.15)

    assert window.count == 3
    assert window.room_at(3) == pytest.approx(2.1 + LEEWAY), "of the one at 1.1"
    window.pass_to(2.14)
    assert window.count == 2
    window.pass_to(2.15)
    assert window.count == 1
    window.put_off(1.2, 5.0)
    assert window.empty_at == pytest.approx(6.0)


def test_a_start_that_has_left_the_window_cannot_be_given_back():
    window = Window(LimitRule("x", 2, 1.0))
    window.add(0.0)
    window.add(5.0)
    window.pass_to(5.0)
    window.give_back(0.0)

    assert window.count == 1


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
