"""Every number that a client has drawn is told: a hub keeps finished tasks as intervals of their numbers.

Who leaves numbers out has caps too.
"""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import Requested
from taskmesh.hub.machine import cancellations
from taskmesh.hub.machine.books import account
from taskmesh.hub.machine.books.interval_set import COST
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from tests.core.client_rig import Client
from tests.core.rig import EPOCH, ONE, HubRig, spec


def test_what_was_given_up_on_a_link_that_was_lost_is_told_over_the_next():
    """Seed 600710: the hub knew nothing of the client, and never heard of a call that had been too large."""
    rig, client = HubRig(), Client()
    client.welcome(EPOCH)
    client.submit(1, 2, 3)
    client.submit(4, one=spec("once", acks="early"))
    del client.pending[2]
    client.tell(Requested(m.CancelTasks([2])))
    client.tell(ev.LinkLost())
    client.sent.clear()
    client.welcome(EPOCH)

    rig.client(7)
    rig.hub.state.clients[7].submitted = client.of(m.Submit)[0].number - 1
    for submit in client.of(m.Submit):
        rig.tell(ev.FromClient(7, submit))
    cancellations.cancel_all(rig.hub.state, 7)
    rig.tell(ev.Tick())

    assert rig.hub.state.ledger.account(7).finished.pieces == 1


@pytest.fixture
def _small_cap(monkeypatch):
    monkeypatch.setattr(account, "SCATTERED", 100_000)
    monkeypatch.setattr(account, "PORTION", 100)


@pytest.mark.usefixtures("_small_cap")
def test_numbers_far_from_each_other_that_are_given_up_have_a_bound():
    rig = HubRig(client_max_bytes=1000)
    rig.client()
    for number in range(1, 6):
        rig.cancel(1, *range(number * 10**6, number * 10**6 + 10**9, 10**6))

    assert rig.hub.state.clients[1].submitted == 5, "what makes room is always taken"
    assert COST * len(rig.hub.state.ledger.account(1).finished.blocks) < 150_000


@pytest.mark.usefixtures("_small_cap")
def test_who_has_left_so_many_numbers_out_submits_no_more():
    rig = HubRig(client_max_bytes=50_000)
    session = rig.join(slots=500)
    rig.client()
    rig.tell(ev.FromClient(1, m.Submit(1, [(ONE, spec())], [Run(ONE, 0, [9], [b"x" * 60_000])])))
    rig.tell(ev.FromClient(1, m.Submit(2, [], [Run(ONE, 0, [10], [b"x"])])))
    assert rig.told[1][-1] == m.Busy(2, 0.05), "the cap in bytes, for comparison"
    rig.report(session, done=((1, 9, 1),))

    far = list(range(10**6, 401 * 10**6, 10**6))
    rig.tell(ev.FromClient(1, m.Submit(2, [], [Run(ONE, 0, far, [b"x"] * 400)])))
    rig.report(session, done=tuple((1, seq, 1) for seq in far))
    rig.told[1].clear()
    rig.tell(ev.FromClient(1, m.Submit(3, [], [Run(ONE, 0, [10], [b"x"])])))

    assert rig.told[1][-1] == m.Busy(3, 0.05)
    assert rig.hub.state.clients[1].submitted == 2
