"""Every number that a client has drawn is told: a hub keeps finished tasks as intervals of their numbers."""

from taskmesh.core import events as ev
from taskmesh.core.events import Ask
from taskmesh.wire import messages as m
from tests.core.client_rig import Client
from tests.core.rig import EPOCH, HubRig, spec


def test_what_was_given_up_on_a_link_that_was_lost_is_told_over_the_next():
    """Seed 600710: the hub knew nothing of the client, and never heard of a call that had been too large."""
    rig, client = HubRig(), Client()
    client.welcome(EPOCH)
    client.submit(1, 2, 3)
    client.submit(4, one=spec("once", acks="early"))
    del client.pending[2]
    client.tell(Ask(m.CancelTasks([2])))
    client.tell(ev.LinkLost())
    client.sent.clear()
    client.welcome(EPOCH)

    rig.client(7)
    rig.hub.clients[7].submitted = client.of(m.Submit)[0].number - 1
    for submit in client.of(m.Submit):
        rig.tell(ev.FromClient(7, submit))
    rig.hub.intake.cancel_all(7, only_bound=False)

    assert rig.hub.ledger.account(7).finished.pieces == 1
