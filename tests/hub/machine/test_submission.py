"""What clients ask of the hub: in within the caps, once, in order; and what becomes of those who leave."""

import pytest

from taskmesh.core.events import ClientGone, FromClient
from taskmesh.link.link import ACK_DELAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run
from tests.core.rig import EPOCH, ONE, HubRig, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def said(rig: HubRig, kind: type, client: int = 1) -> list:
    return [message for message in rig.told[client] if isinstance(message, kind)]


def accepted(rig: HubRig) -> list[int]:
    rig.after(ACK_DELAY)
    return [message.number for message in said(rig, m.Accepted)]


def submit(rig: HubRig, number: int, seq: int, **more: object) -> None:
    fields = {"specs": [(ONE, spec())], "runs": [Run(ONE, 0, [seq], [b"x"])], **more}
    rig.tell(FromClient(1, m.Submit(number, **fields)))


class TestSubmit:
    def test_it_is_acknowledged(self, rig):
        rig.submit(1, 3)

        assert accepted(rig)[-1] == 1
        assert rig.hub.snapshot()["accepted"] == 3

    def test_repeated_it_is_acknowledged_and_changes_nothing(self, rig):
        submit(rig, 1, 1)
        assert accepted(rig) == [1]
        submit(rig, 1, 1)

        assert accepted(rig) == [1, 1]
        assert rig.hub.snapshot()["accepted"] == 1

    def test_out_of_turn_it_is_left_for_later(self, rig):
        submit(rig, 2, 2)
        assert rig.hub.snapshot()["accepted"] == 0

        submit(rig, 1, 1)
        submit(rig, 2, 2)
        assert accepted(rig)[-1] == 2

    def test_meant_for_another_epoch_it_is_refused(self, rig):
        """Seed 370: a client that had missed a restart was never told."""
        submit(rig, 1, 1, epoch=EPOCH - 1)

        assert said(rig, m.ClientRefused)[-1].reason == ""
        assert rig.hub.snapshot()["accepted"] == 0

    def test_without_its_spec_it_is_asked_for(self, rig):
        submit(rig, 1, 1, specs=[])
        assert said(rig, m.NeedSpec)[-1].specs == [ONE]

        submit(rig, 1, 1)
        assert accepted(rig)[-1] == 1

    def test_of_a_client_that_never_said_hello_it_is_refused(self, rig):
        rig.tell(FromClient(5, m.Submit(1, [], [])))

        assert said(rig, m.ClientRefused, 5)[-1].reason == ""

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("key", ["", "k"])
    @pytest.mark.parametrize("batches", [[[1], [1]], [[1, 2], [2, 3]], [[2, 1], [1, 2]]])
    def test_numbers_in_two_runs_of_a_message_are_one_task_each(self, rig, batches, key, again):
        """A stranger's; what has a number twice in one run does not even decode."""
        runs = [Run(ONE, 0, seqs, [b"x"] * len(seqs), key, again) for seqs in batches]
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], runs)))
        submit(rig, 2, 1)

        assert accepted(rig)[-1] == 2
        assert rig.hub.state.ledger.accepted == len(rig.tasks)


class TestAcknowledging:
    """By itself it would wake two threads at the hub and two of the client's."""

    def heard(self, rig: HubRig) -> list[type]:
        return [type(message) for message in rig.told[1]]

    def test_it_goes_with_the_outcome(self, rig):
        session = rig.join()
        submit(rig, 1, 1)
        rig.told[1].clear()
        rig.report(session, done=((1, 1, 1),))
        rig.after(4 * ACK_DELAY)

        (deliver,) = rig.told[1]
        assert deliver.accepted == 1

    def test_or_alone_and_soon(self, rig):
        rig.told[1].clear()
        submit(rig, 1, 1)
        assert rig.told[1] == []
        assert rig.hub.deadline <= rig.now + ACK_DELAY
        rig.after(ACK_DELAY)

        assert rig.told[1] == [m.Accepted(1)]

    def test_with_a_second_submit_at_once(self, rig):
        """Of two on their way a client waits for the answer, and gathers what is submitted meanwhile."""
        rig.told[1].clear()
        submit(rig, 1, 1)
        submit(rig, 2, 2)

        assert rig.told[1] == [m.Accepted(2)]

    def test_and_ahead_of_a_refusal(self):
        rig = HubRig(client_max_tasks=1)
        rig.client()
        rig.told[1].clear()
        submit(rig, 1, 1)
        submit(rig, 2, 2)

        assert self.heard(rig) == [m.Accepted, m.Busy]

    def test_an_embedded_client_gets_no_message_for_it_either(self):
        rig = HubRig()
        rig.client(credit=0)
        session = rig.join()
        rig.told[1].clear()
        submit(rig, 1, 1)
        rig.report(session, done=((1, 1, 1),))

        (deliver,) = rig.told[1]
        assert deliver.accepted == 1

    def test_who_has_gone_is_told_nothing(self, rig):
        submit(rig, 1, 1)
        rig.tell(FromClient(1, m.ClientBye(cancel=True)))
        rig.told[1].clear()
        rig.after(ACK_DELAY)

        assert rig.told[1] == []
        assert not rig.hub.state.due.acks


class TestCaps:
    def test_beyond_the_clients_tasks_it_is_told_to_come_again(self):
        rig = HubRig(client_max_tasks=3)
        session = rig.join(slots=4)
        rig.client()
        submit(rig, 1, 1, runs=[Run(ONE, 0, [1, 2, 3], [b""] * 3)])
        submit(rig, 2, 4)
        assert said(rig, m.Busy)[-1].number == 2

        rig.report(session, done=((1, 1, 1),))
        submit(rig, 2, 4)
        assert accepted(rig)[-1] == 2

    def test_beyond_the_ledgers_bytes_too(self):
        rig = HubRig(max_bytes=10)
        rig.client()
        submit(rig, 1, 1, runs=[Run(ONE, 0, [1], [b"x" * 10])])
        submit(rig, 2, 2)

        assert said(rig, m.Busy)[-1].number == 2

    def test_one_that_is_larger_than_the_cap_is_taken_when_nothing_else_is_there(self):
        rig = HubRig(max_bytes=10)
        rig.client()
        submit(rig, 1, 1, runs=[Run(ONE, 0, [1], [b"x" * 50])])

        assert accepted(rig)[-1] == 1

    def test_the_welcome_says_how_many_tasks_fit(self):
        rig = HubRig(max_tasks=70, client_max_tasks=100)
        rig.client()

        assert said(rig, m.ClientWelcome)[-1].max_tasks == 70


class TestCancel:
    def test_a_queued_task_is_never_sent(self, rig):
        rig.submit(1, 1)
        rig.cancel(1, 1)
        session = rig.join()

        assert rig.held[session] == []
        assert rig.state(1, 1) == "finished"

    def test_of_a_task_on_a_pool_the_pool_is_told(self, rig):
        rig.join()
        rig.submit(1, 1)
        rig.cancel(1, 1)

        assert [message.tasks for _, message in rig.published if isinstance(message, m.Cancel)] == [
            [Held(1, 1, [1])]
        ]

    def test_of_many_tasks_at_once_it_is_told_in_one_message(self, rig):
        rig.join(slots=9)
        rig.submit(1, 9)
        rig.cancel(1, *range(1, 8))

        (cancel,) = [message for _, message in rig.published if isinstance(message, m.Cancel)]
        assert cancel.tasks == [Held(1, 1, [1, 2, 3, 4, 5, 6, 7])]

    def test_its_result_comes_too_late(self, rig):
        session = rig.join()
        rig.submit(1, 1)
        rig.cancel(1, 1)
        rig.report(session, done=((1, 1, 1),))

        assert rig.outcomes() == {}

    def test_it_takes_its_turn_behind_the_submit(self, rig):
        """Sent on its own it could overtake the task, which then ran though its future was cancelled."""
        rig.tell(FromClient(1, m.Submit(2, [], [], [1])))
        submit(rig, 1, 1)
        assert rig.state(1, 1) == "QUEUED"
        rig.tell(FromClient(1, m.Submit(2, [], [], [1])))

        assert rig.state(1, 1) == "finished"


class TestHello:
    def test_a_client_that_comes_back_gets_what_it_has_not_acknowledged(self, rig):
        session = rig.join()
        rig.submit(1, 1)
        rig.report(session, done=((1, 1, 1),))
        rig.told[1].clear()
        rig.tell(FromClient(1, m.ClientHello(1, EPOCH, first=2, link=7)))

        assert said(rig, m.ClientWelcome)[0].session == 1, "it is the same"
        assert said(rig, m.ClientWelcome)[0].link == 7, "it says which Hello it answers"
        assert rig.outcomes() == {1: "done"}

    def test_it_states_which_submit_comes_first(self, rig):
        rig.tell(FromClient(1, m.ClientHello(1, EPOCH, first=8)))
        submit(rig, 8, 1)

        assert accepted(rig)[-1] == 8

    def test_a_beat_for_an_earlier_hub_is_answered_with_say_hello(self, rig):
        rig.tell(FromClient(1, m.ClientBeat(EPOCH - 1)))

        assert said(rig, m.ClientRefused)

    def test_another_version_is_told_so(self, rig):
        rig.tell(FromClient(6, m.ClientHello(6, 0, protocol=99)))

        assert "install the same taskmesh" in said(rig, m.ClientRefused, 6)[0].reason


class TestLeaving:
    def test_with_its_tasks(self, rig):
        rig.submit(1, 2)
        rig.tell(FromClient(1, m.ClientBye(cancel=True)))

        assert not rig.tasks
        assert 1 not in rig.hub.state.clients

    def test_without_them_but_for_what_is_bound_to_it(self, rig):
        rig.submit(1, 1)
        rig.submit(1, 1, spec("bound", on_client_loss="cancel"))
        rig.tell(FromClient(1, m.ClientBye(cancel=False)))

        assert [rig.state(1, seq) for seq in (1, 2)] == ["QUEUED", "finished"]

    def test_what_others_wait_for_is_on_the_books_of_who_left_and_not_of_who_comes_back(self, rig):
        session = rig.join(slots=1)
        rig.submit(1, 1, key="k")
        rig.client(2)
        rig.submit(2, 1, key="k")
        rig.tell(FromClient(1, m.ClientBye(cancel=True)))
        rig.client(1)
        rig.report(session, done=((1, 1, 1),))

        assert rig.outcomes(2) == {1: "done"}
        assert rig.hub.state.ledger.account(1).size == 0

    def test_silence_cancels_what_is_bound_and_it_hears_of_it(self, rig):
        rig.submit(1, 1, spec("bound", on_client_loss="cancel"))
        rig.after(60.5)
        assert rig.state(1, 1) == "finished"

        rig.tell(FromClient(1, m.ClientHello(1, EPOCH, first=2)))
        assert rig.outcomes() == {1: "cancelled"}

    def test_silence_over_a_link_that_stands_costs_nothing_until_it_is_gone(self, rig):
        """Whoever computes and lets no other thread in is there still."""
        rig.submit(1, 1, spec("bound", on_client_loss="cancel"))
        rig.after(4.5)
        before = len(rig.told[1])
        rig.after(1.0)
        assert rig.state(1, 1) == "QUEUED"
        assert len(rig.told[1]) > before, "should its link be gone, this is how the hub learns it"

        rig.tell(ClientGone(1))
        rig.after(0.5)
        assert rig.state(1, 1) == "finished"

    def test_who_has_only_stood_still_has_its_tasks(self, rig):
        rig.submit(1, 1, spec("bound", on_client_loss="cancel"))
        rig.after(50.0)
        rig.tell(FromClient(1, m.ClientBeat(EPOCH)))
        rig.after(50.0)

        assert rig.state(1, 1) == "QUEUED"
        assert rig.outcomes() == {}

    def test_a_broken_link_does_too_after_the_same_time(self, rig):
        """It was taken for absent already, and its tasks ran on."""
        rig.submit(1, 1, spec("bound", on_client_loss="cancel"))
        rig.tell(ClientGone(1))
        assert rig.state(1, 1) == "QUEUED"
        rig.after(5.5)

        assert rig.state(1, 1) == "finished"

    def test_an_embedded_client_that_is_gone_is_gone(self, rig):
        rig.client(2, credit=0)
        rig.submit(2, 1)
        rig.tell(ClientGone(2))

        assert rig.state(2, 1) == "finished"
        assert 2 not in rig.hub.state.clients

    def test_an_absent_clients_results_are_kept_for_a_while(self):
        rig = HubRig(result_ttl=20.0)
        session = rig.join()
        rig.client()
        rig.submit(1, 1)
        rig.tell(ClientGone(1))
        rig.report(session, done=((1, 1, 1),))
        rig.after(15.0)
        assert 1 in rig.hub.state.clients
        rig.after(6.0)

        assert 1 not in rig.hub.state.clients

    def test_or_while_there_is_room_for_them(self):
        rig = HubRig(result_bytes=50)
        session = rig.join(slots=4)
        rig.client()
        rig.submit(1, 3)
        rig.tell(ClientGone(1))
        rig.report(session, done=tuple(rig.held[session]))
        rig.after(0.5)

        assert 1 not in rig.hub.state.clients
