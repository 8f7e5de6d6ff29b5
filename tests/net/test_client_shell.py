"""A client in a loop: what other threads ask of it."""

from taskmesh.core.client import Ask
from taskmesh.core.client_config import ClientConfig
from taskmesh.net.client_shell import ClientShell
from taskmesh.wire import messages as m


class Recorder:
    """A machine that wants nothing done."""

    open = True

    def __init__(self):
        self.seen = []

    def handle(self, event, now):
        self.seen.append(event.message)
        return []


class EmptySink:
    queued = False


def test_cancellations_in_a_row_are_one_message():
    shell = ClientShell(EmptySink(), ClientConfig(1), 0.0, lambda message: None, lambda: None)
    shell.machine = machine = Recorder()
    query = m.Query(1, "status", "", 100)
    told = [m.CancelTasks([1]), m.CancelTasks([2, 3]), query, m.CancelTasks([4]), m.CancelTasks([5])]
    shell.events.extend(Ask(message) for message in told)

    shell.turn(0.0)

    assert machine.seen == [m.CancelTasks([1, 2, 3]), query, m.CancelTasks([4, 5])]
    assert not shell.events
