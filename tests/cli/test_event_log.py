"""What a program tells of its events: time and level, tracebacks at debug only, and no flood."""

import pytest

from taskmesh.cli import event_log
from taskmesh.cli.event_log import PER_SECOND, EventLog

FAILURE = {"task_id": "ab", "name": "f", "worker": "", "text": "no good", "traceback": "Traceback ...\n"}


@pytest.fixture
def now(monkeypatch):
    at = [100.0]
    monkeypatch.setattr(event_log, "monotonic", lambda: at[0])
    return at


def test_an_event_is_a_line_with_its_time_and_fields():
    told = []
    EventLog(lambda *event: told.append(event)).record("task.failed", FAILURE)

    [(kind, text, fields)] = told
    assert kind == "task.failed"
    assert text == f"{fields['time']} task.failed task_id=ab name=f text=no good"
    assert fields["level"] == "warning"
    assert "traceback" not in fields


def test_a_traceback_is_told_at_debug():
    told = []
    EventLog(lambda *event: told.append(event), "debug").record("task.failed", FAILURE)

    [(_, text, fields)] = told
    assert text.endswith("text=no good\nTraceback ...")
    assert fields["traceback"] == "Traceback ..."


def test_what_a_task_raises_writes_no_lines_of_its_own():
    told = []
    EventLog(lambda *event: told.append(event)).record("task.failed", {"text": "a\ntaskmesh: \x1b[31mred"})

    assert "text=a\\ntaskmesh: \\x1b[31mred" in told[0][1]


@pytest.mark.parametrize(("level", "kinds"), [("warning", ["task.failed"]), ("error", [])])
def test_what_is_below_the_level_is_not_told(level, kinds):
    told = []
    log = EventLog(lambda kind, *_: told.append(kind), level)
    log.record("pool.joined", {})
    log.record("task.failed", {})

    assert told == kinds


def test_a_flood_is_counted_and_the_next_second_s_line_says_so(now):
    told = []
    log = EventLog(lambda kind, text, fields: told.append(fields))
    for _ in range(PER_SECOND + 30):
        log.record("task.failed", FAILURE)
    assert len(told) == PER_SECOND

    log.record("pool.joined", {})
    now[0] += 1.0
    log.record("task.failed", FAILURE)

    assert len(told) == PER_SECOND + 2
    assert told[-1]["untold_before"] == 30
