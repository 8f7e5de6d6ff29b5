"""A client in a loop: what other threads ask of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.client.machine.settings import ClientSettings
from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.shell import ClientShell, Requests
from taskmesh.core.events import Queued, Requested
from taskmesh.errors import MeshClosed
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from tests.harness.waiting import wait_until


class Recorder:
    """A machine that wants nothing done."""

    open = True

    def __init__(self):
        self.seen = []

    def take(self, event, now):
        self.seen.append(event if isinstance(event, Queued) else event.message)

    def act(self, now):
        return []


class EmptySink:
    queued = False


class BusySink:
    """A pending table that another thread uses while it is drained: each task is given up at once."""

    def __init__(self, shell_of):
        self.left = [1, 2, 3]
        self._shell_of = shell_of

    @property
    def queued(self):
        return bool(self.left)

    def drain(self):
        seq = self.left.pop(0)
        if self.left:  # submitted after the look, so that the next one takes it
            self._shell_of().events.append(Requested(m.CancelTasks(self.left[:1])))
        return [], [Run(1, 0, [seq], [b""], "")]


@pytest.mark.parametrize("before", [[], [m.CancelTasks([9])], [m.Query(1, "status", "", 100)]])
def test_a_cancellation_never_goes_before_its_task(before):
    shell = ClientShell(BusySink(lambda: shell), ClientSettings(1), 0.0, lambda _: None, lambda _: None)
    shell.machine = machine = Recorder()
    shell.events.extend(Requested(message) for message in before)

    while shell.pending:
        shell.turn(0.0)

    told = [event.runs[0].seqs if isinstance(event, Queued) else event for event in machine.seen]
    assert told == [[1], *before, [2], m.CancelTasks([2]), [3], m.CancelTasks([3])]


def test_cancellations_in_a_row_are_one_message():
    shell = ClientShell(EmptySink(), ClientSettings(1), 0.0, lambda _: None, lambda _: None)
    shell.machine = machine = Recorder()
    query = m.Query(1, "status", "", 100)
    told = [m.CancelTasks([1], [8]), m.CancelTasks([2, 3], [9])]
    told += [query, m.CancelTasks([4]), m.CancelTasks([5])]
    shell.events.extend(Requested(message) for message in told)

    shell.turn(0.0)

    assert machine.seen == [m.CancelTasks([1, 2, 3], [8, 9]), query, m.CancelTasks([4, 5])]
    assert not shell.events


def query(number):
    return m.Query(number, "status", "", 100)


def test_a_request_that_could_not_be_put_is_forgotten():
    requests = Requests()

    def put(ask):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        requests.ask(query, put, 5.0)

    assert not requests._waiting


class Mute(SubmitPort):
    """A port whose hub answers nothing. `broken`: set, and its loop fails."""

    def __init__(self):
        super().__init__(EmptySink(), ClientSettings(1))
        self.broken = threading.Event()
        self._start_thread("taskmesh-mute", self._work)

    def _work(self):
        wait_until(lambda: self._closing.is_set() or self.broken.is_set())


def test_a_request_fails_when_the_mesh_closes():
    port = Mute()
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(port.query, "status", timeout=600)
        wait_until(lambda: port._shell.requests._waiting)

        port.close(cancel=True, timeout=5)

        with pytest.raises(MeshClosed):
            asked.result(5)


def test_a_request_fails_when_the_loop_has_ended():
    port = Mute()
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(port.query, "status", timeout=600)
        wait_until(lambda: port._shell.requests._waiting)

        port.broken.set()

        with pytest.raises(MeshClosed):
            asked.result(5)
    with pytest.raises(MeshClosed):
        port.query("status", timeout=600)
    port.close(cancel=True, timeout=5)
