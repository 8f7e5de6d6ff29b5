"""The shell of a hub performs everything that the machine may want, and tells it of the clock on the wall."""

from collections import deque
from typing import get_args

from taskmesh.core.actions import HubAction
from taskmesh.core.events import Clock
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.shell import HubShell, WallClock
from taskmesh.system.clock import monotonic


class Anything:
    """Links and a store of which nothing is asked."""

    def __getattr__(self, name: str) -> object:
        return lambda *values: None


def test_every_action_of_a_hub_is_performed():
    anything = Anything()
    shell = HubShell(HubMachine(HubSettings(epoch=1), 0.0), anything, journal=anything)

    assert shell._perform.keys() == set(get_args(HubAction))


def test_a_clock_that_is_set_is_told_and_looked_at_again():
    events: deque[object] = deque()
    ahead = 1000.0
    clock = WallClock(events, lambda: monotonic() + ahead)
    clock.turn(1.0)
    assert [round(event.offset) for event in events if isinstance(event, Clock)] == [1000]

    ahead += 3600.0
    clock.turn(2.0)
    assert [round(event.offset) for event in events if isinstance(event, Clock)] == [1000, 4600]
    assert 2.0 < clock.deadline <= 3.0
