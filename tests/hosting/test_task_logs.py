"""Lines that tasks log and print are with their caller, before their outcomes."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmesh import Mesh, Retry, TaskFuture
from taskmesh.pool.slots import task_log
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import talkers

WAIT_S = 30
NAME = "tests.talkers"
PLACES = ["thread", "listening", "elsewhere"]
INLINE_TOO = pytest.mark.parametrize("mesh", [*PLACES, "inline"], indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(params=PLACES)
def mesh(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Mesh]:
    if request.param == "elsewhere":
        address = programs.hub()[1]
        programs.worker(address, slots=2)
        opened = Mesh(address)
    elif request.param == "inline":
        opened = Mesh.inline(workers=2)
    else:
        bind = "tcp://127.0.0.1:0" if request.param == "listening" else ""
        opened = Mesh(bind=bind, workers=2) if bind else Mesh(workers=2)
    with opened:
        yield opened


@pytest.fixture
def local() -> Iterator[Mesh]:
    with Mesh(workers=2) as opened:
        yield opened


@INLINE_TOO
def test_a_record_comes_to_the_logger_of_its_name_before_the_result(mesh, caplog):
    for _ in range(20):
        caplog.clear()
        future = mesh.submit(talkers.says, 30, 40)
        future.result(WAIT_S)

        records = [record for record in caplog.records if record.name == NAME]
        assert [(record.levelno, record.getMessage()) for record in records] == [(30, "at 30"), (40, "at 40")]
        record = records[0]
        assert (record.task_id, record.task_attempt) == (future.task_id, 1)
        assert record.task_name == "tests.hosting.talkers.says"
        assert record.worker == future.worker
        assert record.filename == "talkers.py"
        assert abs(record.created - time.time()) < 60
        assert [line.text for line in future.logs()] == ["at 30", "at 40"]


@INLINE_TOO
def test_the_level_is_the_callers(mesh, caplog):
    caplog.set_level(logging.INFO)  # before the function is submitted first

    future = mesh.submit(talkers.says, 10, 20, 30)
    future.result(WAIT_S)

    assert [line.level for line in future.logs()] == [20, 30]
    with caplog.at_level(logging.ERROR, NAME):
        caplog.clear()
        mesh.submit(talkers.says, 20, 30, 40).result(WAIT_S)
        assert [record.levelno for record in caplog.records] == [40]


def test_a_traceback_comes_along(local, caplog):
    local.submit(talkers.with_an_error).result(WAIT_S)

    text = caplog.records[-1].getMessage()
    assert text.startswith("it is no number\nTraceback")
    assert "ValueError: invalid literal" in text


def test_failed_and_killed_tasks_have_told_what_they_had_logged(mesh, caplog):
    failing = mesh.with_options(retries=Retry(1, backoff=0.01)).submit(talkers.fails)
    with pytest.raises(ValueError, match="as said"):
        failing.result(WAIT_S)
    assert [(line.text, line.attempt) for line in failing.logs()] == [
        ("about to fail", 1),
        ("about to fail", 2),
    ]

    dying = mesh.submit(talkers.dies)
    assert dying.exception(WAIT_S) is not None
    assert {line.text for line in dying.logs()} == {"about to die"}


def dropped_lines(caplog: pytest.LogCaptureFixture) -> int:
    cuts = [record.getMessage() for record in caplog.records if record.name == task_log.__name__]
    return sum(int(cut.partition(" ")[0].replace(",", "")) for cut in cuts)


@INLINE_TOO
def test_a_flood_is_cut_and_the_cut_is_counted(mesh, caplog):
    count, other = 20_000, mesh.submit(talkers.says)
    began = time.monotonic()
    future = mesh.submit(talkers.numbers, count)
    assert future.result(WAIT_S) == count
    seconds = time.monotonic() - began
    other.result(WAIT_S)

    lines = [record for record in caplog.records if record.name == NAME]
    dropped = dropped_lines(caplog)
    assert len(lines) + dropped == count
    assert dropped >= count - (seconds + 1) * task_log.LINES_A_SECOND
    assert [record.getMessage() for record in lines] == [
        f"line {number}" for number in sorted(int(record.getMessage().split()[1]) for record in lines)
    ]
    assert len(future.logs()) <= 1_000


def test_large_lines_count_by_their_bytes(local, caplog):
    began = time.monotonic()
    local.submit(talkers.numbers, 200, 10_000).result(WAIT_S)
    seconds = time.monotonic() - began

    sent = sum(len(record.getMessage()) for record in caplog.records if record.name == NAME)
    assert 0 < sent <= (seconds + 1) * task_log.BYTES_A_SECOND
    assert sent >= 200 * 10_000 or any("were dropped" in record.getMessage() for record in caplog.records)


def test_prints_come_with_a_prefix_when_asked(mesh, capfd):
    future = mesh.with_options(stream_logs=True).submit(talkers.prints, 3)
    future.result(WAIT_S)

    out, err = capfd.readouterr()
    prefix = f"(tests.hosting.talkers.prints {future.task_id[:8]} {future.worker})"
    assert out.splitlines() == [f"{prefix} out {number}" for number in range(3)] + [f"{prefix} unended"]
    assert err.splitlines() == [f"{prefix} err {number}" for number in range(3)]
    assert [line.text for line in future.logs() if line.logger == "stderr"] == ["err 0", "err 1", "err 2"]


def printed(future: TaskFuture[Any]) -> list[tuple[str, str]]:
    return [(line.logger, line.text) for line in future.logs() if line.logger in ("stdout", "stderr")]


def test_what_c_code_and_children_print_comes_too(mesh, capfd):
    for _ in range(20):
        talking = mesh.with_options(stream_logs=True).submit(talkers.prints_by_all_ways)
        others = [mesh.submit(talkers.prints, 1) for _ in range(10)]
        talking.result(WAIT_S)

        assert sorted(printed(talking)) == [
            ("stderr", "its error"),
            ("stdout", "by C, without a line's end"),
            ("stdout", "by Python"),
            ("stdout", "by a child"),
            ("stdout", "by a descriptor"),
        ]
        for other in others:
            other.result(WAIT_S)
            assert other.logs() == []


def test_each_of_many_has_its_own_prints(mesh):
    count = 300
    futures = [mesh.with_options(stream_logs=True).submit(talkers.prints, 1 + i % 3) for i in range(count)]
    for i, future in enumerate(futures):
        future.result(WAIT_S)
        texts = [("stdout", f"out {n}") for n in range(1 + i % 3)] + [("stdout", "unended")]
        assert [line for line in printed(future) if line[0] == "stdout"] == texts


def test_a_flood_of_prints_is_cut_and_the_task_does_not_wait(mesh, caplog, capfd):
    count = 300_000
    began = time.monotonic()
    future = mesh.with_options(stream_logs=True).submit(talkers.floods, count)
    assert future.result(WAIT_S) == count
    seconds = time.monotonic() - began

    lines, dropped = capfd.readouterr().out.splitlines(), dropped_lines(caplog)
    assert len(lines) + dropped == count
    assert dropped >= count - (seconds + 1) * task_log.LINES_A_SECOND


def test_the_last_words_of_a_killed_task_come(mesh):
    future = mesh.with_options(stream_logs=True, retries=0).submit(talkers.prints_and_dies)

    assert future.exception(WAIT_S) is not None
    assert ("stderr", "last words") in printed(future)


def test_prints_stay_with_the_worker_else(local):
    future = local.submit(talkers.prints, 1)
    future.result(WAIT_S)

    assert future.logs() == []


def test_threads_of_a_task_log_for_it_and_its_forked_children_to_stderr(local, caplog, capfd):
    future = local.submit(talkers.in_a_thread)
    future.result(WAIT_S)
    assert [line.text for line in future.logs()] == ["from a thread"]

    assert local.submit(talkers.forks).result(WAIT_S) == 0
    assert "from a child" not in caplog.text
    wait_until(lambda: "from a child" in capfd.readouterr().err)


@pytest.mark.parametrize("detached", [False, True])
def test_lines_of_nested_tasks_come_through_their_parent_and_no_other(detached):
    with Mesh(workers=1) as mesh:
        for _ in range(20):
            parent, next_one = mesh.submit(talkers.parent, detached), mesh.submit(talkers.says, 30)
            parent.result(WAIT_S)
            next_one.result(WAIT_S)
            texts = {line.text for line in parent.logs()}
            assert texts >= {"child 2"} if detached else texts == {"child 1", "child 2"}
            assert [line.text for line in next_one.logs()] == ["at 30"]


def test_odd_records_hurt_nobody(local, caplog, capfd):
    future = local.submit(talkers.odd)
    future.result(WAIT_S)

    texts = [line.text for line in future.logs()]
    assert texts[0] == "a lone surrogate: \\ud800"
    assert texts[1].endswith("(83,616 characters more)")
    wait_until(lambda: "TypeError" in capfd.readouterr().err)  # as logging says it of every program


def test_a_handler_that_blocks_holds_up_nobody_but_who_asks_for_that_task(local):
    blocked, free = threading.Event(), threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            blocked.set()
            free.wait(WAIT_S)

    logger, handler = logging.getLogger(NAME), Blocking()
    logger.addHandler(handler)
    try:
        talking = local.submit(talkers.says, 40)
        assert blocked.wait(WAIT_S)
        assert list(local.map(talkers.says, range(0), timeout=WAIT_S)) == []
        assert all(local.submit(talkers.says).result(WAIT_S) for _ in range(50))
        wait_until(talking.done)
    finally:
        free.set()
        logger.removeHandler(handler)
    talking.result(WAIT_S)


def test_lines_of_a_running_task_can_be_followed_from_elsewhere(programs: Programs, tmp_path: Path):
    address = programs.hub()[1]
    programs.worker(address)
    end = tmp_path / "end"
    os.mkfifo(end)
    with Mesh(address) as mesh:
        future = mesh.submit(talkers.says_until, str(end))
        wait_until(lambda: future.logs() != [])
        following = programs.start("logs", future.task_id, "--follow", "--address", address)
        wait_until(lambda: "I wait" in following.text())
        end.write_text("now")
        future.result(WAIT_S)
        assert following.wait() == 0
        assert following.text().splitlines()[-1].endswith("I end")
        assert f"{future.worker} warning {NAME}: I wait" in following.text()
