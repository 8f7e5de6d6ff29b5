"""The pending table: bounded, lock-free to put into, ended many at once, rebuilt for a hub that forgot."""

import asyncio
import gc
import os
import pickle
import signal
import threading

import pytest

from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.future import OpenRun
from taskmesh.client.pending_table import PendingTable
from taskmesh.config import ClientConfig
from taskmesh.errors import ForkedMeshError, MeshClosed, QueueFull
from taskmesh.messages.runs import DoneRun, Failed, Spec
from tests.harness.waiting import wait_until

WAIT_S = 10
ARGUMENTS = pickle.dumps(((1,), {}))
RESULT = pickle.dumps("done")


class Port:
    client = 7
    connected = True

    def __init__(self):
        self.sleeping = False
        self.wakes = 0
        self.cancelled = []

    def wake(self):
        self.wakes += 1

    def cancel(self, seqs, *, unstarted=False):
        self.cancelled += seqs


def make_table(**limits):
    callbacks = CallbackThread()
    port = Port()
    table = PendingTable(ClientConfig(**limits), callbacks, lambda: table.attach(port))
    table.port = port
    return table


@pytest.fixture
def table():
    return make_table()


@pytest.fixture
def run(table):
    return OpenRun(table, 1, Spec(b"f", "f"))


def done(*seqs):
    return [DoneRun(1, 7, 1, "w", list(seqs), [RESULT] * len(seqs), 0.0)]


def test_drain_gives_each_task_once_with_new_specs(table, run):
    other = OpenRun(table, 2, Spec(b"g", "g"), group=5)
    for _ in range(3):
        table.put(run, ARGUMENTS)
    table.put(other, ARGUMENTS)
    assert table.queued

    specs, runs = table.drain()

    assert dict(specs) == {1: run.spec, 2: other.spec}
    assert [(run.spec, run.group, run.seqs, run.again) for run in runs] == [
        (1, 0, [1, 2, 3], False),
        (2, 5, [4], False),
    ]
    assert runs[0].payloads == [ARGUMENTS] * 3
    assert not table.queued
    table.put(run, ARGUMENTS)
    assert [[run.seqs for run in table.drain()[1]], table.drain()] == [[[5]], ([], [])]


def test_put_wakes_the_port_only_when_it_sleeps(table, run):
    table.put(run, ARGUMENTS)
    assert table.port.wakes == 0

    table.port.sleeping = True
    for _ in range(5):
        table.put(run, ARGUMENTS)

    assert table.port.wakes == 1


def test_pending_runs_rebuild_what_was_drained_and_has_not_ended(table, run):
    futures = [table.put(run, ARGUMENTS) for _ in range(4)]
    table.drain()
    table.put(run, ARGUMENTS)  # not drained yet: it will go its usual way
    table.resolve(done(2), [])
    table.cancel([futures[2]])

    specs, runs = table.pending_runs()

    assert specs == [(1, run.spec)]
    assert [(run.seqs, run.payloads, run.again) for run in runs] == [([1, 4], [ARGUMENTS] * 2, True)]
    assert [run.seqs for run in table.pending_runs([4, 2])[1]] == [[4]]


def test_resolve_skips_what_it_does_not_know_and_what_is_over(table, run):
    first, second, third = (table.put(run, ARGUMENTS) for _ in range(3))
    table.cancel([second])

    table.resolve(done(1, 2, 99), [Failed(7, 3, 1, "expired"), Failed(7, 98, 1, "crash")])
    table.resolve(done(1, 3), [Failed(7, 1, 1, "crash")])

    assert first.result() == "done"
    assert second.cancelled()
    assert third.state == "expired"
    assert not table.unended


def test_future_keeps_no_payload_of_its_batch_once_it_is_read(table, run):
    first, second = (table.put(run, ARGUMENTS) for _ in range(2))
    run = DoneRun(1, 7, 5, "w", [1, 2], [RESULT, RESULT], 4.0, 3)
    table.resolve([run], [])

    assert (first.attempt, second.worker) == (2, "w")
    assert first.result() == "done"
    assert run not in gc.get_referents(first, first._origin)


def test_put_when_full_waits_for_room():
    table = make_table(max_pending=3)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    for _ in range(3):
        table.put(run, ARGUMENTS)
    put = []
    thread = threading.Thread(target=lambda: put.append(table.put(run, ARGUMENTS)))
    thread.start()
    wait_until(lambda: table._watching)
    assert not put

    table.resolve(done(2), [])
    thread.join(WAIT_S)

    assert len(put) == 1
    table.accepted([1, 2, 3, put[0]._seq])
    assert table._acceptance.to == put[0]._seq  # the number that it waited with leaves no gap


def test_put_of_many_bytes_waits_for_room():
    table = make_table(max_bytes=1000)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    table.put(run, b"x" * 2000)
    assert table._is_full()
    thread = threading.Thread(target=table.put, args=(run, b"x" * 300))
    thread.start()
    wait_until(lambda: table._watching)

    table.resolve(done(1), [])
    thread.join(WAIT_S)

    assert not thread.is_alive()
    assert table.weight == 300


def test_put_when_full_in_an_event_loop_raises_queue_full():
    table = make_table(max_pending=1)
    run = OpenRun(table, 1, Spec(b"f", "f"))

    async def main():
        table.put(run, ARGUMENTS)
        with pytest.raises(QueueFull, match="asubmit"):
            table.put(run, ARGUMENTS)
        room = table.room(asyncio.get_running_loop())
        assert room is not None
        table.resolve(done(1), [])
        await asyncio.wait_for(room, WAIT_S)
        assert table.room(asyncio.get_running_loop()) is None

    asyncio.run(main())


def test_put_when_full_is_woken_by_the_end_of_the_mesh():
    table = make_table(max_pending=1)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    table.put(run, ARGUMENTS)
    errors = []

    def put():
        try:
            table.put(run, ARGUMENTS)
        except MeshClosed as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    wait_until(lambda: table._watching)
    table.refuse()
    thread.join(WAIT_S)

    assert len(errors) == 1


def test_refuse_ends_what_is_pending_and_turns_the_rest_away(table, run):
    future = table.put(run, ARGUMENTS)

    table.refuse(OSError("the port is gone"))

    for call in (future.result, lambda: table.put(run, ARGUMENTS)):
        with pytest.raises(OSError, match="gone"):
            call()


def test_future_that_came_in_while_the_mesh_was_closing_is_turned_away_when_looked_at(table, run):
    table.put(run, ARGUMENTS)
    table.refuse()
    table._ceiling = 10**9  # as a thread sees it that has passed the check just before
    late = table.put(run, ARGUMENTS)

    with pytest.raises(MeshClosed):
        late.result(WAIT_S)


def test_numbers_that_interrupted_submits_took_cost_no_room_for_ever():
    table = make_table(max_pending=3)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    table.put(run, ARGUMENTS)
    for _ in range(10):
        table._sequence.draw()

    late = [table.put(run, ARGUMENTS)._seq for _ in range(2)]

    assert table._is_full()
    assert table._ceiling == late[-1], "there is no room for one more"
    table.accepted([1, *late])
    table.flush(0)
    table.resolve(done(1, *late), [])
    assert [table.put(run, ARGUMENTS)._seq for _ in range(3)] == [late[1] + i for i in (1, 2, 3)]


def test_flush_waits_for_acceptance(table, run):
    for _ in range(3):
        table.put(run, ARGUMENTS)
    with pytest.raises(TimeoutError, match="confirmed"):
        table.flush(0.01)

    threading.Timer(0.02, table.accepted, ([1, 2, 3],)).start()

    table.flush(WAIT_S)


def test_cancelled_tasks_leave_no_gap_in_what_is_accepted(table, run):
    futures = [table.put(run, ARGUMENTS) for _ in range(3)]
    table.cancel([futures[1]])

    table.accepted([1])
    table.accepted([3])

    table.flush(0)
    assert table._acceptance.to == 3


def test_tasks_that_fail_on_their_way_to_the_hub_leave_no_gap_in_what_is_accepted(table, run):
    large, *others = [table.put(run, ARGUMENTS) for _ in range(3)]
    table.drain()

    table.resolve([], [Failed(7, large._seq, 0, "too_large")])
    table.accepted([future._seq for future in others])

    assert table._acceptance.to == 3
    assert large.exception() is not None


def test_cancel_tells_the_port_once_for_all(table, run):
    futures = [table.put(run, ARGUMENTS) for _ in range(4)]
    table.resolve(done(3), [])

    assert table.cancel(futures) == 3
    assert table.cancel(futures) == 0
    assert table.port.cancelled == [1, 2, 4]


def test_failed_as_cancelled_is_cancelled(table, run):
    future = table.put(run, ARGUMENTS)

    table.resolve([], [Failed(7, 1, 1, "cancelled")])

    assert future.cancelled()


def test_forked_table_takes_nothing_and_ends_everything(table, run):
    future = table.put(run, ARGUMENTS)
    held = threading.Event()
    release = threading.Event()

    def hold():  # as another thread may, when the process forks
        with table.lock:
            held.set()
            release.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(WAIT_S)
    table.forked()

    for call in (lambda: future.result(WAIT_S), lambda: table.put(run, ARGUMENTS)):
        with pytest.raises(ForkedMeshError):
            call()
    release.set()
    thread.join(WAIT_S)


def test_put_from_many_threads_loses_nothing(table, run):
    futures = []
    drained = []

    def submit():
        futures.extend([table.put(run, ARGUMENTS) for _ in range(2000)])

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or table.queued:
        for sent in table.drain()[1]:
            assert len(sent.seqs) == len(sent.payloads)
            drained += sent.seqs
            table.resolve(done(*sent.seqs), [])
    for sent in table.drain()[1]:
        drained += sent.seqs
        table.resolve(done(*sent.seqs), [])

    assert sorted(drained) == list(range(1, 8001))
    assert {future.result(0) for future in futures} == {"done"}
    assert table._ceiling == 2_000_000 + 8000


def test_put_that_is_interrupted_leaves_no_task_that_nobody_drains(table):
    drained = []
    stop = threading.Event()

    def drain():
        while not stop.is_set() or table.queued:
            for run in table.drain()[1]:
                drained.extend(run.seqs)
                table.resolve(done(*run.seqs), [])

    armed = [False]

    def interrupt(signum, frame):
        if armed[0] and frame.f_code is PendingTable.put.__code__:
            armed[0] = False
            raise KeyboardInterrupt

    runs = [OpenRun(table, number, Spec(b"f", "f")) for number in range(5)]
    interrupted = 0
    thread = threading.Thread(target=drain)
    thread.start()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0007, 0.0007)
    try:
        for _ in range(150):
            try:
                armed[0] = True
                for _ in range(600):
                    for run in runs:  # the next submit of the same run would repair what we look for
                        table.put(run, ARGUMENTS)
            except KeyboardInterrupt:
                interrupted += 1
                wait_until(lambda: not table.unended, message="a task is pending that was never drained")
    finally:
        armed[0] = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        stop.set()
        thread.join(WAIT_S)

    assert interrupted > 5
    assert len(drained) == len(set(drained))


def test_pending_task_costs_less_than_its_share_of_memory(table, run):
    count = 20_000
    payloads = [pickle.dumps(((index,), {})) for index in range(count)]
    gc.collect()
    page = os.sysconf("SC_PAGE_SIZE")
    before = _resident() * page
    futures = [table.put(run, payload) for payload in payloads]

    cost = (_resident() * page - before) / count

    assert len(futures) == count
    assert cost < 500, f"{cost:.0f} bytes a task"


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


def test_who_waits_for_the_end_looks_at_all_tasks_only_now_and_then(table, run, monkeypatch):
    looks: list[int] = []
    futures = [table.put(run, ARGUMENTS) for _ in range(10)]
    detached = table.put(OpenRun(table, 2, Spec(b"f", "f", detach=True)), ARGUMENTS)
    unended = PendingTable.unended.fget

    def end_one_by_one(is_idle, _timeout) -> None:
        assert not any(is_idle() for _ in range(100))
        assert len(looks) == 1, "a million tasks take 40 ms, for which no outcome can be taken in"
        for future in futures[:-1]:
            table.resolve(done(future._seq), [])
            assert not is_idle()
        assert len(looks) == 1
        table.resolve(done(futures[-1]._seq), [])
        assert is_idle()

    monkeypatch.setattr(PendingTable, "unended", property(lambda table: looks.append(1) or unended(table)))
    monkeypatch.setattr(table, "_wait", end_one_by_one)
    table.wait_idle([])
    assert not detached.done()


def test_what_has_ended_is_not_accepted_before_the_hub_says_so(table, run):
    futures = [table.put(run, ARGUMENTS) for _ in range(3)]
    table.drain()
    table.resolve(done(1, 2), [Failed(7, 3, 1, "exception", worker="p/0")])
    assert [future.state for future in futures] == ["succeeded", "succeeded", "failed"]
    assert [future.accepted for future in futures] == [False] * 3
    with pytest.raises(TimeoutError):
        table.flush(0.01)

    table.accepted([1, 2])
    with pytest.raises(TimeoutError):
        table.flush(0.01)
    table.accepted([3])
    table.flush(0.01)
    assert [future.accepted for future in futures] == [True] * 3


def test_what_has_ended_at_a_hub_that_is_gone_is_not_waited_for(table, run):
    table.put(run, ARGUMENTS)
    table.put(run, ARGUMENTS)
    table.drain()
    table.resolve(done(1), [])

    _, runs = table.pending_runs()
    assert [seq for again in runs for seq in again.seqs] == [2]
    table.accepted([2])
    table.flush(0.01)
