"""When memory, processes or descriptors run out."""

import os
import resource
import signal

import psutil
import pytest

from taskmesh.core.events import SlotExited, SlotFinished
from taskmesh.errors import RemoteProtocolError
from taskmesh.messages.runs import CHUNK
from taskmesh.pool.slots import supervisor as supervisor_module
from taskmesh.pool.slots.channel import Inbound
from taskmesh.serialize import payload
from taskmesh.shm.blob import Blob
from tests.harness.requirement import require
from tests.harness.waiting import wait_until
from tests.pool.slots import tasks
from tests.pool.slots.cgroup import group_of, is_available


def server_of(driver) -> int:
    return psutil.Process(next(iter(driver.host.pids().values()))).ppid()


def test_our_kill_for_memory_is_told_as_the_kernels_with_the_reason(driver):
    driver.start(0)
    driver.call(0, tasks.spin)

    driver.host.kill_for_memory(0, "it took most")

    exited = driver.exit_of(0)
    assert (exited.status, exited.oom, exited.log) == (-signal.SIGKILL, True, "it took most")


@pytest.mark.fault
def test_two_slots_run_out_of_memory_at_once_and_the_kernel_kills_the_other(driver):
    require(is_available("memory"), "a memory cgroup that we may write to: run as root")
    with group_of("memory") as group:
        driver.start(9)
        server = server_of(driver)
        group.add(server)
        driver.start(0, 1)
        group.set_memory(200 << 20)
        os.kill(server, signal.SIGSTOP)  # so that it learns of both deaths at once, and asks for ours first
        driver.call(0, tasks.spin)
        driver.host.kill_for_memory(0, "it took most")
        driver.call(1, tasks.devour)
        wait_until(lambda: group.kills() == 1, 10)
        os.kill(server, signal.SIGCONT)

        assert driver.exit_of(0).oom
        assert driver.exit_of(1).oom
        driver.close()


def test_a_slot_that_is_being_killed_is_not_out_of_memory(driver):
    driver.start(0)
    driver.call(0, tasks.spin)

    driver.host.kill(0)
    driver.host.kill_for_memory(0, "it took most")

    exited = driver.exit_of(0)
    assert (exited.oom, exited.log) == (False, "")


@pytest.mark.fault
def test_our_own_kill_is_not_taken_for_the_kernels(driver):
    driver.start(0)
    driver.call(0, tasks.spin)

    driver.host.kill(0)

    assert not driver.exit_of(0).oom


def test_slot_without_descriptors_is_reported(driver, monkeypatch):
    driver.start(0)

    def nothing_left(*args: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(supervisor_module, "SlotHandle", nothing_left)
        driver.host.start(1)
        exited = driver.exit_of(1)
    assert not exited.ready
    assert "Too many open files" in exited.log

    driver.start(1)
    assert len(driver.of(SlotExited)) == 1


@pytest.mark.parametrize("threads", [True, False], ids=["", "and no thread is to be had"])
def test_large_argument_waits_for_a_descriptor(driver, monkeypatch, threads):
    def refused(timer: object) -> None:
        raise RuntimeError("can't start new thread")

    driver.start(0)
    if not threads:
        monkeypatch.setattr("threading.Timer.start", refused)
    refusals = []
    to_fd = Blob.to_fd

    def sometimes(blob: Blob) -> int:
        if len(refusals) < 2:
            refusals.append(blob)
            raise OSError(24, "Too many open files")
        return to_fd(blob)

    monkeypatch.setattr(Blob, "to_fd", sometimes)
    blob = payload.dumps_call((b"x" * 100_000,), {}, where="test", memfd=False)
    [serial] = driver.give(0, [driver.run_of(driver.spec(tasks.echo), [blob])])

    assert len(driver.result(0, serial)) == 100_000
    assert len(refusals) == 2
    refusals.clear()


def test_arguments_larger_than_files_may_be_fail_their_tasks_alone(driver):
    driver.start(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large, small = bytes(3_000_000), b"x" * 200_000
    payloads = [payload.dumps_call((each,), {}, where="test", memfd=False) for each in (small, large, small)]
    chunk = payload.dumps_chunk([large], memfd=False, starred=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        first, second, third = driver.give(0, [driver.run_of(driver.spec(tasks.echo), payloads)])
        [mapped] = driver.give(0, [driver.run_of(driver.spec(tasks.echo, kind=CHUNK), [chunk])])

        assert driver.result(0, first) == driver.result(0, third) == small
        for serial in (second, mapped):
            failure = driver.failure(0, serial)
            assert failure.type_name == "taskmesh.errors.SerializationError"
            assert failure.text.endswith("is started"), "one cure is enough"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_slot_whose_outbox_is_larger_than_files_may_be_is_reported_with_the_limits(driver):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        driver.host.start(0)
        exited = driver.exit_of(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not exited.ready
    assert "`ulimit -n`, `-v`, `-f`" in exited.log


@pytest.mark.fault
def test_slot_that_runs_out_of_descriptors(driver):
    driver.start(0)
    driver.call(0, tasks.exhaust_descriptors)

    [serial] = driver.call(0, tasks.make_bytes, (1_000_000,))

    assert "Too many open files" in driver.failure(0, serial).text
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2


def test_slot_whose_process_descriptor_is_lost_works_and_its_death_is_told(driver, monkeypatch):
    receive = Inbound.receive

    def lost(inbound: Inbound) -> bool:
        more = receive(inbound)
        inbound.close_fds()  # as the kernel does where none is free
        return more

    monkeypatch.setattr(Inbound, "receive", lost)
    driver.start(0)
    assert driver.result(0, driver.call(0, tasks.add, (1, 1))[0]) == 2

    os.kill(driver.host.pids()[0], signal.SIGKILL)

    assert driver.exit_of(0).status == -signal.SIGKILL


def test_results_after_lost_descriptors_are_not_told(driver, monkeypatch):
    take, losses = Inbound._take, iter([True])

    def lost(inbound: Inbound, count: int) -> list[int]:
        if not next(losses, False):  # the next ones are the fork server's, of the slot after it
            return take(inbound, count)
        inbound.close_fds()
        raise RemoteProtocolError(f"{count} descriptors of large values were sent and 0 came")

    driver.start(0)
    monkeypatch.setattr(Inbound, "_take", lost)
    calls = [(tasks.make_bytes, (1_000_000,)), (tasks.add, (1, 1)), (tasks.spin, ())]
    runs = []
    for function, args in calls:
        data = payload.dumps_call(args, {}, where="test")
        runs.append(driver.run_of(driver.spec(function), [data]))
    driver.give(0, runs)

    [exited] = driver.run_until(lambda: [event for event in driver.events if isinstance(event, SlotExited)])

    assert "descriptors of large values" in exited.log
    assert not [event for event in driver.events if isinstance(event, SlotFinished)], (
        "the first one is missing"
    )
