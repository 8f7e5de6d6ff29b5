"""Commands against a hub with pools: what operators see, submit and command."""

import json
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.harness.ports import lasting_address
from tests.harness.program import END_S, command, environment, timed_lines
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")

WORK = "tests.hosting.workload"


@pytest.mark.smoke
def test_a_submitted_function_prints_its_result(shared_programs, address):
    outcome = shared_programs.run("submit", f"{WORK}:add", "1", "b=2", "--address", address)

    assert (outcome.returncode, outcome.stdout) == (0, "3\n"), outcome.stderr


def test_a_task_is_submitted_after_another(shared_programs, address, tmp_path):
    with Mesh(address) as mesh:
        gate = tmp_path / "gate"
        held = mesh.submit(workload.hold, str(tmp_path / "journal"), "word", str(gate))
        mesh.flush()
        before = mesh.status()["accepted"]
        line = ("submit", f"{WORK}:add", "1", "2", "--after", held.task_id, "--address", address)
        after = shared_programs.start(*line)
        wait_until(lambda: mesh.status()["accepted"] == before + 1, 20)
        gate.touch()
        after.wait(20)
        assert after.text("stdout") == "3\n"
        assert held.result(20) == "word"
    wrong = shared_programs.run("submit", f"{WORK}:add", "1", "2", "--after", "x", "--address", address)
    assert wrong.returncode == 2
    assert "a task id has 32 hexadecimal digits" in wrong.stderr


def test_a_task_is_submitted_with_its_time_key_and_limits(shared_programs, address):
    line = ("submit", f"{WORK}:add", "1", "2", "--limit", "gpu:2", "--limit", "api:50/s", "--key", "sum")
    later = shared_programs.run(*line, "--delay", "0.2", "--address", address)
    past = shared_programs.run(*line, "--at", "2020-01-01T00:00:00Z", "--address", address)
    wrong = shared_programs.run("submit", f"{WORK}:add", "1", "2", "--at", "tomorrow", "--address", address)
    unknown = shared_programs.run("submit", f"{WORK}:add", "1", "2", "--limit", "gpu:x", "--address", address)

    assert (later.returncode, later.stdout) == (0, "3\n"), later.stderr
    assert (past.returncode, past.stdout) == (0, "3\n"), past.stderr
    assert (wrong.returncode, unknown.returncode) == (2, 2)
    assert "'tomorrow' is no time" in wrong.stderr
    assert "'x' is no limit" in unknown.stderr


def test_a_text_is_printed_as_it_is(shared_programs, address):
    outcome = shared_programs.run("submit", f"{WORK}:echo", "two words", "--address", address)

    assert (outcome.returncode, outcome.stdout) == (0, "two words\n"), outcome.stderr


def test_numbers_below_zero_come_after_two_dashes(shared_programs, address):
    outcome = shared_programs.run("submit", "--address", address, f"{WORK}:add", "--", "-1", "-2")

    assert (outcome.returncode, outcome.stdout) == (0, "-3\n"), outcome.stderr


def test_json_tells_the_result_and_where_it_ran(shared_programs, address):
    outcome = shared_programs.run(
        "submit", f"{WORK}:echo", '{"a": [1, null]}', "--address", address, "--json"
    )

    found = rows(outcome)
    assert found["result"] == {"a": [1, None]}
    assert found["result_form"] == "json"
    assert (found["worker"], found["attempt"]) == ("steady/0", 1)
    assert len(found["task_id"]) == 32


def test_a_call_may_have_retries_a_priority_and_a_hard_limit(shared_programs, address, tmp_path):
    line = ("submit", "--address", address, "--json", "--retries")

    again = shared_programs.run(*line, "1", f"{WORK}:add", "1", "text")
    killed = shared_programs.run(*line, "0", "--priority", "3", "--hard-timeout", "0.2", "time:sleep", "20")

    assert rows(again)["error"]["attempt"] == 2
    assert rows(killed)["error"]["type"] == "TaskTimeout"
    refused = shared_programs.run(*line, "-1", f"{WORK}:add", "1", "2")
    assert (refused.returncode, "retries" in refused.stdout) == (2, True)


@pytest.mark.smoke
def test_hub_and_worker_log_each_failed_attempt_and_the_hub_explains_the_end(shared_programs):
    hub = shared_programs.start("hub", "--bind", "tcp://127.0.0.1:0", "--log-level", "debug", "--json")
    address = hub.ready()["gateway"]
    worker = shared_programs.worker(address, "--name", "told")

    line = ("submit", "--address", address, "--json")
    failed = shared_programs.run(*line, "--retries", "1", f"{WORK}:refuse", "because")
    crashed = shared_programs.run(*line, "os:_exit", "3")
    task = rows(failed)["error"]["task_id"]
    status = shared_programs.run("status", "--address", address)
    explained = shared_programs.run("explain", task, "--address", address)
    groups = shared_programs.run("errors", "refuse", "--address", address).stdout.splitlines()

    worker.end()
    hub.end()
    assert (failed.returncode, crashed.returncode) == (1, 1)
    for program in (hub, worker):
        told = [json.loads(line) for line in program.errors.splitlines() if '"task.failed"' in line]
        mine = [event for event in told if event["task_id"] == task]
        assert [event["attempt"] for event in mine] == [1, 2]
        assert {event["type"] for event in mine} == {"tests.hosting.workload.Refusal"}
        assert {event["kind"] for event in told} == {"exception", "crash"}
        assert all(event["time"] and event["level"] == "warning" for event in told)
        assert ("traceback" in mine[0]) == (program is hub)
    assert "2 finished (1 failed, 1 dead)" in status.stdout
    assert "function tests.hosting.workload.refuse: 0 succeeded, 1 failed" in status.stdout
    assert groups[0].startswith(
        "2 x tests.hosting.workload.refuse: exception: tests.hosting.workload.Refusal at "
    )
    assert f"{task} attempt 2 on told/0: because" in groups[1]
    assert " is over: failed 20" in explained.stdout
    assert ": attempt 2 on told/0: exception tests.hosting.workload.Refusal: because" in explained.stdout


def test_a_failing_function_is_exit_code_1_with_the_remote_traceback(shared_programs, address):
    outcome = shared_programs.run("submit", f"{WORK}:refuse", "because", "--address", address)

    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert "Refusal: because" in outcome.stderr
    assert "raise Refusal(text)" in outcome.stderr
    assert "worker steady/0" in outcome.stderr


def test_a_failure_as_json_has_the_same(shared_programs, address):
    outcome = shared_programs.run("submit", f"{WORK}:refuse", "because", "--address", address, "--json")

    error = rows(outcome)["error"]
    assert outcome.returncode == 1
    assert (error["type"], error["message"]) == ("Refusal", "because")
    assert "raise Refusal(text)" in error["traceback"]


def test_a_function_of_the_current_directory_is_found_here_and_there(shared_programs, address):
    (shared_programs.folder / "mine.py").write_text("def twice(value):\n    return 2 * value\n")

    outcome = shared_programs.run("submit", "mine:twice", "21", "--address", address)

    assert (outcome.returncode, outcome.stdout) == (0, "42\n"), outcome.stderr


def test_what_is_not_done_in_time_is_cancelled_and_exit_code_4(shared_programs, address, tmp_path):
    line = ("submit", f"{WORK}:hold", str(tmp_path / "journal"), "held", str(tmp_path / "gate"))

    outcome = shared_programs.run(*line, "--timeout", "0.5", "--address", address)

    assert outcome.returncode == 4
    assert "not finished within 0.5 s" in outcome.stderr
    status = rows(shared_programs.run("status", "--address", address, "--json"))
    assert not any(status["tasks"].values())


def test_ctrl_c_cancels_the_task_and_is_exit_code_130(shared_programs, address, tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    line = ("submit", f"{WORK}:hold", str(journal), "held", str(gate), "--address", address)
    waiting = shared_programs.start(*line)
    wait_until(journal.exists, 20)

    waiting.signal(signal.SIGINT)

    assert waiting.wait() == 130
    assert "Traceback" not in waiting.errors
    status = rows(shared_programs.run("status", "--address", address, "--json"))
    assert not any(status["tasks"].values())


def test_what_a_task_waits_for_is_told_once(shared_programs, address, tmp_path):
    line = ("submit", f"{WORK}:add", "1", "2", "--queue", "nobody-s", "--address", address)
    for_people, as_json = shared_programs.start(*line), shared_programs.start(*line, "--json")
    wait_until(lambda: "queue 'nobody-s': no pool serves it" in for_people.errors, 20)
    wait_until(lambda: '"waiting"' in as_json.errors, 20)
    news = json.loads(as_json.errors)
    assert (news["event"], news["state"]) == ("waiting", "queued")
    assert news["why"] == "queue 'nobody-s': no pool serves it: taskmesh worker --queues nobody-s"

    [one, two] = rows(shared_programs.run("tasks", "--address", address, "--json"))
    told = shared_programs.run("explain", one["task_id"], "--address", address).stdout
    told_of = f"task {one['task_id']} ({WORK}.add, queue nobody-s) is queued: "
    assert f"{told_of}queue 'nobody-s': no pool serves it" in told
    nobody = shared_programs.run("explain", "0" * 31 + "1", "--address", address, "--json")
    assert nobody.returncode == 1
    assert "nothing is known of task" in json.loads(nobody.stdout)["error"]["message"]
    for task in (one, two):
        assert shared_programs.run("cancel", task["task_id"], "--address", address).returncode == 0

    assert (for_people.wait(), as_json.wait()) == (1, 1)
    assert for_people.errors.count("no pool serves") == 1
    assert as_json.errors.count("no pool serves") == 1


@pytest.mark.smoke
def test_status_counts_tasks_pools_and_clients(shared_programs, address):
    def idle() -> list[str]:
        outcome = shared_programs.run("status", "--address", address)
        assert outcome.returncode == 0
        lines = [line for line in outcome.stdout.splitlines() if not line.startswith("! ")]
        return lines if lines[1].endswith("busy: 0") else []

    lines = wait_until(idle)  # pools tell how many slots are busy once in a second

    assert lines[0].endswith("on their way: none")
    assert lines[1] == "pools:    1; slots: 1, busy: 0"
    assert lines[2] == "clients:  0"


def test_pools_are_listed(shared_programs, address):
    [pool] = rows(shared_programs.run("pool", "list", "--address", address, "--json"))

    assert (pool["pool"], pool["slots"], pool["queues"], pool["state"]) == ("steady", 1, ["default"], "ready")


@pytest.mark.smoke
def test_tasks_on_their_way_are_listed_and_cancelled(shared_programs, address, tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists)

        [task] = rows(shared_programs.run("tasks", "--address", address, "--json"))
        assert (task["task_id"], task["pool"]) == (held.task_id, "steady")
        assert task["name"] == f"{WORK}.hold"
        queued = "tasks", "--state", "queued", "--address", address, "--json"
        wait_until(lambda: rows(shared_programs.run(*queued)) == [])  # the hub hears once a second what runs
        unknown = shared_programs.run("tasks", "--state", "nosuch", "--address", address)
        assert (unknown.returncode, "'nosuch' is not one of" in unknown.stderr) == (2, True)
        outcome = shared_programs.run("cancel", held.task_id, "--address", address)

        assert (outcome.returncode, outcome.stdout) == (0, f"cancelled {held.task_id}\n")
        wait_until(held.cancelled)
        assert shared_programs.run("cancel", held.task_id, "--address", address).returncode == 1
    nothing = [
        shared_programs.run("tasks", *more, "--address", address) for more in ((), ("--state", "queued"))
    ]
    assert [each.stderr for each in nothing] == ["no task is on its way\n", "no task is queued\n"]


def test_stack_shows_where_a_running_task_is(shared_programs, address, tmp_path):
    with Mesh(address) as mesh:
        gate = tmp_path / "gate"
        held = mesh.submit(workload.hold, str(tmp_path / "journal"), "word", str(gate))
        wait_until((tmp_path / "journal").exists, 20)

        people = shared_programs.run("stack", held.task_id, "--address", address)
        programs = shared_programs.run("stack", held.task_id, "--json", "--address", address)
        gate.touch()
        assert held.result(20) == "word"
        over = shared_programs.run("stack", held.task_id, "--address", address)

    assert people.returncode == 0, people.stderr
    assert "(most recent call first):\n" in people.stdout
    assert "in hold\n" in people.stdout
    told = json.loads(programs.stdout)
    assert (told["task_id"], told["logger"]) == (held.task_id, "taskmesh.stack")
    assert "in hold\n" in told["text"]
    assert [line.logger for line in held.logs()] == ["taskmesh.stack"] * 2, "its own program has it, too"
    assert over.returncode == 1
    assert f"no pool has task {held.task_id}" in over.stderr


def test_all_tasks_of_a_client_are_cancelled(shared_programs, address, tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = [mesh.submit(workload.hold, str(journal), "held", str(gate)) for _ in range(3)]
        wait_until(journal.exists)
        name = f"{held[0].task_id[:16]}"
        outcome = shared_programs.run("cancel", "--client", name, "--address", address)

        assert (outcome.returncode, outcome.stdout) == (0, f"cancelled 3 tasks of {name}\n")
        for future in held:
            wait_until(future.cancelled)
        nobody = shared_programs.run("cancel", "--key", "client:nobody", "--address", address)
        assert nobody.returncode == 1
        assert "no client that shows the key 'client:nobody'" in nobody.stderr
        both = shared_programs.run("cancel", held[0].task_id, "--client", name, "--address", address)
        assert "say what to cancel" in both.stderr


def test_a_paused_pool_gets_no_work_until_it_is_resumed(shared_programs, address):
    assert shared_programs.run("pool", "pause", "steady", "--address", address).stdout == "paused steady\n"
    with Mesh(address) as mesh:
        future = mesh.submit(workload.add, 1, 2)
        wait_until(lambda: mesh.status()["tasks"]["queued"] == 1)
        [pool] = rows(shared_programs.run("pool", "list", "--address", address, "--json"))
        assert pool["state"] == "paused"
        assert not future.done()

        assert (
            shared_programs.run("pool", "resume", "steady", "--address", address).stdout == "resumed steady\n"
        )

        assert future.result(20) == 3


def test_an_unknown_pool_is_exit_code_1_and_the_known_ones_are_named(shared_programs, address):
    outcome = shared_programs.run("drain", "nosuch", "--address", address)

    assert outcome.returncode == 1
    assert "there are: steady" in outcome.stderr


def test_a_taken_address_is_exit_code_2(shared_programs, address):
    outcome = shared_programs.run("hub", "--bind", address, "--json")

    assert outcome.returncode == 2
    assert "somebody listens there" in json.loads(outcome.stdout)["error"]["message"]


@pytest.mark.parametrize("verb", ["hub", "up"])
def test_a_terminal_that_closes_ends_programs_as_sigterm_does(shared_programs: Programs, tmp_path, verb):
    program = shared_programs.start(verb, "--bind", f"ipc://{tmp_path}/hub", "--json")
    program.ready()

    program.signal(signal.SIGHUP)

    assert program.wait() == 0
    assert not (tmp_path / "hub").exists()


def test_a_signal_that_was_blocked_by_who_started_a_program_ends_it(shared_programs: Programs):
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        hub = shared_programs.start("hub", "--bind", f"ipc://{shared_programs.folder}/blocked", "--json")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    hub.ready()

    hub.signal(signal.SIGTERM)

    assert hub.wait() == 0


def test_under_nohup_a_terminal_that_closes_is_no_matter(shared_programs: Programs, tmp_path: Path):
    bind = f"ipc://{tmp_path}/hub"
    line = ["nohup", *command("hub", "--bind", bind)]
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as hub:
        wait_until(lambda: shared_programs.run("status", "--address", bind).returncode == 0, 20)

        hub.send_signal(signal.SIGHUP)

        assert shared_programs.run("status", "--address", bind).returncode == 0
        hub.terminate()
        assert hub.wait(END_S) == 0


@pytest.mark.smoke
def test_up_is_hub_and_pool_in_one(shared_programs: Programs):
    (shared_programs.folder / "ours.py").write_text("def answer():\n    return 42\n")
    program = shared_programs.start(
        "up", "ours", "--concurrency", "2", "--bind", "tcp://127.0.0.1:0", "--json"
    )
    found = program.ready()

    outcome = shared_programs.run("submit", "ours:answer", "--address", found["gateway"])

    assert (found["slots"], outcome.returncode, outcome.stdout) == (2, 0, "42\n"), outcome.stderr
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


def test_up_lets_running_tasks_end_and_its_journal_has_the_others(shared_programs: Programs, tmp_path: Path):
    journal, gate = tmp_path / "ran", tmp_path / "gate"
    kept = ("--journal", str(tmp_path / "tasks.journal"), "--grace", "20")
    line = ("up", "--concurrency", "1", "--bind", lasting_address(), "--json", *kept)
    first = shared_programs.start(*line)
    with Mesh(first.ready()["gateway"]) as mesh:
        running = mesh.submit(workload.hold, str(journal), "first", str(gate))
        waiting = mesh.submit(workload.add, 1, 2)
        wait_until(journal.exists, 20)
        mesh.flush()
        first.signal(signal.SIGTERM)
        wait_until(lambda: mesh.status()["pools"][0]["state"] == "draining", 20)
        gate.touch()
        assert running.result(20) == "first"
        assert first.wait() == 0
        second = shared_programs.start(*line)

        assert waiting.result(20) == 3
    second.end()


def test_the_log_is_json_with_times_whatever_tasks_and_loggers_print(shared_programs: Programs):
    (shared_programs.folder / "noisy.py").write_text(
        "import warnings\n"
        "from taskmesh import current_task\n"
        "def noise():\n"
        "    print('printed')\n"
        "    warnings.warn('warned', UserWarning)\n"
        "    current_task().log.warning('logged')\n"
        "    print('no line end', end='')\n"
    )
    up = shared_programs.start("up", "noisy", "--concurrency", "1", "--bind", "tcp://127.0.0.1:0", "--json")
    address = up.ready()["gateway"]
    submitted = shared_programs.run("submit", "noisy:noise", "--address", address)
    assert submitted.returncode == 0
    assert "logged" in submitted.stderr
    up.signal(signal.SIGTERM)
    assert up.wait() == 0

    events = [json.loads(line) for line in (up.text("stdout") + up.errors).splitlines()]
    assert all(datetime.fromisoformat(event["time"]) for event in events)
    told = " ".join(event["text"] for event in events if event["event"] == "output")
    assert all(word in told for word in ("printed", "warned", "no line end"))


def test_programs_tell_people_in_words(shared_programs: Programs):
    program = shared_programs.start("hub", "--bind", f"ipc://{shared_programs.folder}/words")

    wait_until(lambda: " hub ready: gateway ipc://" in program.out.read_text(), 20)
    program.signal(signal.SIGINT)

    assert program.wait() == 0
    assert Path(program.out).read_text().count("\n") == 1
    [(_, ready), *others] = timed_lines(program.text("stdout") + program.errors)
    assert ready.startswith("hub ready: ")
    assert others


def test_fulfil_gives_a_promise_its_value_once(shared_programs, address):
    with Mesh(address) as mesh:
        approval, denied = mesh.promise("approve 42"), mesh.promise("deny")
        first = shared_programs.run("fulfil", "approve 42", '{"by": "ann"}', "--address", address)
        again = shared_programs.run("fulfil", "approve 42", "true", "--address", address, "--json")
        failed = shared_programs.run("fulfil", "deny", "--error", "not today", "--address", address)

        assert (first.returncode, first.stdout) == (0, "approve 42: done\n"), first.stderr
        assert (again.returncode, rows(again)) == (1, {"key": "approve 42", "fulfilled": False})
        assert failed.returncode == 0, failed.stderr
        assert approval.result(END_S) == {"by": "ann"}
        assert str(denied.exception(END_S)) == "not today"
