"""What a client remembers of its functions, for a hub that has forgotten them."""

import pytest

from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.future import OpenRun
from taskmesh.client.pending_table import PendingTable
from taskmesh.client.port import shell as client_shell
from taskmesh.client.port.shell import OpenTasksView
from taskmesh.config import ClientConfig
from taskmesh.messages.runs import DoneRun, Spec
from taskmesh.serialize.payload import dumps_call

SPECS = {number: Spec(b"%d" % number * 100, "f") for number in range(1, 6)}


class Port:
    """A port of which nobody wants anything."""

    client = 7
    sleeping = False


@pytest.fixture
def pending():
    table = PendingTable(ClientConfig(), CallbackThread(), lambda: table.attach(Port()))
    return table


@pytest.fixture
def sinks(pending):
    return OpenTasksView(pending)


def submit(pending, sinks, number):
    """Submits a task; it is drained, as by the client's loop."""
    pending.put(OpenRun(pending, number, SPECS[number]), dumps_call((), {}, where="test"))
    sinks.keep(pending.drain()[0])


def end(pending, seq, number):
    result = dumps_call((), {}, where="test")
    pending.resolve([DoneRun(number, 7, 1, "w", [seq], [result], 0.0)], [])


def test_the_oldest_of_those_that_are_too_large_go(pending, sinks, monkeypatch):
    monkeypatch.setattr(client_shell, "SPEC_BYTES_KEPT", 250)
    for number, spec in SPECS.items():
        submit(pending, sinks, number)
        sinks.keep([(number, spec)])  # once more: it counts once

    assert list(sinks._specs) == [4, 5]


def test_the_oldest_of_too_many_go(pending, sinks, monkeypatch):
    monkeypatch.setattr(client_shell, "SPECS_KEPT", 2)
    for number in SPECS:
        submit(pending, sinks, number)

    assert list(sinks._specs) == [4, 5]


@pytest.mark.parametrize("kept", [0, 250])
def test_what_a_task_on_its_way_needs_is_found_all_the_same(pending, sinks, monkeypatch, kept):
    monkeypatch.setattr(client_shell, "SPEC_BYTES_KEPT", kept)
    for number in SPECS:
        submit(pending, sinks, number)

    assert dict(sinks.specs_of(list(SPECS))) == SPECS
    assert sum(len(spec.function) for spec in sinks._specs.values()) <= kept


def test_what_no_task_needs_any_more_is_not_found(pending, sinks, monkeypatch):
    monkeypatch.setattr(client_shell, "SPEC_BYTES_KEPT", 0)
    for number in SPECS:
        submit(pending, sinks, number)
    end(pending, 1, 1)

    assert [number for number, _ in sinks.specs_of([2, 1])] == [2]
