"""The checker itself: a judge that sees nothing would acquit everybody."""

import os
import threading
from pathlib import Path

import pytest

from tests.faults.checker import CANCELLED, OK, Verdict, check
from tests.harness.journal import Journal


class Run:
    """Two logs that a test writes by hand."""

    def __init__(self, folder: Path) -> None:
        self.client = Journal(folder / "client.log")
        self.executions = Journal(folder / "executions.log")

    def submit(self, *indexes: int, accepted: bool = True) -> None:
        for index in indexes:
            self.client.write("submit", index)
            self.client.write("submitted", index, f"id{index}")
            if accepted:
                self.client.write("accepted", index)

    def execute(
        self, index: int, attempt: int = 1, pid: int = 1, *, ends: bool = True, task: str = ""
    ) -> None:
        self.executions.write("start", index, task or f"id{index}", attempt, pid)
        if ends:
            self.executions.write("end", index, task or f"id{index}", attempt, pid)

    def outcome(self, index: int, kind: str = OK, value: str = "", attempt: int = 1) -> None:
        self.client.write("outcome", index, kind, value or f"value{index}", attempt)

    def check(self, **options: object) -> Verdict:
        return check(self.client, self.executions, "value{}".format, **options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.submit(1, 2)
    for index in (1, 2):
        run.execute(index)
        run.outcome(index)
    return run


def test_a_run_without_faults_is_clean(run):
    verdict = run.check()

    assert verdict.violations == []
    assert (verdict.submitted, verdict.acknowledged, verdict.succeeded) == (2, 2, 2)
    assert (verdict.lost, verdict.duplicated, verdict.unexpected, verdict.recovered) == ([], [], [], [])
    assert verdict.repeated == []


def test_an_acknowledged_task_without_an_outcome_is_lost(run):
    run.submit(3)
    run.execute(3)

    verdict = run.check()

    assert verdict.lost == [3]
    assert verdict.violations == ["acknowledged and lost: [3] (1)"]


def test_a_task_with_an_excuse_is_not_lost(run):
    run.submit(3)

    assert run.check(excused=[3]).lost == []


def test_a_task_that_was_not_acknowledged_may_vanish_or_be_recovered(run):
    run.submit(3, 4, accepted=False)
    run.execute(4)
    run.outcome(4)

    verdict = run.check()

    assert verdict.violations == []
    assert verdict.lost == []
    assert verdict.recovered == [4]


def test_without_a_client_the_execution_log_says_what_is_lost(run):
    run.submit(3, 4)
    run.execute(3)
    run.execute(4, ends=False)

    verdict = run.check(client_gone=True)

    assert verdict.lost == [4]


def test_two_outcomes_are_a_duplicate(run):
    run.outcome(2)

    verdict = run.check()

    assert verdict.duplicated == [2]
    assert verdict.violations == ["more than one outcome: [2] (1)"]


def test_an_outcome_that_changes_is_told_apart(run):
    run.outcome(2, "ValueError")

    assert any(violation.startswith("outcomes that changed") for violation in run.check().violations)


def test_what_nobody_submitted_is_unexpected(run):
    run.execute(7)

    verdict = run.check()

    assert verdict.unexpected == [7]
    assert any(violation.startswith("nobody submitted") for violation in verdict.violations)


def test_a_wrong_value_is_seen(run):
    run.submit(3)
    run.execute(3)
    run.outcome(3, value="value1")

    assert run.check().violations == ["values that are not their task's: [3] (1)"]


def test_an_attempt_that_starts_twice_is_seen_and_a_second_attempt_is_none(run):
    run.execute(1, attempt=2, pid=2)
    assert run.check().violations == []
    assert run.check().repeated == [1]

    run.execute(1, attempt=2, pid=3)
    assert run.check().violations == ["one attempt was started twice: [1] (1)"]
    assert run.check(hubs=2).violations == []

    run.execute(1, attempt=2, pid=4)
    assert run.check(hubs=2).violations == ["one attempt was started twice: [1] (1)"]


def test_a_success_must_be_of_an_attempt_that_ended(run):
    run.submit(3)
    run.execute(3, attempt=1, ends=False)
    run.outcome(3, attempt=1)

    assert any("did not" in violation for violation in run.check().violations)


def test_a_task_that_runs_under_another_id_is_seen(run):
    run.execute(1, attempt=2, task="id2")

    assert any("another task's id" in violation for violation in run.check().violations)


def test_a_cancelled_task_needs_no_outcome_and_may_have_no_value(run):
    run.submit(3, 4)
    for index in (3, 4):
        run.client.write("cancel", index)
    run.outcome(3, CANCELLED)
    assert run.check().violations == []

    run.execute(4)
    run.outcome(4)
    assert any("cancelled" in violation for violation in run.check().violations)


def test_a_start_long_after_the_cancellation_is_seen(run):
    run.submit(3)
    run.client.write("cancel", 3)
    run.execute(3, ends=False)
    assert run.check().violations == []

    assert run.check(cancellation=0.0).violations == ["started after they were cancelled: [3] (1)"]


def test_an_at_most_once_task_that_runs_again_is_seen(run):
    run.execute(1, attempt=2)

    assert run.check(once=[2]).violations == []
    assert run.check(once=[1]).violations == ["at-most-once tasks were started again: [1] (1)"]


def test_books_that_do_not_add_up_are_seen(run):
    pool = {"pool": "p", "slots": 2, "outstanding": 8192}
    good = {"accepted": 5, "finished": 2, "tasks": {"queued": 3}, "pools": [pool]}
    assert run.check(samples=[good]).violations == []

    bad = {**good, "accepted": 6, "pools": [{**pool, "outstanding": 8193}]}
    violations = run.check(samples=[good, bad]).violations
    assert [violation.partition(":")[0] for violation in violations] == [
        "counts do not add up",
        "more than the window",
    ]


def test_lines_of_many_writers_do_not_mix_and_a_torn_last_line_is_passed_over(tmp_path):
    journal = Journal(tmp_path / "log")
    threads = [
        threading.Thread(target=lambda: [journal.write("start", i, "x" * 50) for i in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(journal.path, "ab", buffering=0) as log:
        os.write(log.fileno(), b"1.0 start 5 to")

    assert [len(entry.fields[0]) for entry in journal.entries()] == [50] * 800
    assert journal.count("start") == 800
