"""The judge of an episode: what it has to see, and what it has to let pass."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.chaos.company import Life, Record
from tests.chaos.errands import KINDS, errand
from tests.chaos.judgement import RESUBMISSION, Account, books, judge, traces
from tests.faults.workload import answer

SEED = 5


class Logs:
    """A client's logs, written by hand; each kind of task has the number that the seed gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.life = Life(SimpleNamespace(name="client-0"), SEED)  # type: ignore[arg-type]
        self.record = Record()
        self.account = Account(folder, self.life)
        self.number = {errand(SEED, index).kind: index for index in range(2000)}

    def write(
        self, kind: str, ending: str = "", *, pids: tuple[int, ...] = (1,), accepted: bool = True
    ) -> None:
        """A task of this kind that started in these processes and ended so; "" for no ending."""
        index = self.number[kind]
        task = f"id-{kind}"
        self.account.log.write("submit", index)
        self.account.log.write("submitted", index, task)
        if accepted:
            self.account.log.write("accepted", index)
        for attempt, pid in enumerate(pids, 1):
            self.account.executions.write("start", index, task, attempt, pid)
        if ending == "ok":
            self.account.executions.write("end", index, task, len(pids), pids[-1])
        if ending:
            value = answer(index) if ending == "ok" else "-"
            self.account.log.write("outcome", index, ending, value, len(pids))

    def judge(self, *, harsh: bool = True) -> list[str]:
        return judge(Account(self.folder, self.life), self.record, harsh=harsh)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_a_number_and_a_seed_make_the_same_task_everywhere():
    made = [errand(SEED, index) for index in range(500)]

    assert made == [errand(SEED, index) for index in range(500)]
    assert {one.kind for one in made} > {"ordinary", "parent", "once"}
    assert {errand(SEED, index, ("parent",)).kind for index in range(20)} == {"parent"}
    assert set(KINDS) == {errand(SEED, index, (kind,)).kind for index, kind in enumerate(KINDS)}


def test_what_ends_as_it_should_is_right(logs):
    for kind in ("ordinary", "parent", "once", "coroutine"):
        logs.write(kind, "ok")
    logs.write("failing", "LookupError")
    logs.write("slow", "TaskTimeout")
    logs.write("given-up", "CancelledError", pids=())
    logs.write("crashing", "WorkerCrashed", pids=(1, 2, 3))

    assert logs.judge(harsh=False) == []


def test_a_lost_task_is_seen(logs):
    logs.write("parent")

    assert logs.judge() == [f"client-0: acknowledged and lost: [{logs.number['parent']}] (1)"]


def test_another_tasks_error_and_a_value_of_what_has_none_are_seen(logs):
    logs.write("ordinary", "LookupError")
    logs.write("failing", "ok")

    found = "\n".join(logs.judge())

    assert "ended with LookupError" in found
    assert "values that are not their task's" in found


@pytest.mark.parametrize("kind", ["ordinary", "parent"])
def test_who_was_cancelled_says_so_and_nobody_else(logs, kind):
    logs.write(kind, "CancelledError", pids=())
    assert logs.judge() == [f"client-0: cancelled by nobody: {logs.number[kind]} ({kind}, id-{kind})"]

    logs.record.cancelled[f"id-{kind}"] = 0.0
    assert logs.judge() == []


def test_a_cancellation_that_the_hub_has_confirmed_counts_while_that_hub_lives(logs):
    logs.write("ordinary", "ok")
    logs.record.confirmed.add("id-ordinary")
    assert ["cancelled by an operator" in problem for problem in logs.judge()] == [True]

    logs.record.hub_kills.append(0.0)
    assert logs.judge() == []


def test_only_who_ran_in_slots_that_died_is_blamed(logs):
    logs.write("ordinary", "WorkerCrashed", pids=(11, 12, 13))
    logs.record.struck.update((11, 12))
    assert ["blamed for a crash" in problem for problem in logs.judge()] == [True]

    logs.record.struck.add(13)
    assert logs.judge() == []


def test_a_task_of_a_killed_client_must_have_run_unless_a_hub_died_then(logs):
    logs.write("ordinary", pids=())
    logs.write("once", pids=())
    logs.life.killed = time.monotonic()
    assert logs.judge() == [f"client-0: acknowledged and lost: [{logs.number['ordinary']}] (1)"]

    logs.record.hub_kills.append(logs.life.killed - RESUBMISSION / 2)
    assert logs.judge() == []


def test_where_nothing_is_killed_nothing_runs_again_but_what_has_reasons_of_its_own(logs):
    logs.write("flaky", "ok", pids=(1, 2, 3))
    assert logs.judge(harsh=False) == []

    logs.write("ordinary", "ok", pids=(1, 2))
    assert ["run again without a cause" in problem for problem in logs.judge(harsh=False)] == [True]
    assert logs.judge(harsh=True) == []


def test_books_of_a_hub_with_work_left_are_wrong():
    pool = {"pool": "p", "slots": 2, "outstanding": 0}
    status = {"accepted": 5, "finished": 5, "tasks": {"queued": 0}, "pools": [pool]}
    assert books(status) == []

    assert len(books({**status, "finished": 4})) == 1
    assert len(books({**status, "tasks": {"queued": 1}})) == 1
    assert len(books({**status, "pools": [{**pool, "outstanding": 2}]})) == 1


def test_what_a_program_may_not_say_is_seen():
    said = {"stdout": "", "stderr": "x\nTraceback (most recent call last):\n  boom"}
    program = SimpleNamespace(
        name="hub", text=said.__getitem__, events=lambda: [{"event": "wrong", "text": "a map"}]
    )

    assert traces([program]) == [  # type: ignore[list-item]
        "hub says on stderr: Traceback (most recent call last):\n  boom",
        "hub: a map",
    ]
