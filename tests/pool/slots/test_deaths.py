"""Deaths of slots, fork server and supervisor: nothing that was sent is lost, and nothing is left behind."""

import os
import select
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.pool.slots.fork_server_client import ForkServerClient, SlotSettings
from tests.harness.gate import wait_at
from tests.harness.waiting import wait_until
from tests.pool.slots import tasks
from tests.pool.slots.driver import Driver


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def server_of(driver: Driver) -> int:
    """The fork server's process id."""
    return psutil.Process(next(iter(driver.host.pids().values()))).ppid()


@pytest.mark.parametrize(
    ("function", "args", "status", "log"),
    [
        (tasks.exit_at_once, (0,), 0, ""),
        (tasks.exit_at_once, (7,), 7, ""),
        (tasks.segfault, (), -signal.SIGSEGV, "Segmentation fault"),
        (tasks.abort, (), -signal.SIGABRT, "Aborted"),
        (tasks.kill_self, (signal.SIGKILL,), -signal.SIGKILL, ""),
        (tasks.kill_self, (signal.SIGTERM,), -signal.SIGTERM, ""),
    ],
)
def test_death_by_a_task_is_told_with_its_status(driver, function, args, status, log):
    driver.start(0, 1)
    before = driver.call(0, tasks.add, (1, 1), (2, 2))
    deadly = driver.call(0, function, args)
    behind = driver.call(0, tasks.nothing, (), (), ())

    exited = driver.exit_of(0)

    assert (exited.status, exited.unstarted, exited.oom, exited.ready) == (status, len(behind), False, True)
    assert log in exited.log
    assert driver.finished(0, before)
    assert not driver.finished(0, deadly)
    assert driver.result(1, driver.call(1, tasks.add, (1, 1))[0]) == 2


def test_everything_sent_before_a_kill_arrives(driver, gates):
    gate = gates()
    driver.start(0)
    quick = driver.call(0, tasks.add, *[(i, i) for i in range(2000)])
    blocked = driver.call(0, wait_at, (gate.path,))
    behind = driver.call(0, tasks.nothing, *[()] * 17)
    wait_until(gate.reached)  # without the loop: all results wait in the socket and the outbox

    driver.host.kill(0)

    exited = driver.exit_of(0)
    assert driver.finished(0, quick)
    assert not driver.finished(0, blocked[:1])
    assert (exited.unstarted, exited.status) == (len(behind), -signal.SIGKILL)


@pytest.mark.parametrize("seed", range(5))
def test_kills_at_random_times_count_tickets_exactly(driver, seed):
    driver.start(0)
    driver.decode = False
    serials = driver.call(0, tasks.nothing, *[()] * 5000)
    driver.run_until(lambda: len(driver.values[0]) > 900 * seed)

    os.kill(driver.host.pids()[0], signal.SIGKILL)

    exited = driver.exit_of(0)
    finished, unstarted = len(driver.values[0]), exited.unstarted
    assert sorted(driver.values[0]) == serials[:finished]
    assert finished + unstarted in {len(serials), len(serials) - 1}


def test_kill_before_the_slot_is_up(driver):
    driver.host.start(0)
    driver.call(0, tasks.nothing, (), ())
    driver.host.kill(0)

    exited = driver.exit_of(0)
    assert exited.status == -signal.SIGKILL
    # the order may reach the fork server so late that the slot is up and has taken its first ticket
    assert len(driver.values[0]) + exited.unstarted in {1, 2}


# --- children of tasks ---


@pytest.mark.parametrize("leave", [tasks.leave_child, tasks.leave_child_behind_hooks])
def test_child_that_keeps_every_descriptor_hides_no_death(driver, tmp_path, leave):
    path = tmp_path / "child"
    driver.start(0)
    child = driver.result(0, driver.call(0, leave, (str(path),))[0])
    assert is_alive(child)
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2

    driver.host.stop(0)

    assert driver.exit_of(0).status == 0
    wait_until(lambda: not is_alive(child), 2)


def test_death_with_a_child_left_counts_tickets(driver, tmp_path):
    path = tmp_path / "child"
    driver.start(0)
    driver.call(0, tasks.leave_child_and_die, (str(path),))
    behind = driver.call(0, tasks.nothing, (), ())

    exited = driver.exit_of(0)

    assert (exited.unstarted, exited.status) == (len(behind), -signal.SIGKILL)
    wait_until(lambda: not is_alive(int(path.read_text())), 2)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_processes_in_sessions_of_their_own_end_with_the_slot(driver, tmp_path, how):
    driver.start(0, 1)
    left = driver.result(0, driver.call(0, tasks.leave_sessions, (str(tmp_path / "left"),))[0])
    assert all(map(is_alive, left))

    getattr(driver.host, how)(0)

    wait_until(lambda: not any(map(is_alive, left)), 5)
    assert driver.result(1, driver.call(1, tasks.add, (1, 1))[0]) == 2, "another slot goes on"


def test_processes_in_sessions_of_their_own_end_with_the_pool(driver, tmp_path):
    driver.start(0)
    left = driver.result(0, driver.call(0, tasks.leave_sessions, (str(tmp_path / "left"),))[0])

    driver.close(timeout=5)

    assert not any(map(is_alive, left))


def test_child_that_returns_from_the_task_is_no_slot(driver):
    driver.start(0)

    serials = driver.call(0, tasks.fork_and_return_twice, *[()] * 3)
    others = driver.call(0, tasks.add, *[(i, i) for i in range(200)])
    driver.run_until(lambda: driver.finished(0, serials + others))

    assert all(driver.values[0][serial] > 0 for serial in serials)
    assert [driver.values[0][serial] for serial in others] == [2 * i for i in range(200)]


def test_child_that_raises_out_of_the_task_is_no_slot(driver):
    driver.start(0)

    serials = driver.call(0, tasks.fork_and_fail_twice, *[()] * 3)
    others = driver.call(0, tasks.add, *[(i, i) for i in range(200)])
    driver.run_until(lambda: driver.finished(0, serials + others))

    assert [driver.failures[0][serial].text for serial in serials] == ["in both"] * 3
    assert not driver.of(SlotExited)


# --- what tasks do to their process ---


@pytest.mark.parametrize(
    "function", [tasks.replace_handlers, tasks.leave_thread, tasks.leave_stubborn_thread]
)
def test_slot_goes_on_and_stops_whatever_a_task_leaves_in_it(driver, function):
    driver.start(0)
    driver.call(0, function)

    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2
    driver.host.stop(0)

    assert driver.exit_of(0).status == 0


# --- fork server ---


def test_death_of_the_fork_server_ends_its_slots_and_a_new_one_takes_over(driver, gates, tmp_path):
    gate = gates()
    driver.start(0, 1)
    pids = driver.host.pids()
    child = driver.result(0, driver.call(0, tasks.leave_child_behind_hooks, (str(tmp_path / "c"),))[0])
    quick = driver.call(0, tasks.add, (1, 1), (2, 2))
    driver.call(0, wait_at, (gate.path,))
    behind = driver.call(0, tasks.nothing, *[()] * 5)
    wait_until(gate.reached)

    os.kill(server_of(driver), signal.SIGKILL)

    driver.run_until(lambda: len(driver.of(SlotExited)) == 2)
    assert {event.slot: event.unstarted for event in driver.of(SlotExited)} == {0: len(behind), 1: 0}
    assert driver.finished(0, quick)
    wait_until(lambda: not any(is_alive(pid) for pid in [*pids.values(), child]), 2)

    driver.values.clear()
    driver.start(0)
    assert driver.result(0, driver.call(0, tasks.add, (3, 4))[0]) == 7


def test_fork_server_that_cannot_start_is_reported_and_not_tried_in_a_spin(processes, capfd):
    with Driver(SlotSettings("test", sys_path=["/nowhere"])) as driver:
        driver.host.start(0)
        exited = driver.exit_of(0)
        assert not exited.ready
        assert "fork server" in exited.log

        driver.host.start(0)
        driver.run_until(lambda: len(driver.of(SlotExited, 0)) == 2)
        assert not driver.of(SlotExited, 0)[1].ready
    assert capfd.readouterr().err.count("ModuleNotFoundError") <= 2


def test_missing_interpreter_is_reported(processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Driver() as driver:
        driver.host.start(0)

        exited = driver.exit_of(0)
        assert not exited.ready
        assert "could not be started" in exited.log


# --- the supervisor's process ---

_SUPERVISOR = """
    import os, signal, sys
    sys.path[:] = {path!r}
    from tests.pool.slots.driver import Driver
    from tests.pool.slots import tasks
    driver = Driver()
    driver.start(0, 1)
    child = driver.result(0, driver.call(0, tasks.leave_child_behind_hooks, ({child!r},))[0])
    driver.call(1, tasks.spin)
    heir = os.fork() if {fork} else 0
    if {fork} and heir == 0:
        signal.pause()
    print(*driver.host.pids().values(), child, heir, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("how", "fork"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False), (None, False)]
)
def test_nothing_outlives_the_supervisor(processes, tmp_path, how, fork):
    code = textwrap.dedent(_SUPERVISOR).format(path=sys.path, child=str(tmp_path / "child"), fork=fork)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        *pids, heir = [int(word) for word in program.stdout.readline().split()]
        pids.append(psutil.Process(pids[0]).ppid())
        assert all(is_alive(pid) for pid in pids)
        if how is None:
            program.stdin.close()  # it ends without closing its host
        else:
            program.send_signal(how)
        program.wait()

        wait_until(lambda: not any(is_alive(pid) for pid in pids), 2)
        if heir:  # it keeps every descriptor of its parent open
            os.kill(heir, signal.SIGKILL)


def test_nothing_outlives_a_supervisor_that_dies_with_news_unread(processes, tmp_path, capfd):
    code = textwrap.dedent(_SUPERVISOR).format(path=sys.path, child=str(tmp_path / "child"), fork=False)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        *pids, _ = [int(word) for word in program.stdout.readline().split()]
        pids.append(psutil.Process(pids[0]).ppid())
        program.send_signal(signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pids[1]), 5, "the fork server has told this death")
        program.kill()
        program.wait()

        wait_until(lambda: not any(is_alive(pid) for pid in pids), 2)
    assert capfd.readouterr().err == ""


def test_fork_server_ends_as_always_when_its_socket_is_closed_with_news_unread(processes, capfd):
    link = ForkServerClient(SlotSettings("test"))
    wait_until(lambda: select.select([link.sock], [], [], 0)[0], 10, "it has said that it is up")

    link.sock.close()  # the end of a supervisor's process, as far as the fork server can see it at first

    wait_until(lambda: not is_alive(link.pid))
    assert link.end() == 0
    link.close()
    assert capfd.readouterr().err == ""


_CLEAN = """
    import sys
    sys.path[:] = {path!r}
    from tests.pool.slots.driver import Driver
    from tests.pool.slots import tasks
    with Driver(tee=True) as driver:
        driver.start(0, 1)
        assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2
        driver.close({timeout})
"""


@pytest.mark.parametrize("timeout", [0, 5])
def test_clean_end_says_nothing(processes, timeout):
    code = textwrap.dedent(_CLEAN).format(path=sys.path, timeout=timeout)

    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_HASH = """
    import sys
    sys.path[:] = {path!r}
    from tests.pool.slots.driver import Driver
    with Driver() as driver:
        driver.start(0)
        print(driver.result(0, driver.call(0, hash, ("text",))[0]))
"""


@pytest.mark.usefixtures("processes")
def test_text_hashes_alike_in_all_slots_whatever_their_program_was_told():
    """Spark's and other jobs bucket and sample by hash(), in several pools."""
    code = textwrap.dedent(_HASH).format(path=sys.path)
    told = {
        subprocess.run(
            [sys.executable, *options, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for options, seed in (((), "random"), ((), "7"), (["-E"], "7"), (["-I"], "7"))
    }

    assert len(told) == 1
    alone = [sys.executable, "-c", "print(hash('text'))"]
    assert {subprocess.check_output(alone, env={"PYTHONHASHSEED": "0"}, text=True)} == told


def test_events_of_restarted_slots_are_their_own(driver):
    for _ in range(5):
        driver.values.clear()
        driver.start(0)
        serial = driver.call(0, tasks.add, (1, 1))[0]
        assert driver.result(0, serial) == 2
        exits = len(driver.of(SlotExited))
        driver.host.kill(0)
        driver.run_until(lambda exits=exits: len(driver.of(SlotExited)) > exits)
    assert len({event.pid for event in driver.of(SlotReady)}) == 5
