"""A client on a slow link: it waits longer instead of sending more."""

import pytest

from taskmesh.core.events import LinkCut, Queued
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from tests.core.rig import number_of, spec


@pytest.mark.parametrize(
    ("size", "copies"), [(100_000, 3), (1, 9)], ids=["after 3, 7 and 13 seconds", "every 2 seconds"]
)
def test_a_repetition_waits_twice_as_long_for_its_bytes(session, size, copies):
    """Copies of what is large and slowly on its way would fill the link."""
    one = spec()
    session.tell(Queued([(number_of(one), one)], [Run(number_of(one), 0, [1], [bytes(size)])]))
    session.sent.clear()
    for _ in range(39):
        session.after(0.5)
        session.hear(m.Notice([]))

    assert len(session.submitted()) == copies


def test_links_that_do_not_last_are_waited_for_longer(session):
    """A slow one carries a large message, and nothing else meanwhile."""
    session.submit(1)
    session.hear(m.Accepted(1))
    session.after(3.1)
    session.welcome(known=True)
    session.after(5.9)
    assert session.reconnects == 1

    session.after(0.2)
    assert session.reconnects == 2


def test_until_a_link_has_lasted(session):
    session.submit(1)
    session.hear(m.Accepted(1))
    session.after(3.1)
    session.welcome(known=True)
    for _ in range(30):
        session.after(1.0)
        session.hear(m.Notice([]))
    session.after(6.1)
    session.welcome(known=True)
    session.after(3.1)

    assert session.reconnects == 3


def test_what_was_on_a_link_that_is_cut_goes_again_at_once(session):
    session.submit(1)
    session.submit(2)
    session.hear(m.Accepted(1))
    session.sent.clear()
    session.tell(LinkCut())

    assert session.of(m.ClientHello)[0].first == 2
    assert session.submitted() == [[2]]
    assert session.reconnects == 0


def test_the_hubs_silence_is_borne_for_as_long_as_what_is_under_way_may_take(session):
    one = spec()
    session.tell(Queued([(number_of(one), one)], [Run(number_of(one), 0, [1], [bytes(1_000_000)])]))
    session.after(12.9)
    assert session.reconnects == 0

    session.after(0.2)
    assert session.reconnects == 1
