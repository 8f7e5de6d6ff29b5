"""The client machine: every task reaches a ledger, every outcome arrives once, over any number of hubs."""

import pytest

from taskmesh.client.machine.submission import MAX_SUBMIT
from taskmesh.core import events as ev
from taskmesh.core.actions import Accept, Resolve
from taskmesh.core.events import Queued, Requested
from taskmesh.hub.machine import cancellations
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run, Spec
from taskmesh.messages.schedules import Declaration, Timing
from tests.core.client_rig import Client, delivery
from tests.core.rig import EPOCH, HubRig, number_of, spec


class TestOpening:
    def test_hello_until_welcome(self, client):
        client.after(2.5)
        assert [hello.first for hello in client.of(m.ClientHello)] == [1, 1, 1]
        client.welcome()
        client.after(2.5)

        assert len(client.of(m.ClientHello)) == 3

    def test_what_was_submitted_before_goes_then(self, client):
        client.submit(1, 2)
        client.submit(3)
        assert client.submitted() == []
        client.welcome()

        assert client.submitted() == [[1, 2], [3]]
        assert {submit.epoch for submit in client.of(m.Submit)} == {1}

    def test_as_much_at_a_time_as_the_hub_takes(self, client):
        """A Submit larger than the hub's cap was refused for ever."""
        client.submit(*range(1, 31))
        client.welcome(max_tasks=20)

        assert [len(seqs) for seqs in client.submitted()] == [10, 10, 10]
        assert [submit.number for submit in client.of(m.Submit)] == [1, 2, 3]
        client.sent.clear()
        client.submit(*range(31, 46))
        assert [len(seqs) for seqs in client.submitted()] == [10, 5]

    def test_refused_it_says_why_and_stops(self, client):
        client.hear(m.ClientRefused("too old"))
        client.after(5.0)

        assert client.told == [m.ClientRefused("too old")]
        assert len(client.of(m.ClientHello)) == 1


class TestAcceptance:
    def test_what_comes_with_outcomes_is_accepted_before_they_are_there(self, session):
        """A future has `accepted` when its `result()` is had."""
        session.submit(1)
        deliver = delivery(1, 1)
        deliver.accepted = 1
        session.machine.take(ev.FromHubToClient(deliver), session.now)

        actions = [type(action) for action in session.machine.act(session.now)]
        assert actions.index(Accept) < actions.index(Resolve)


class TestSubmitting:
    def test_large_batches_are_cut(self, session):
        session.submit(*range(1, 2 * MAX_SUBMIT + 2))

        assert [len(seqs) for seqs in session.submitted()] == [MAX_SUBMIT, MAX_SUBMIT, 1]

    def test_large_payloads_are_cut_by_their_bytes(self, session):
        payloads = [bytes(3 << 20), b"x", bytes(20 << 20), bytes(6 << 20), bytes(1 << 20)]
        session.tell(Queued([(1, spec())], [Run(1, 0, [1, 2, 3, 4, 5], payloads)]))

        assert session.submitted() == [[1, 2], [3], [4, 5]]

    def test_a_large_submit_is_given_time(self, session):
        session.tell(Queued([(1, spec())], [Run(1, 0, [1], [bytes(200_000)])]))
        session.hear(m.Accepted(0))
        for _ in range(3):
            session.after(1.1)
            session.hear(m.Accepted(0))
        assert session.submitted() == [[1]]
        session.after(1.1)

        assert session.submitted() == [[1], [1]]

    def test_acknowledgements_are_cumulative(self, session):
        for seq in (1, 2, 3):
            session.submit(seq)
        session.hear(m.Accepted(2))

        assert session.accepted == [1, 2]
        assert session.machine.under_way == 1

    def test_what_is_not_acknowledged_is_sent_again_behind_a_hello(self, session):
        """The Hello states which Submit comes first: the one that stated it before may have been lost."""
        session.submit(1)
        session.submit(2)
        session.hear(m.Accepted(1))
        session.sent.clear()
        session.after(2.1)

        assert session.of(m.ClientHello)[0].first == 2
        assert session.submitted() == [[2]]

    def test_who_is_refused_has_nothing_to_do_any_more(self, session):
        """Its deadline was that of the beat before, for ever: a loop that never slept."""
        session.hear(m.ClientRefused("no such key"))
        session.sent.clear()
        session.tell(ev.Tick())

        assert session.machine.deadline > session.now + 3600
        assert session.sent == []

    def test_a_busy_hub_is_asked_again_when_it_said(self, session):
        session.submit(1)
        session.sent.clear()
        session.hear(m.Busy(1, 0.05))
        session.after(0.04)
        assert session.submitted() == []
        session.after(0.02)

        assert session.submitted() == [[1]]
        assert not session.of(m.ClientHello)

    def test_a_hub_without_room_is_asked_again_for_all_that_it_has_not_answered(self, session):
        """A large question may have found no room: it is asked again, too."""
        session.submit(1)
        session.tell(Requested(m.Query(5, "status")))
        session.sent.clear()
        session.hear(m.Busy(0, 0.5))
        session.after(0.3)
        session.hear(m.Busy(0, 0.5))
        session.after(0.4)
        assert session.sent == [], "the later of two waits holds"
        session.after(0.11)

        assert session.submitted() == [[1]]
        assert [query.number for query in session.of(m.Query)] == [5]
        session.hear(m.Accepted(1))
        session.sent.clear()
        session.after(1.9)
        assert {type(message) for message in session.sent} <= {m.ClientBeat}, "once"

    def test_a_spec_that_the_hub_lacks_is_sent(self, session):
        session.submit(1)
        session.hear(m.Accepted(1))
        session.tell(Queued([], [Run(number_of(spec()), 0, [2], [b"x"])]))
        session.hear(m.NeedSpec(2, [number_of(spec())]))

        assert session.of(m.Submit)[-1].specs == [(number_of(spec()), spec())]

    def test_asked_again_while_that_is_under_way_it_says_nothing(self, session):
        """Each repetition was answered with everything, each answer was repeated: a storm (seed 106)."""
        session.submit(1)
        session.tell(Queued([], [Run(number_of(spec()), 0, [2], [b"x"])]))
        for _ in range(5):
            session.hear(m.NeedSpec(2, [number_of(spec())]))

        assert session.submitted() == [[1], [2], [2]]

    def test_tasks_whose_spec_is_gone_were_given_up(self, session):
        """Cancelled before the hub had their spec: each asked the other for it for ever (seed 106)."""
        gone = [Run(number, 0, [number], [b"x"]) for number in (1111, 2222)]
        session.tell(Queued([(1111, spec("there"))], gone))
        session.submit(3)
        session.hear(m.NeedSpec(1, [1111, 2222]))

        assert session.submitted()[-2:] == [[1111], [3]]

    def test_cancellations_are_numbered_too(self, session):
        session.tell(Requested(m.CancelTasks([1, 2])))

        (submit,) = session.of(m.Submit)
        assert (submit.number, submit.cancels) == (1, [1, 2])
        assert not session.of(m.CancelTasks)

    def test_so_are_those_of_what_has_not_started(self, session):
        session.tell(Requested(m.CancelTasks([], [1, 2])))

        (submit,) = session.of(m.Submit)
        assert (submit.number, submit.cancels, submit.unstarted) == (1, [], [1, 2])

    def test_before_the_first_welcome_they_wait_behind_their_tasks(self, client):
        client.submit(1, 2, 3)
        client.tell(Requested(m.CancelTasks([3], [1, 2])))
        client.welcome(max_tasks=4)

        assert client.submitted() == [[1, 2], [3], []]
        assert (client.of(m.Submit)[-1].cancels, client.of(m.Submit)[-1].unstarted) == ([3], [1, 2])

    def test_and_go_ahead_of_what_waits_for_room(self, session):
        """They may be what makes the room."""
        session.submit(1)
        session.tell(Requested(m.CancelTasks([9])))

        assert session.of(m.CancelTasks)[0].seqs == [9]
        assert session.of(m.Submit)[-1].cancels == [9]


class TestHubLost:
    def test_silence_means_dialling_again(self, session):
        session.submit(1)
        session.hear(m.Accepted(1))
        session.after(3.1)

        assert session.reconnects == 1
        assert len(session.of(m.ClientHello)) == 1
        assert len(session.of(m.ClientBeat)) >= 2

    def test_beats_state_the_epoch(self, session):
        session.submit(1)
        session.after(1.1)

        assert session.of(m.ClientBeat)[0].epoch == 1

    def test_the_same_hub_goes_on_where_it_was(self, session):
        session.submit(1)
        session.hear(m.Accepted(1))
        session.submit(2)
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(known=True)

        assert session.submitted() == [[2]]

    def test_another_one_gets_everything_unresolved_again(self, session):
        session.submit(1, 2)
        session.hear(m.Accepted(1))
        session.hear(delivery(1, 1))
        session.submit(3)
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(epoch=2)

        assert sorted(seq for seqs in session.submitted() for seq in seqs) == [2, 3]
        assert all(run.again for submit in session.of(m.Submit) for run in submit.runs)
        assert session.of(m.ClientHello)[-1].first == session.of(m.Submit)[0].number

    def test_even_when_it_says_that_it_knows_the_client(self, session):
        session.submit(1)
        session.hear(m.Accepted(1))
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(epoch=2, known=True)

        assert session.submitted() == [[1]]

    @pytest.mark.parametrize("pending", [(), (1,)])
    def test_it_says_when_all_that_it_waits_for_is_submitted_again(self, session, pending):
        for seq in pending:
            session.submit(seq)
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(epoch=2)

        assert [submit.whole for submit in session.of(m.Submit)] == [False] * len(pending) + [True]

    def test_the_hub_that_it_begins_with_has_nothing_else_of_it(self, client):
        client.submit(1)
        client.welcome()

        assert [submit.whole for submit in client.of(m.Submit)] == [False]

    def test_what_may_run_only_once_is_lost(self, session):
        session.submit(1, one=spec("once", acks="early"))
        session.submit(2)
        session.tell(ev.LinkLost())
        session.sent.clear()
        session.welcome(epoch=2)

        assert session.resolved == [1]
        assert session.submitted() == [[2]]
        assert session.of(m.Submit)[-1].cancels == [1], "nor is its number waited for"

    def test_what_was_never_sent_is_not(self, session):
        session.submit(1, one=spec("once", acks="early"))
        session.tell(ev.LinkLost())
        session.submit(2, one=spec("once", acks="early"))
        session.sent.clear()
        session.welcome(epoch=2)

        assert session.resolved == [1]
        assert session.submitted() == [[2]]

    def test_a_late_answer_to_a_hello_of_an_earlier_link_says_nothing(self, session):
        """A hub that stood still answered it as if it had never heard of the client, whose tasks it runs."""
        session.submit(1, one=spec("once", acks="early"))
        session.tell(ev.LinkLost())
        [latest] = [hello.link for hello in session.of(m.ClientHello)]
        session.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, link=latest - 1, session=2))
        assert not session.resolved
        assert not session.machine.open

        session.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, link=latest, session=1))
        assert session.machine.open
        assert not session.resolved

    def test_a_hub_that_had_forgotten_it_counts_from_one_again(self):
        """Seed 1995: late messages let the hub know it again."""
        client = Client()
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=1))
        client.submit(1, 2, 3)
        client.hear(delivery(1, 1))
        client.tell(ev.LinkLost())
        client.sent.clear()
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=2))
        assert client.submitted() == [[2, 3]]
        client.hear(delivery(1, 2))
        assert client.resolved == [1, 2]

    def test_a_session_that_the_hub_goes_on_with_counts_on(self):
        client = Client()
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=1))
        client.submit(1, 2)
        client.hear(m.Accepted(1))
        client.hear(delivery(1, 1))
        client.tell(ev.LinkLost())
        client.sent.clear()
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=1))
        assert client.submitted() == []
        client.hear(delivery(1, 1))
        client.hear(delivery(2, 2))
        assert client.resolved == [1, 2]

    def test_a_newer_session_in_the_middle_of_one_is_looked_into(self):
        client = Client()
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=1))
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=2))
        assert not client.machine.open

    def test_a_welcome_of_another_hub_in_the_middle_of_a_session_is_looked_into(self, session):
        """Seed 370: a client slept through two hubs, and an old Hello of its introduced it to the third."""
        session.welcome(epoch=3, known=True)

        assert session.reconnects == 1
        assert not session.machine.open

    def test_a_hub_that_does_not_know_it_is_greeted(self, session):
        session.hear(m.ClientRefused())

        assert session.reconnects == 1
        assert session.of(m.ClientHello)


class TestQuestions:
    def test_a_query_is_asked_again_over_a_new_link(self, session):
        session.tell(Requested(m.Query(1, "status")))
        session.tell(ev.LinkLost())
        session.welcome(known=True)
        assert len(session.of(m.Query)) == 2

        session.hear(m.Answer(1, {}))
        session.tell(ev.LinkLost())
        session.welcome(known=True)
        assert len(session.of(m.Query)) == 2
        assert session.told == [m.Answer(1, {})]

    def test_a_command_is_not(self, session):
        """It came after its opposite, and undid it (seed 1107)."""
        session.tell(Requested(m.Command(1, "pause", "p")))
        session.tell(ev.LinkLost())
        session.welcome(known=True)

        assert len(session.of(m.Command)) == 1

    @pytest.mark.parametrize("in_code", [True, False])
    def test_a_new_hub_is_told_of_schedules_that_code_declares(self, session, in_code):
        declaration = Declaration("n", Timing(period=1.0), Spec(b"f", "f"), b"", in_code=in_code)
        session.tell(Requested(m.PutSchedule(1, declaration)))
        session.hear(m.Answer(1, None))
        session.tell(ev.LinkLost())
        session.welcome(epoch=10)

        assert session.of(m.PutSchedule)[1:] == [m.PutSchedule(0, declaration)] * in_code

    def test_before_the_first_link_both_wait_for_it(self, client):
        client.tell(Requested(m.Query(1, "status")))
        client.tell(Requested(m.Command(2, "pause", "p")))
        client.welcome()
        assert [len(client.of(kind)) for kind in (m.Query, m.Command)] == [1, 1]

    def test_but_not_for_ever(self, client):
        client.tell(Requested(m.Command(2, "drain", "p")))
        client.after(6.0)
        client.welcome()

        assert not client.of(m.Command)


class TestHubThatTakesLess:
    """Its limit is known from its welcome on: what is above fails here, the rest is sent."""

    def large(self, client: Client, seqs: list[int], sizes: list[int], one: Spec | None = None) -> None:
        one = one or spec()
        client.pending.update(dict.fromkeys(seqs, one))
        run = Run(number_of(one), 0, seqs, [bytes(size) for size in sizes])
        client.tell(Queued([(number_of(one), one)], [run]))

    def welcome(self, client: Client, limit: int) -> None:
        client.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, limit))

    @pytest.mark.parametrize("before", [True, False])
    def test_a_call_above_it_fails_with_both_limits(self, before):
        client = Client(max_payload=1000)
        if before:
            self.large(client, [1, 2, 3], [10, 500, 20])
        self.welcome(client, 100)
        if not before:
            self.large(client, [1, 2, 3], [10, 500, 20])

        assert client.submitted()[0] == [1, 3]
        (failure,) = client.failed
        assert (failure.seq, failure.type_name) == (2, "taskmesh.errors.TooLarge")
        assert "500 bytes" in failure.text
        assert "max_payload = 100 " in failure.text

    @pytest.mark.parametrize("before", [True, False])
    def test_the_hub_is_told_which_numbers_never_come(self, before):
        """It keeps finished tasks as intervals of their numbers: each that is missing costs it one more."""
        rig, client = HubRig(), Client(max_payload=1000)
        rig.client(7)
        seqs = range(1, 100, 3)
        for seq in seqs if before else ():
            self.large(client, [seq, seq + 1, seq + 2], [10, 500, 20])
        client.hear(m.ClientWelcome(EPOCH, 10_000, 1 << 30, 1.0, 100))
        for seq in () if before else seqs:
            self.large(client, [seq, seq + 1, seq + 2], [10, 500, 20])
        for submit in client.of(m.Submit):
            rig.tell(ev.FromClient(7, submit))
        cancellations.cancel_all(rig.hub.state, 7)
        rig.tell(ev.Tick())

        assert rig.hub.state.ledger.account(7).finished.pieces == 1
        assert not rig.tasks

    @pytest.mark.parametrize("limit", [0, 1000, 5000])
    def test_one_that_takes_as_much_gets_everything(self, limit):
        client = Client(max_payload=1000)
        self.welcome(client, limit)
        self.large(client, [1, 2], [10, 500])

        assert client.submitted() == [[1, 2]]
        assert not client.failed

    def test_what_was_under_way_to_a_hub_that_is_gone_is_not_held_against_the_next_ones_limit(self):
        """Each ended twice: an at-most-once task was told to be too large, and then lost."""
        client = Client(max_payload=1000)
        self.welcome(client, 0)
        self.large(client, [1], [500], spec("once", acks="early"))
        client.tell(ev.LinkLost())
        client.hear(m.ClientWelcome(2, 10_000, 1 << 30, 1.0, 100))

        assert [(failure.seq, failure.kind) for failure in client.failed] == [(1, "lost")]
