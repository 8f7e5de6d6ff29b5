"""The window of Submits bounds the bytes that a client has under way to a hub."""

from __future__ import annotations

import pytest

from taskmesh.core.events import FromClient
from taskmesh.hub.machine.clients import MAX_WINDOW, MOST_WINDOWS
from taskmesh.hub.machine.submission import LARGE
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from tests.core.client_rig import Client
from tests.core.rig import ONE, HubRig, spec

WINDOW = 1000


def client(window: int = WINDOW) -> Client:
    session = Client()
    session.welcome(window=window)
    session.sent.clear()
    return session


def under_way(session: Client) -> list[int]:
    """The tasks that have been sent, in order; forgets them."""
    seqs = [seq for seqs in session.submitted() for seq in seqs]
    session.sent.clear()
    return seqs


def test_no_more_than_the_window_is_under_way():
    session = client()
    for seq in range(1, 31):
        session.submit(seq, size=100)

    assert under_way(session) == list(range(1, 11))
    session.hear(m.Accepted(4))
    assert under_way(session) == list(range(11, 15))
    session.hear(m.Accepted(14))
    assert under_way(session) == list(range(15, 25))
    session.hear(m.Accepted(30))
    session.submit(31, size=100)
    assert under_way(session) == [31]


def test_a_batch_is_cut_so_that_several_make_a_window():
    session = client()
    session.submit(*range(1, 31), size=100)

    assert session.submitted() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_what_is_larger_than_the_window_is_under_way_alone():
    session = client()
    session.submit(1, size=5000)
    session.submit(2, size=5000)

    assert under_way(session) == [1]
    session.hear(m.Accepted(1))
    assert under_way(session) == [2]


def test_what_waited_for_the_first_welcome_is_cut_to_the_window():
    session = Client()
    session.submit(*range(1, 31), size=100)
    session.welcome(window=WINDOW)

    assert session.submitted() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_after_a_restart_all_comes_again_by_portions():
    session = client()
    for seq in range(1, 31):
        session.submit(seq, size=100)
        session.hear(m.Accepted(seq))
    session.sent.clear()
    session.hear(m.ClientRefused())
    session.welcome(epoch=2, window=10)  # the rig's table brings one byte each

    said = []
    while submits := session.of(m.Submit):
        portion = under_way(session)
        assert len(portion) <= 10
        said += portion
        session.hear(m.Accepted(submits[-1].number))
    assert said == list(range(1, 31))


def test_a_lost_link_has_the_window_said_again_and_no_more():
    session = client()
    for seq in range(1, 31):
        session.submit(seq, size=100)
    session.hear(m.Accepted(2))
    session.sent.clear()
    session.after(3.5)
    session.sent.clear()
    session.welcome(known=True, window=WINDOW)

    assert under_way(session) == list(range(3, 13))


def test_a_hub_that_is_full_is_asked_with_one_submit_and_less_and_less_often():
    session = client()
    for seq in range(1, 31):
        session.submit(seq, size=100)
    session.sent.clear()
    asked = []
    for _ in range(8):
        session.hear(m.Busy(1, 0.05))
        before = session.now
        while not session.submitted():
            session.after(0.01)
        assert under_way(session) == [1]
        asked.append(round(session.now - before, 2))
    session.hear(m.Accepted(1))

    assert asked == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5], abs=0.0101)
    assert under_way(session) == list(range(2, 12))


def test_clients_share_what_may_be_under_way():
    rig = HubRig(arriving_bytes=MAX_WINDOW * 2)
    windows = []
    for number in range(1, 201):
        rig.client(number)
        windows.append(rig.told[number][-1].window)

    assert windows[:3] == [MAX_WINDOW, MAX_WINDOW, MAX_WINDOW * 2 // 3]
    assert windows[-1] == MAX_WINDOW * 2 // MOST_WINDOWS
    assert sum(windows) < 12 * MAX_WINDOW


def test_without_a_bound_there_is_no_window():
    rig = HubRig()
    rig.client(1)

    assert rig.told[1][-1].window == 0


def test_a_large_submit_is_acknowledged_at_once():
    rig = HubRig()
    rig.client(1)
    rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [Run(ONE, 0, [1], [b"x" * LARGE])])))

    assert isinstance(rig.told[1][-1], m.Accepted)
