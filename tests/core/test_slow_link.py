"""A client on a slow link: it waits longer instead of sending more."""

import pytest

from taskmesh.wire import messages as m
from tests.core.client_rig import Client


@pytest.fixture
def session() -> Client:
    client = Client()
    client.welcome()
    client.sent.clear()
    return client


def test_each_repetition_comes_after_twice_the_wait(session):
    """Copies of what is slowly on its way would fill the link."""
    session.submit(1)
    session.sent.clear()
    for _ in range(40):
        session.after(0.5)
        session.hear(m.Notice([]))

    assert len(session.submitted()) == 3, "after 2, 6 and 14 seconds"


def test_links_that_do_not_last_are_waited_for_longer(session):
    """A slow one carries a large message, and nothing else meanwhile."""
    session.after(3.1)
    session.welcome(known=True)
    session.after(5.9)
    assert session.reconnects == 1

    session.after(0.2)
    assert session.reconnects == 2


def test_until_a_link_has_lasted(session):
    session.after(3.1)
    session.welcome(known=True)
    for _ in range(30):
        session.after(1.0)
        session.hear(m.Notice([]))
    session.after(6.1)
    session.welcome(known=True)
    session.after(3.1)

    assert session.reconnects == 3
