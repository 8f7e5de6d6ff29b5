"""SlotSupervisor: starting, running, stopping, and what a slot's process is like."""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import numpy
import pytest

from taskmesh.core.events import SlotExited, SlotFinished, SlotReady, SlotReported
from taskmesh.core.ids import task_id, text_of
from taskmesh.errors import LocalProtocolError
from taskmesh.messages.runs import CHUNK
from taskmesh.messages.slot_messages import SlotTasks
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.channel import pack
from taskmesh.pool.slots.fork_server_client import SlotSettings
from taskmesh.pool.slots.slot_handle import SlotHandle, SlotProcess
from taskmesh.serialize import payload
from tests.harness import nasty
from tests.harness.gate import wait_at
from tests.harness.memory_files import memory_files
from tests.harness.waiting import wait_until
from tests.messages.samples import items_of
from tests.pool.slots import coroutines, tasks
from tests.pool.slots.driver import CLIENT, Driver


def test_results_come_back_in_order(driver):
    driver.start(0)

    serials = driver.call(0, tasks.add, *[(i, i) for i in range(1000)])

    driver.run_until(lambda: driver.finished(0, serials))
    assert driver.values[0] == {serial: 2 * serial for serial in serials}


def test_results_of_a_batch_come_as_few_segments(driver):
    driver.start(0)

    serials = driver.call(0, tasks.nothing, *[()] * 1000)

    driver.run_until(lambda: driver.finished(0, serials))
    finished = driver.of(SlotFinished)
    assert len(finished) < 100
    assert sum(len(segment.payloads) for event in finished for segment in event.results.done) == 1000
    assert all(segment.elapsed > 0 for event in finished for segment in event.results.done)


def test_segments_break_where_the_function_changes(driver):
    driver.start(0)
    one = driver.run_of(driver.spec(tasks.nothing), [payload.dumps_call((), {}, where="")] * 3)
    two = driver.run_of(driver.spec(tasks.pid), [payload.dumps_call((), {}, where="")] * 2)

    serials = driver.give(0, [one, two])

    driver.run_until(lambda: driver.finished(0, serials))
    segments = [segment for event in driver.of(SlotFinished) for segment in event.results.done]
    runs = [{serial // 3 for serial in range(s.first, s.first + len(s.payloads))} for s in segments]
    assert all(len(run) == 1 for run in runs)
    assert runs[-1] == {1}


def test_tasks_may_be_handed_over_before_the_slot_is_ready(driver):
    driver.host.start(7)

    [serial] = driver.call(7, tasks.add, (1, 2))

    assert driver.result(7, serial) == 3
    assert [type(event) for event in driver.events[:2]] == [SlotReady, SlotFinished]


def test_slots_run_side_by_side_in_processes_of_their_own(driver):
    driver.start(0, 1, 2)

    pids = {slot: driver.result(slot, driver.call(slot, tasks.pid)[0]) for slot in (0, 1, 2)}

    assert pids == driver.host.pids()
    assert len(set(pids.values())) == 3
    assert {event.slot: event.pid for event in driver.of(SlotReady)} == pids


def test_slot_is_a_clean_process(driver, monkeypatch, tmp_path):
    driver.start(0)

    around = driver.result(0, driver.call(0, tasks.surroundings)[0])

    assert around["session"] != os.getsid(0)
    assert around["session"] == around["parent"]
    assert around["group"] == around["pid"]
    assert around["cwd"] == os.getcwd()
    assert around["path"] == sys.path
    assert around["stdin"] == "/dev/null"
    assert around["handlers"] == {number: str(signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGCHLD)}
    assert around["threads"] == 1
    assert around["gc"]
    assert {name for name in around["main"] if not name.startswith("__")} == set()


def test_slot_never_loads_zmq(driver):
    driver.start(0)

    loaded = driver.result(0, driver.call(0, tasks.modules)[0])

    assert "taskmesh.messages.mesh_messages" in loaded
    assert not [name for name in loaded if name.split(".")[0] in {"zmq", "asyncio", "numpy", "typer", "rich"}]


def test_slot_loads_no_calendar_for_schedules(driver):
    driver.start(0)

    assert driver.result(0, driver.call(0, tasks.calendar_of_schedules)[0]) is False


def test_slot_keeps_no_descriptor_of_other_slots(driver):
    driver.start(0)
    alone = driver.result(0, driver.call(0, tasks.descriptors)[0])
    driver.start(1, 2, 3)

    among_others = driver.result(3, driver.call(3, tasks.descriptors)[0])

    assert len(among_others) == len(alone)


def test_current_task_knows_itself(driver):
    driver.start(0)

    serials = driver.call(0, tasks.about_me, (), (), name="me", queue="fast")

    driver.run_until(lambda: driver.finished(0, serials))
    assert [driver.values[0][serial] for serial in serials] == [
        (text_of(task_id(CLIENT, seq)), "me", 1, "fast", False) for seq in (0, 1)
    ]


def test_each_slot_s_number_is_known_to_its_tasks_and_to_their_environment(driver):
    """A GPU can be chosen by it."""
    driver.start(0, 2)

    assert [driver.result(slot, driver.call(slot, tasks.my_slot)[0]) for slot in (0, 2)] == [
        (0, "0"),
        (2, "2"),
    ]


def test_progress_is_reported_while_the_task_runs(driver):
    driver.start(0)

    driver.result(0, driver.call(0, tasks.tell_progress, (1000,))[0])

    reports = [event.news for event in driver.of(SlotReported)]
    assert (reports[0].done, reports[-1].done, reports[-1].total) == (1, 1000, 1000)
    assert len(reports) < 100


def test_the_last_progress_of_a_task_comes_before_its_outcome(driver):
    """B2: (8, 10) was the last that was known of a task that had told 10 of 10."""
    driver.start(0)

    driver.result(0, driver.call(0, tasks.tell_progress, (9, 0))[0])

    told = [event.news.done for event in driver.of(SlotReported)]
    assert told[-1] == 9
    assert type(told[-1]) is int


def test_coroutine_function_runs_to_its_end(driver):
    driver.start(0)

    assert driver.result(0, driver.call(0, coroutines.coroutine, (1,))[0]) == 2


def test_coroutines_of_a_slot_share_a_loop_and_what_belongs_to_it(driver):
    driver.start(0)
    serials = driver.call(0, coroutines.use_what_is_kept, (), ())
    driver.run_until(lambda: driver.finished(0, serials))
    first = driver.values[0][serials[0]]

    assert driver.failure(0, driver.call(0, coroutines.endless, timeout=0.1)[0]).kind == "timeout"
    assert driver.result(0, driver.call(0, coroutines.use_what_is_kept)[0]) == first
    assert driver.values[0][serials[1]] == first


def test_function_by_value(driver):
    driver.start(0)
    offset = 40

    assert driver.result(0, driver.call(0, lambda x: x + offset, (2,))[0]) == 42


def test_function_that_is_forgotten_is_gone_and_may_come_again(driver):
    driver.start(0)
    mine = nasty.Counted()

    def by_value():
        return mine is not None

    assert driver.result(0, driver.call(0, by_value)[0])
    assert driver.result(0, driver.call(0, tasks.count_counted)[0]) == 1

    driver.forget(0, by_value)
    assert driver.result(0, driver.call(0, tasks.count_counted)[0]) == 0
    assert driver.result(0, driver.call(0, by_value)[0])
    assert driver.result(0, driver.call(0, tasks.count_counted)[0]) == 1


def test_function_that_says_it_is_false(driver):
    driver.start(0)
    serials = driver.call(0, nasty.Falsy(), (1,), (2,)) + driver.call(0, nasty.Falsy(), (3,))

    driver.run_until(lambda: driver.finished(0, serials))
    assert [driver.values[0][serial] for serial in serials] == [1, 2, 3]


def test_chunk_keeps_the_values_around_a_failure(driver):
    driver.start(0)
    data = payload.dumps_chunk([(1, 2), (3, "x"), (5, 6)])

    [serial] = driver.give(0, [driver.run_of(driver.spec(tasks.add, kind=CHUNK), [data])])
    driver.decode = False

    result = items_of(driver.result(0, serial))
    assert [result[0], result[2]] == [(True, 3), (True, 11)]
    ok, failure = result[1]
    assert (ok, failure.kind, failure.type_name) == (False, "exception", "TypeError")


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_large_values_travel_beside_the_socket(driver, size):
    driver.start(0)
    value = os.urandom(size)
    array = numpy.arange(size // 8)

    serials = driver.call(0, tasks.echo, (value,), (array,), ({"small": 1, "large": array},))

    driver.run_until(lambda: driver.finished(0, serials))
    values = driver.values[0]
    assert values[serials[0]] == value
    assert (values[serials[1]] == array).all()
    assert values[serials[1]].flags.writeable
    assert (values[serials[2]]["large"] == array).all()


def test_arguments_are_gone_when_the_next_ones_come(driver):
    driver.start(0)

    serials = driver.call(0, tasks.among, *[(tasks.Counted(),) for _ in range(3)])

    driver.run_until(lambda: driver.finished(0, serials))
    assert [driver.values[0][serial] for serial in serials] == [1, 1, 1]


def test_more_large_values_than_a_message_takes_descriptors(driver):
    driver.start(0)
    value = b"x" * 70_000
    count = 300

    serials = driver.call(0, tasks.echo, *[(value + str(i).encode(),) for i in range(count)])

    driver.run_until(lambda: driver.finished(0, serials))
    assert [len(driver.values[0][serial]) for serial in (serials[0], serials[-1])] == [70_001, 70_003]


def test_large_results_leave_no_descriptor_behind(driver):
    driver.start(0)
    before = driver.result(0, driver.call(0, tasks.descriptors)[0])

    for _ in range(10):
        serials = driver.call(0, tasks.echo, *[(b"x" * 200_000,)] * 5)
        driver.run_until(lambda serials=serials: driver.finished(0, serials))

    after = driver.result(0, driver.call(0, tasks.descriptors)[0])
    assert len(after) <= len(before) + 16  # files that the slot keeps for later results


def test_a_slot_that_does_not_read_blocks_nobody(driver, gates):
    gate = gates()
    driver.start(0, 1)
    blocker = driver.call(0, wait_at, (gate.path,))
    driver.run_until(gate.reached)
    load = [(b"x" * 50_000,)] * 20

    began = time.monotonic()
    heavy = [serial for _ in range(20) for serial in driver.call(0, tasks.echo, *load)]
    handed = time.monotonic() - began

    assert driver.result(1, driver.call(1, tasks.add, (1, 1))[0]) == 2
    assert handed < 5
    gate.open()
    driver.run_until(lambda: driver.finished(0, blocker + heavy))


def test_more_tasks_than_the_ticket_pipe_holds(driver):
    driver.start(0)
    driver.decode = False

    serials = [serial for _ in range(10) for serial in driver.call(0, tasks.nothing, *[()] * 10_000)]

    driver.run_until(lambda: driver.finished(0, serials), timeout=40)
    assert not driver.failures[0]


def test_stop_lets_the_slot_finish(driver):
    driver.start(0)
    serials = driver.call(0, tasks.nothing, *[()] * 100)

    driver.host.stop(0)

    exited = driver.exit_of(0)
    assert driver.finished(0, serials)
    assert exited == SlotExited(0, unstarted=0, status=0, oom=False, ready=True, log="")
    assert driver.host.pids() == {}


def test_slot_can_be_started_again(driver):
    driver.start(0)
    first = driver.host.pids()[0]
    driver.host.kill(0)
    driver.exit_of(0)

    driver.values.clear()
    driver.start(0)

    assert driver.result(0, driver.call(0, tasks.pid)[0]) != first


def test_misuse_is_refused(driver):
    driver.start(0)

    with pytest.raises(LocalProtocolError, match="started already"):
        driver.host.start(0)
    with pytest.raises(LocalProtocolError, match="not there"):
        driver.host.hand_over(5, SlotTasks(0, 0, [], []))


def test_tasks_for_a_slot_whose_exit_waits_for_delivery_are_unstarted(driver, gates):
    gate = gates()
    driver.start(0, 1)
    driver.call(1, wait_at, (gate.path,))
    driver.run_until(gate.reached)
    pids = driver.host.pids()
    on_event = driver.host._on_event

    def give_to_the_other(event):
        if isinstance(event, SlotExited) and event.slot == 0:
            driver.call(1, tasks.nothing, *[()] * 5)
        on_event(event)

    driver.host._on_event = give_to_the_other
    for slot in (0, 1):  # in this order: their exits are told in it, and read at once
        os.kill(pids[slot], signal.SIGKILL)
        wait_until(lambda pid=pids[slot]: not Path(f"/proc/{pid}").exists())

    assert driver.exit_of(1).unstarted == 5


def test_tasks_for_a_slot_whose_exit_was_delivered_and_is_not_handled_yet_are_unstarted(driver, gates):
    gate = gates()
    driver.start(0)
    driver.call(0, wait_at, (gate.path,))
    driver.run_until(gate.reached)
    driver.host.kill(0)
    driver.run_until(lambda: driver.of(SlotExited))

    driver.call(0, tasks.nothing, *[()] * 5)

    assert driver.of(SlotExited)[0].unstarted == 5


def test_modules_are_loaded_before_the_slot_is_ready(processes):
    with Driver(SlotSettings("test", preload=["colorsys"])) as driver:
        driver.start(0)

        assert "colorsys" in driver.result(0, driver.call(0, tasks.modules)[0])


@pytest.mark.usefixtures("processes")
def test_an_idle_slot_keeps_no_files():
    with Driver(SlotSettings("test", preload=["tests.pool.slots.soon_idle"])) as driver:
        driver.start(0)
        pid = driver.of(SlotReady)[0].pid
        for _ in range(4):
            driver.result(0, driver.call(0, tasks.echo, (bytes(200_000),))[0])

        driver.run_until(lambda: not memory_files(pid, "taskmesh (deleted)"))

        assert driver.result(0, driver.call(0, tasks.echo, (b"still there",))[0]) == b"still there"


def test_module_that_cannot_be_loaded_is_told(processes):
    with Driver(SlotSettings("test", preload=["no_such_module"])) as driver:
        driver.host.start(0)

        exited = driver.exit_of(0)
        assert not exited.ready
        assert "No module named 'no_such_module'" in exited.log


def test_forked_child_of_the_supervisor_lets_go_of_everything(driver):
    driver.start(0, 1)
    host = driver.host
    ours = {host._selector.fileno(), *(handle.sock.fileno() for handle in host._handles.values())}
    before = set(tasks.descriptors())
    assert ours < before

    child = os.fork()
    if child == 0:
        status = 1
        try:
            host.close_after_fork()
            left = set(tasks.descriptors())
            status = 0 if not left & ours and len(before - left) > 10 else 2
        finally:
            os._exit(status)  # noqa: TID251  a forked child of pytest

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_close_twice(processes):
    driver = Driver()
    driver.start(0)

    driver.host.close(timeout=5)
    driver.host.close(timeout=5)

    assert [event.status for event in driver.of(SlotExited)] == [0]
    driver.closed = True
    driver._selector.close()


def test_close_waits_for_the_time_given_and_no_longer(processes, gates):
    gate = gates()
    driver = Driver()
    driver.start(0, 1)
    driver.call(0, wait_at, (gate.path,))
    quick = driver.call(1, tasks.nothing, *[()] * 100)
    driver.run_until(lambda: gate.reached() and driver.finished(1, quick))

    began = time.monotonic()
    driver.close(timeout=0.3)

    assert time.monotonic() - began < 2
    assert driver.finished(1, quick)
    assert {event.slot: event.status for event in driver.of(SlotExited)} == {0: -signal.SIGKILL, 1: 0}


def test_a_slot_that_says_twice_that_it_is_up_is_heard_no_more(processes):
    """A task may write to its slot's socket: it must not make the pool take the slot for a new one."""
    process = SlotProcess(1, 0)
    handle = SlotHandle(0, process)
    try:
        ready = pack(messages.READY, msgspec.msgpack.encode(messages.Ready(7)))
        handle._slot_sock.sendall(ready + ready)

        assert handle.read() == [SlotReady(0, 7)]
        assert handle.at_end
        assert "twice" in handle.trouble
    finally:
        handle.close()
        process.close()


def test_a_long_task_among_short_ones_is_told_with_its_own_time(driver):
    driver.start(0)
    naps = [0.0] * 20 + [0.05] + [0.0] * 20 + [0.02, 0.0]
    serials = driver.call(0, tasks.work, *[(seconds,) for seconds in naps])
    driver.run_until(lambda: driver.finished(0, serials), 20)

    segments = [segment for event in driver.of(SlotFinished, 0) for segment in event.results.done]
    times = {segment.first: (len(segment.payloads), segment.elapsed) for segment in segments}
    assert times[serials[20]][0] == times[serials[41]][0] == 1
    assert times[serials[20]][1] >= 0.05
    assert times[serials[41]][1] >= 0.02
    assert sum(count for count, _ in times.values()) == len(naps)
