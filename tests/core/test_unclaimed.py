"""What pools hold after a restart of the hub for clients that do not ask for it any more."""

import pytest

from taskmesh.core.events import FromClient
from taskmesh.wire import messages as m
from tests.core.rig import EPOCH, HubRig, spec

AGAIN = m.Run(1, 0, [1], [b"x"], again=True)
HELD = [m.Held(1, 1, [1, 2, 3]), m.Held(1, 4, [4]), m.Held(2, 1, [1])]


@pytest.fixture
def rig() -> HubRig:
    return HubRig()


def come_back(rig: HubRig, *, whole: bool = True) -> None:
    """A client submits its first task again; that is all that it waits for."""
    rig.client()
    rig.tell(FromClient(1, m.Submit(1, [(1, spec())], [AGAIN])))
    if whole:
        rig.tell(FromClient(1, m.Submit(2, [], [], whole=True)))


def dropped(rig: HubRig) -> list[m.Held]:
    return [held for _, message in rig.published if isinstance(message, m.Cancel) for held in message.tasks]


def test_what_a_client_that_is_back_does_not_submit_again_is_dropped(rig):
    rig.join(epoch=EPOCH - 1, inventory=HELD)
    assert rig.hub.snapshot()["unclaimed"] == 5
    come_back(rig, whole=False)
    assert dropped(rig) == []
    assert rig.hub.snapshot()["unclaimed"] == 4
    rig.tell(FromClient(1, m.Submit(2, [], [], whole=True)))

    assert dropped(rig) == [m.Held(1, 1, [2, 3]), m.Held(1, 4, [4])]
    assert rig.hub.snapshot()["unclaimed"] == 1
    assert rig.state(1, 1) == "SENT"


def test_so_is_what_a_pool_lists_that_comes_back_later(rig):
    come_back(rig)
    rig.join(epoch=EPOCH - 1, inventory=HELD)

    (welcome,) = [message for _, message in rig.published if isinstance(message, m.Welcome)]
    assert welcome.stale == [m.Held(1, 1, [2, 3]), m.Held(1, 4, [4])]
    assert rig.state(1, 1) == "SENT"


def test_it_is_said_again_while_it_runs(rig):
    """The first word of it may have been lost."""
    session = rig.join(epoch=EPOCH - 1, inventory=HELD)
    come_back(rig)
    rig.published.clear()
    rig.beat(session, running=((1, 2, 1), (2, 1, 1)))

    assert dropped(rig) == [m.Held(1, 1, [2])]


def test_its_result_is_not_kept(rig):
    session = rig.join(epoch=EPOCH - 1, inventory=HELD)
    come_back(rig)
    rig.report(session, done=((1, 2, 1), (2, 1, 1)))

    assert list(rig.hub._unclaimed) == [2 << 64 | 1]


def test_a_client_whose_first_hub_this_is_has_nothing_that_could_be_claimed(rig):
    rig.join()
    rig.client()
    rig.submit(1, 1)

    assert rig.hub.snapshot()["unclaimed"] == 0
    assert dropped(rig) == []
