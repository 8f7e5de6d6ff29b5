"""A consumer's side of a sink: its numbers, what it says again, and when it begins anew."""

import pytest
from msgspec.structs import replace

from taskmesh.client.machine.sinks import ALIVE, FRESH, RESEND_AFTER
from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun
from tests.core.client_rig import Client


@pytest.fixture
def client() -> Client:
    client = Client()
    client.welcome()
    return client


def reports(client: Client) -> list[m.SinkReport]:
    """Return its reports since the last call."""
    found = [replace(message, sent=0.0) for message in client.sent if isinstance(message, m.SinkReport)]
    client.sent.clear()
    return found


def deliver(number: int, generation: int = 1, told: int = 1) -> m.SinkDeliver:
    run = DoneRun(1, 7, 1, "p/0", [number], [b"r"], 0.1)
    return m.SinkDeliver("s", generation, number, [run], ["f"], reports=told)


def opened(client: Client) -> None:
    client.tell(ev.SinkOpened("s", 100))
    reports(client)


def taken(client: Client) -> list[int]:
    return [message.number for message in client.told if isinstance(message, m.SinkDeliver)]


def pass_time(client: Client, seconds: float) -> None:
    end = client.now + seconds
    while client.now < end:
        client.now += 0.25
        client.hear(m.Accepted(0))
        client.tell(ev.Tick())


def test_it_opens_with_a_generation_and_its_credit(client):
    client.tell(ev.SinkOpened("s", 100))

    assert reports(client) == [m.SinkReport("s", 1, 1, 0, 100)]


def test_a_delivery_is_passed_on_once_and_its_arrival_reported(client):
    opened(client)

    client.hear(deliver(1))
    client.hear(deliver(1))
    client.hear(deliver(3))

    assert taken(client) == [1]
    assert [report.received for report in reports(client)] == [1, 1, 1]


def test_acknowledgements_are_said_again_until_the_hub_has_them(client):
    opened(client)
    client.hear(m.SinkReportAck("s", 1, 1))
    client.hear(deliver(1))
    client.tell(ev.SinkAcked("s", [(7, 1), (7, 5)]))
    acked = reports(client)[-1]
    assert acked.acked == [(7, 1), (7, 5)]

    pass_time(client, RESEND_AFTER + 0.5)
    assert acked.acked in [report.acked for report in reports(client)]
    client.hear(m.SinkReportAck("s", 1, acked.number))
    pass_time(client, RESEND_AFTER + 0.5)
    assert {report.number for report in reports(client)} == {0}


def test_it_says_that_it_lives(client):
    opened(client)
    client.hear(m.SinkReportAck("s", 1, 1))

    pass_time(client, 3 * ALIVE)

    assert [(report.number, report.acked) for report in reports(client)] == [(0, [])] * 3


@pytest.mark.parametrize("cause", ["a new link", "the hub's word"])
def test_it_begins_anew(client, cause):
    opened(client)
    client.hear(deliver(1))

    if cause == "a new link":
        client.tell(ev.LinkLost())
        client.welcome(known=True)
    else:
        client.hear(m.SinkReportAck("s", 1, 0, known=False))

    assert reports(client)[-1] == m.SinkReport("s", 2, 1, 0, 100)
    client.hear(deliver(2))
    assert taken(client) == [1], "of the former generation"
    client.hear(deliver(1, generation=2))
    assert taken(client) == [1, 1]
    client.tell(ev.SinkAcked("s", [(7, 1)]))
    assert reports(client)[-1] == m.SinkReport("s", 2, 2, 1, 100, [(7, 1)])


def test_closed_it_is_over_when_the_hub_has_heard_of_it(client):
    opened(client)
    client.hear(m.SinkReportAck("s", 1, 1))
    client.tell(ev.SinkClosed("s"))
    (last,) = reports(client)
    assert last.closed

    client.hear(deliver(1))
    assert taken(client) == []
    client.hear(m.SinkReportAck("s", 1, last.number))
    assert client.told[-1] == m.SinkReportAck("s", 1, last.number)
    pass_time(client, 3 * ALIVE)
    assert reports(client) == []


def test_without_a_link_it_opens_and_closes_with_the_next_one(client):
    client.tell(ev.LinkLost())
    client.tell(ev.SinkOpened("s", 100))
    client.tell(ev.SinkOpened("t", 100))
    client.tell(ev.SinkClosed("t"))
    assert [message.sink for message in client.told if isinstance(message, m.SinkReportAck)] == ["t"]
    reports(client)

    client.welcome(known=True)

    assert [(report.sink, report.number) for report in reports(client)] == [("s", 1)]


def test_opened_again_it_has_a_generation_of_its_own(client):
    """The hub may still have the consumer of before, since nobody has told it that the link was gone."""
    opened(client)
    client.tell(ev.LinkLost())
    client.tell(ev.SinkClosed("s"))
    client.tell(ev.SinkOpened("s", 100))
    reports(client)

    client.welcome(known=True)

    assert [(report.generation, report.number) for report in reports(client)] == [(2, 1)]


def test_who_takes_from_a_sink_does_not_rest(client):
    """It waits for outcomes: a hub that is gone is to be noticed."""
    opened(client)
    client.hear(m.SinkReportAck("s", 1, 1))
    beats = 0
    for _ in range(5):
        client.now += 1.0
        client.tell(ev.Tick())
        beats += sum(isinstance(message, m.ClientBeat) for message in client.sent)
        client.sent.clear()
        client.hear(m.Accepted(0))

    assert beats == 5


def test_what_is_here_is_given_out_for_a_while_after_each_report(client):
    client.tell(ev.SinkOpened("s", 100))
    assert client.renewed[-1] == act.Renew("s", 1, client.now + FRESH)

    client.now += ALIVE
    client.hear(deliver(1))
    assert client.renewed[-1] == act.Renew("s", 1, client.now + FRESH)


@pytest.mark.parametrize("known", [True, False])
def test_one_that_stood_still_asks_before_it_gives_out_what_is_here(client, known):
    opened(client)
    before = client.now
    client.renewed.clear()
    client.now += 20.0
    client.hear(deliver(1))
    client.hear(m.SinkReportAck("s", 1, 1, echo=before))
    client.tell(ev.SinkAcked("s", [(7, 1)]))
    assert client.renewed == [], "all of that had been said before"

    client.now += 0.1
    client.hear(m.SinkReportAck("s", 1, 1, known, echo=client.now - 0.1 if known else 0.0))
    (renewed,) = client.renewed
    assert (renewed.generation, renewed.until > client.now) == (1 if known else 2, True)
