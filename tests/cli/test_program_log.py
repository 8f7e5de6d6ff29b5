"""A program's events are logged with time and level, tracebacks at debug only, and never in a flood."""

from collections.abc import Mapping

import pytest

from taskmesh.cli import program_log
from taskmesh.cli.output import Output
from taskmesh.cli.program_log import PER_SECOND, ProgramLog

FAILURE = {"task_id": "ab", "name": "f", "worker": "", "text": "no good", "traceback": "Traceback ...\n"}


class Told(Output):
    """An output that keeps events."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.events: list[tuple[str, str, dict[str, object]]] = []

    def news(self, kind: str, text: str, fields: Mapping[str, object], keep: str = "") -> None:
        self.events.append((kind, text, dict(fields)))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def now(monkeypatch):
    at = [100.0]
    monkeypatch.setattr(program_log, "monotonic", lambda: at[0])
    return at


def test_an_event_is_a_line_with_its_time_and_fields(told: Told):
    ProgramLog(told).record("task.failed", FAILURE)

    [(kind, text, fields)] = told.events
    assert kind == "task.failed"
    assert text == "task.failed task_id=ab name=f text=no good"
    assert fields["level"] == "warning"
    assert "traceback" not in fields


def test_a_traceback_is_told_at_debug(told: Told):
    ProgramLog(told, "debug").record("task.failed", FAILURE)

    [(_, text, fields)] = told.events
    assert text.endswith("text=no good\nTraceback ...")
    assert fields["traceback"] == "Traceback ..."


def test_what_a_task_raises_writes_no_lines_of_its_own(told: Told):
    ProgramLog(told).record("task.failed", {"text": "a\ntaskmesh: \x1b[31mred"})

    assert "text=a\\ntaskmesh: \\x1b[31mred" in told.events[0][1]


@pytest.mark.parametrize(("level", "kinds"), [("warning", ["task.failed"]), ("error", [])])
def test_what_is_below_the_level_is_not_told(told: Told, level, kinds):
    log = ProgramLog(told, level)
    log.record("pool.joined", {})
    log.record("task.failed", {})

    assert [kind for kind, *_ in told.events] == kinds


def test_a_flood_is_counted_and_the_next_second_s_line_says_so(told: Told, now):
    log = ProgramLog(told)
    for _ in range(PER_SECOND + 30):
        log.record("task.failed", FAILURE)
    assert len(told.events) == PER_SECOND

    log.record("pool.joined", {})
    now[0] += 1.0
    log.record("task.failed", FAILURE)

    assert len(told.events) == PER_SECOND + 2
    assert told.events[-1][2]["untold_before"] == 30
