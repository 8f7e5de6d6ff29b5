"""What a client does with the hub's deliveries: each outcome once, and the hub is told that it has come."""

from taskmesh.core import events as ev
from taskmesh.core.events import Requested
from taskmesh.link.link import ACK_DELAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun
from tests.core.client_rig import delivery


class TestOutcomes:
    def test_not_before_the_welcome(self, session):
        """They come again then, under the numbers of the new link's session."""
        session.tell(ev.LinkLost())
        before = session.reconnects
        session.hear(delivery(1, 1))
        session.hear(delivery(1, 1, epoch=2))

        assert session.resolved == []
        assert session.reconnects == before

    def test_each_once_and_acknowledged_each_time(self, session):
        session.hear(delivery(1, 1))
        session.after(ACK_DELAY)
        session.hear(delivery(1, 1))

        assert session.resolved == [1]
        assert [ack.number for ack in session.of(m.ResultAck)] == [1, 1]

    def test_beyond_a_missing_one_they_are_taken_when_they_are_repeated(self, session):
        session.hear(delivery(2, 2))
        session.after(ACK_DELAY)
        assert (session.of(m.ResultAck), session.resolved) == ([], [])
        session.hear(delivery(1, 1))
        session.after(ACK_DELAY)
        assert session.of(m.ResultAck)[-1].number == 1
        session.hear(delivery(2, 2))
        session.after(ACK_DELAY)

        assert session.resolved == [1, 2]
        assert session.of(m.ResultAck)[-1].number == 2

    def test_their_acknowledgement_goes_with_what_is_submitted_next(self, session):
        """By itself it would wake two threads here and two at the hub."""
        session.hear(delivery(1, 1))
        assert session.sent == []
        session.submit(2)

        session.after(4 * ACK_DELAY)

        (submit,) = session.sent
        assert (submit.epoch, submit.delivered) == (1, 1)

    def test_or_ahead_of_a_goodbye(self, session):
        """What the hub keeps for who has gone counts against his key's sessions."""
        session.hear(delivery(1, 1))
        session.tell(Requested(m.ClientBye(cancel=False)))

        assert [type(message) for message in session.sent] == [m.ResultAck, m.ClientBye]

    def test_when_nothing_else_is_said_it_goes_alone_and_soon(self, session):
        session.hear(delivery(1, 1))
        session.hear(delivery(2, 2))
        assert session.machine.deadline == session.now + ACK_DELAY
        session.after(ACK_DELAY)

        assert session.sent == [m.ResultAck(1, 2)]

    def test_before_the_credit_runs_low_it_goes_at_once(self, session):
        size = session.machine.config.credit // 8
        session.hear(m.Deliver(1, 1, [DoneRun(1, 7, 1, "p/0", [1], [b"r" * size], 0.1)], []))

        assert session.sent == [m.ResultAck(1, 1)]

    def test_over_a_lost_link_it_is_not_sent(self, session):
        session.hear(delivery(1, 1))
        session.tell(ev.LinkLost())
        session.after(ACK_DELAY)

        assert session.of(m.ResultAck) == []

    def test_of_another_epoch_they_mean_that_the_session_is_over(self, session):
        session.hear(delivery(1, 1, epoch=3))

        assert session.resolved == []
        assert session.reconnects == 1
        assert session.of(m.ClientHello)
