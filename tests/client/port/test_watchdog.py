"""B4: a hub that is away is told of, in the log and by futures, and waited for no longer than was asked."""

import logging

import pytest

from taskmesh import Mesh
from taskmesh.client.port.watchdog import AGAIN, HubWatchdog
from taskmesh.errors import HubUnreachable
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.DEBUG, "taskmesh")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "taskmesh"]


def test_it_is_told_after_the_lease_then_once_a_minute_and_when_the_hub_is_back(told):
    given_up = []
    watch = HubWatchdog("tcp://there", 10.0, 0.0, given_up.append, 100.0)
    watch.check(100.0, linked=True)
    for now in (101.0, 109.9):
        watch.check(now, linked=False)
    assert told() == []

    for now in (110.0, 111.0, 110.0 + AGAIN - 0.1, 110.0 + AGAIN):
        watch.check(now, linked=False)
    assert [text.partition(":")[0] for text in told()] == ["no hub has answered at tcp"] * 2

    watch.check(200.0, linked=True)
    watch.check(201.0, linked=True)
    assert told()[2:] == ["the hub at tcp://there answers again, after 100 s"]
    assert given_up == []


def test_it_gives_up_once_when_it_was_told_to(told):
    given_up = []
    watch = HubWatchdog("tcp://there", 10.0, 5.0, given_up.append, 100.0)
    for now in (104.9, 105.0, 106.0, 120.0):
        watch.check(now, linked=False)

    [error] = given_up
    assert "client.hub_timeout is 5 s" in str(error)
    assert told() == []


@pytest.mark.fault
def test_futures_say_that_the_hub_is_away_and_the_end_of_the_block_is_bounded(programs: Programs, told):
    hub, address = programs.hub()
    mesh = Mesh(address, hub_timeout=6, hub__lease=2)
    future = mesh.submit(workload.add, 1, 2)
    mesh.flush(10)
    assert mesh.connected
    assert future.state == "queued"

    hub.kill()

    wait_until(lambda: future.state == "unreachable", 20)
    assert not mesh.connected
    wait_until(lambda: any("no hub has answered" in text for text in told()), 20)
    assert isinstance(future.exception(30), HubUnreachable)
    with pytest.raises(HubUnreachable, match="1 tasks were open: no hub has answered"):
        mesh.close()
