"""The shell of a hub performs everything that the machine may want."""

from typing import get_args

from taskmesh.core.actions import HubAction
from taskmesh.core.hub.machine import HubMachine
from taskmesh.core.hub.settings import HubSettings
from taskmesh.net.hub.shell import HubShell


class Anything:
    """Links and a store of which nothing is asked."""

    def __getattr__(self, name: str) -> object:
        return lambda *values: None


def test_every_action_of_a_hub_is_performed():
    anything = Anything()
    shell = HubShell(HubMachine(HubSettings(epoch=1), 0.0), anything, anything, journal=anything)

    assert shell._perform.keys() == set(get_args(HubAction))
