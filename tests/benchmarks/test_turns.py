"""Turns on real processes, of small sizes: answers are checked, faults counted, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import machine, rows, workloads
from benchmarks.contender import Contender, load
from benchmarks.processpool import ProcessPool
from benchmarks.raw import Raw
from benchmarks.relay import ListeningRelay, Relay
from benchmarks.rows import Scale, WrongAnswer, check
from taskmesh.config import HubConfig
from taskmesh.hub.journal.journal import journal_store
from tests.harness.requirement import require
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
numpy = pytest.importorskip("numpy")


@pytest.mark.leaks("pyzmq keeps a thread of its own once a frame was sent uncopied")
@pytest.mark.parametrize("name", ["raw", "processpool"])
def test_contender_gives_results_in_order_by_every_way_of_running(name: str) -> None:
    contender: Contender = load(name)()
    numbers = list(range(1_000))
    contender.open(2)
    try:
        assert contender.run_each(workloads.noop, numbers) == numbers
        assert contender.run_chunked(workloads.noop, numbers, 100) == numbers
        assert contender.round_trip(workloads.noop, "one") == "one"
        assert contender.run_until(workloads.noop, numbers, 10.0) == numbers
        payloads = [numpy.full(100_000, number) for number in range(4)]
        check(contender.run_each(workloads.echo, payloads), payloads, numpy.array_equal)
    finally:
        contender.close()


@pytest.mark.parametrize("shape", [Relay, ListeningRelay])
def test_relay_hands_tasks_to_a_slot_and_results_back(shape: type[Relay]) -> None:
    relay = shape()
    relay.open(1)
    try:
        assert relay.run_each(workloads.noop, ["one", "two"]) == ["one", "two"]
    finally:
        relay.close()


def test_a_mesh_that_listens_is_measured_with_a_worker_that_dials_it() -> None:
    contender: Any = load("taskmesh-listening")()
    contender.open(2)
    try:
        assert contender.run_each(workloads.noop, list(range(100))) == list(range(100))
        assert contender.address
    finally:
        contender.close()


@pytest.mark.parametrize("name", ["taskmesh-file", "taskmesh-redis"])
def test_tasks_of_a_mesh_with_a_journal_are_durable(name: str) -> None:
    found = load(name)
    require(not found.missing(), found.missing())
    contender: Any = found()
    contender.open(2)
    try:
        assert contender.run_each(workloads.noop, list(range(100))) == list(range(100))
        store = journal_store(HubConfig(journal=contender.hub_options[1]))
        assert cast(int, store.status()["number"]) > 0
        store.close()
    finally:
        contender.close()


def test_caller_computes_until_the_last_future_is_done() -> None:
    pool, calls = ProcessPool(), []
    pool.open(2)
    try:
        results = pool.run_beside(workloads.nap, [0.02] * 4, lambda: calls.append(1))
    finally:
        pool.close()

    assert results == [0.02] * 4
    assert len(calls) > 1


def test_answers_that_differ_are_refused_with_their_place() -> None:
    with pytest.raises(WrongAnswer, match=r"task 1 gave 7, not 2"):
        check([1, 7], [1, 2])
    with pytest.raises(WrongAnswer, match=r"1 results for 2 tasks"):
        check([1], [1, 2])


@pytest.mark.fault
def test_fault_row_counts_what_a_broken_process_pool_loses() -> None:
    found = rows.measure("processpool", ProcessPool(), "fault", Scale(2, quick=True))

    assert found.detail["errors"] == {"BrokenProcessPool": found.figures["lost"]}
    assert 1_400 < found.figures["lost"] < 1_510  # what was not finished when 500 had begun
    assert found.figures["repeated"] == 0
    assert "fault" not in found.figures  # a time is only given when all results came


@pytest.mark.fault
def test_fault_row_counts_what_a_killed_raw_worker_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.raw.STALL_S", 0.5)

    found = rows.measure("raw", Raw(), "fault", Scale(2))

    assert 500 < found.figures["lost"] < 1_000  # all that was queued for one of two workers
    assert found.detail["executions"] >= 2_000 - found.figures["lost"]


def test_execution_log_tells_tasks_that_ran_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    for number in (0, 1, 1):
        workloads.logged_nap(workloads.LoggedNap(number, 0.0, str(log)))

    assert workloads.read_log(str(log)) == [(0, os.getpid()), (1, os.getpid()), (1, os.getpid())]


def test_start_row_gives_time_and_memory_of_a_fresh_interpreter() -> None:
    found = rows.start("processpool", Scale(2, quick=True))

    assert 0 < found.figures["start"] < found.window.seconds
    if machine.LINUX:
        assert found.figures["idle"] > 1


def run(*arguments: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks", "--out", str(out), "--repeats", "1", "--quick", *arguments]
    if machine.LINUX:  # a shell's background job ignores SIGINT, and so would all that it starts
        command = ["env", "--default-signal", *command]
    pipe: Any = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def test_program_writes_json_tables_and_picture(tmp_path: Path) -> None:
    with run("--rows", "noop", "--contenders", "raw,processpool", out=tmp_path) as program:
        said, _ = program.communicate(timeout=50)

    assert program.returncode == 0, said
    assert "| what | raw pyzmq | ProcessPoolExecutor |" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partial.json", "partial.md", "partial.png"]


def test_program_when_a_contender_is_unknown_names_the_known_ones(tmp_path: Path) -> None:
    with run("--contenders", "raw,dusk", out=tmp_path) as program:
        said, _ = program.communicate(timeout=20)

    assert program.returncode == 2
    assert "dusk: choose from raw," in said


HALF_DEAD = """
import ctypes, os, subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
threading.Thread(target=time.sleep, args=(60,)).start()
print(child.pid, flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not machine.LINUX, reason="processes are counted in /proc")
def test_children_of_a_process_that_is_going_down_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", HALF_DEAD], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        try:
            wait_until(lambda: machine.stat_fields(program.pid)[0] == "Z", 10, "the end of its first thread")
            living, all_of_them = machine.descendants(), machine.descendants(dead=True)
        finally:
            os.kill(child, signal.SIGKILL)
            program.kill()

    assert (child in living, program.pid in living) == (True, False)
    assert {child, program.pid} <= set(all_of_them)


@pytest.mark.skipif(not machine.LINUX, reason="processes are counted in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_program_when_stopped_ends_all_it_started(how: signal.Signals, tmp_path: Path) -> None:
    with run("--rows", "fault", "--contenders", "raw", out=tmp_path) as program:
        wait_until(lambda: len(machine.descendants(program.pid)) == 3, 20, "a turn and its two workers")
        started = machine.descendants(program.pid)
        program.send_signal(how)
        program.communicate(timeout=20)

    assert program.returncode == {signal.SIGINT: 1, signal.SIGTERM: 143}[how]
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
