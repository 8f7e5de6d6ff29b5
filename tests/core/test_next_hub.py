"""The next hub: it knows the age of a task and what pools hold of it, and counts all else anew."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import FromClient
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run, Spec
from tests.core.client_rig import Client, delivery
from tests.core.rig import EPOCH, HubRig, PoolRig, number_of, spec
from tests.simulation.simulation import World


def ends(rig: HubRig) -> list[tuple[str, int]]:
    """Bad ends that client 1 was told of."""
    deliveries = [message for message in rig.told[1] if isinstance(message, m.Deliver)]
    return [(failure.kind, failure.attempt) for delivery in deliveries for failure in delivery.failed]


def again(rig: HubRig, one: Spec, *, age: float = 0.0) -> None:
    """A client that knew an earlier hub submits its task once more."""
    rig.client()
    run = Run(number_of(one), 0, [1], [b"x"], again=True, age=age)
    rig.tell(FromClient(1, m.Submit(1, [(number_of(one), one)], [run], whole=True)))


class TestTheTimeToStartIn:
    def restarted(self, *news: object) -> Client:
        client = Client()
        client.welcome(1)
        client.submit(1, 2, one=spec(expires=10.0))
        client.hear(m.Accepted(1))
        client.after(1.0)
        client.submit(3, one=spec(expires=10.0))
        client.hear(m.Accepted(2))
        for message in news:
            client.hear(message)
        client.after(2.0)
        client.hear(m.ClientRefused())
        client.welcome(2)
        return client

    @staticmethod
    def said(client: Client, epoch: int) -> dict[int, float]:
        """Ages that the client has stated to the hub of this epoch, by counter."""
        submits = [submit for submit in client.of(m.Submit) if submit.epoch == epoch]
        return {seq: run.age for submit in submits for run in submit.runs for seq in run.seqs}

    def test_counts_from_the_acceptance_of_each_task_and_by_the_first_hub(self):
        client = self.restarted()
        assert self.said(client, 2) == pytest.approx({1: 3.0, 2: 3.0, 3: 2.0}, abs=0.1)

        client.hear(m.Accepted(10))
        client.after(3.0)
        client.hear(m.ClientRefused())
        client.welcome(3)
        assert self.said(client, 3) == pytest.approx({1: 6.0, 2: 6.0, 3: 5.0}, abs=0.1)

    def test_is_not_kept_of_tasks_that_have_ended(self):
        client = self.restarted(delivery(1, 2))

        assert set(self.said(client, 2)) == set(client.machine._ages.since) == {1, 3}

    def test_is_not_stated_of_tasks_that_never_expire(self):
        client = Client()
        client.welcome(1)
        client.submit(1)
        client.hear(m.Accepted(1))
        client.after(2.0)
        client.hear(m.ClientRefused())
        client.welcome(2)

        assert self.said(client, 2) == {1: 0.0}

    def test_goes_on_at_the_next_hub(self):
        rig = HubRig()
        again(rig, spec(expires=10.0), age=9.0)
        rig.after(0.5)
        assert ends(rig) == []

        rig.after(0.8)
        assert ends(rig) == [("expired", 0)]


class TestFailuresReportedBeforeTheirClientAsks:
    def test_one_counts(self):
        rig, one = HubRig(), spec(max_retries=1, backoff=0.0)
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.fail(session, (1, 1, 1), retryable=True)
        again(rig, one)
        rig.after(0.1)
        assert rig.held[session] == [(1, 1, 2)], "at once: nothing is waited for"
        rig.fail(session, (1, 1, 2))

        assert ends(rig) == [("exception", 2)]

    def test_two_count_both(self):
        rig = HubRig()
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 2, [1]), Held(1, 1, [1])])
        for attempt in (1, 2):
            rig.fail(session, (1, 1, attempt), retryable=True)
        again(rig, spec(max_retries=1))

        assert ends(rig) == [("exception", 2)]


class TestNumbersOfAttemptsThatPoolsHold:
    def test_an_older_attempt_that_turns_up_later_does_not_lower_them(self):
        rig = HubRig(lease=1.0)
        again(rig, spec())
        rig.after(1.2)
        first = rig.join("q")
        for attempt in (1, 2):
            rig.fail(first, (1, 1, attempt), "lost")
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])

        assert rig.hub.state.lanes[session].stale == [Held(1, 1, [1])]
        rig.fail(first, (1, 1, 3), "argument")
        assert ends(rig) == [("argument", 3)]

    def test_hand_backs_of_this_hub_do_not_count_for_an_attempt_of_another(self):
        rig = HubRig(lease=1.0)
        again(rig, spec())
        rig.after(1.2)
        first = rig.join()
        rig.beat(first, state="paused")
        rig.report(first, returned=((1, 1, 1),))
        session = rig.join("q", epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.beat(session, "q", running=((1, 1, 1),))

        (notice,) = (message for message in rig.told[1] if isinstance(message, m.Notice))
        assert [progress.attempt for progress in notice.progress] == [1]

    def test_nor_in_the_seed_that_found_it(self):
        World(500008360).run()

    def test_a_pool_lists_what_it_was_told_to_drop_and_drops_it_once_more_if_it_is_told_to(self):
        """A hub that comes after gives no other attempt its number, and may have it run after all."""
        rig = PoolRig(slots=1)
        rig.push(1, 2)
        rig.tell(ev.FromHub(m.Cancel(EPOCH, 1, [Held(1, 1, [1, 2])])))
        rig.lose_lane()

        assert sorted(held.seqs for held in rig.of(m.Hello)[-1].inventory) == [[1], [2]]
        rig.welcome(epoch=EPOCH + 1, stale=((1, 1, 1),))
        assert rig.pool.scheduler.cancelled == {(1, 1, 1)}

    def test_a_pool_keeps_what_it_was_told_to_drop_until_a_hub_has_answered_the_hello_that_lists_it(self):
        """A hub that lacks the cancellation waits for all that the pool has listed."""
        rig = PoolRig(slots=1)
        rig.push(1)
        rig.push(2, one=spec(hard_timeout=5.0))  # alone in a slot: it stays in the backlog
        rig.tell(ev.FromHub(m.Cancel(EPOCH, 1, [Held(1, 1, [2])])))
        rig.lose_lane()
        rig.finish(0)
        assert rig.handed[0] == [], "the slot is free, and no hub has answered"

        rig.welcome(epoch=EPOCH + 1)
        assert rig.handed[0] == [(1, 2, 1)]

    def test_a_pool_reports_a_cancelled_task_whose_slot_ends_before_a_hub_has_answered_the_hello(self):
        rig = PoolRig(slots=1)
        rig.push(1)
        rig.tell(ev.FromHub(m.Cancel(EPOCH, 1, [Held(1, 1, [1])])))
        rig.lose_lane()
        rig.exited(0)

        rig.welcome(epoch=EPOCH + 1)
        (report,) = rig.of(m.Results)
        assert [(failed.seq, failed.kind) for failed in report.failed] == [(1, "crash")]
