"""Every number that a client draws becomes a task's: a hub remembers each gap while the client lives."""

import asyncio
import itertools
import threading

import pytest

from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.future import OpenRun
from taskmesh.client.pending_table import PendingTable
from taskmesh.config import ClientConfig
from taskmesh.errors import QueueFull
from taskmesh.messages.runs import Spec
from tests.client.test_pending_table import ARGUMENTS, Port, done, make_table


def test_put_that_finds_no_room_leaves_no_gap_in_the_numbers():
    table = make_table(max_pending=2)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    seqs = [table.put(run, ARGUMENTS)._seq for _ in range(2)]

    async def poll():
        for _ in range(50):
            for _ in range(3):
                with pytest.raises(QueueFull):
                    table.put(run, ARGUMENTS)
            table.resolve(done(seqs[-2]), [])
            seqs.append(table.put(run, ARGUMENTS)._seq)

    asyncio.run(poll())

    assert seqs == list(range(1, 53))


def test_numbers_of_threads_that_wait_for_room_are_all_used():
    table = make_table(max_pending=3)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    seqs, each = [], 100

    def put():
        seqs.append([table.put(run, ARGUMENTS)._seq for _ in range(each)])

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads) or table.unended:
        with table.lock:
            pending = [future._seq for future in table.unended]
        most = max(most, len(pending))
        table.resolve(done(*pending[:2]), [])

    assert sorted(itertools.chain(*seqs)) == list(range(1, 4 * each + 1))
    assert most <= 3 + len(threads)  # `put` takes no lock


def test_numbers_when_the_port_does_not_open_are_used_by_the_next():
    opened = []

    def open_port():
        if not opened:
            opened.append(False)
            raise OSError("no hub")
        table.attach(Port())

    table = PendingTable(ClientConfig(), CallbackThread(), open_port)
    run = OpenRun(table, 1, Spec(b"f", "f"))
    with pytest.raises(OSError, match="no hub"):
        table.put(run, ARGUMENTS)

    assert [table.put(run, ARGUMENTS)._seq for _ in range(3)] == [1, 2, 3]
