"""Charges to a task's budgets outlive the hub: its client and its pools bring them to the next one."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import FromClient
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Charged, Held, Progress, Run, Spec
from tests.core.client_rig import Client, delivery
from tests.core.rig import EPOCH, HubRig, PoolRig, number_of, spec
from tests.simulation.simulation import World

TASK = (1, 1)


def told(rig: HubRig, client: int = 1) -> list[Charged]:
    """What a hub has said that tasks have used up."""
    deliveries = [message for message in rig.told[client] if isinstance(message, m.Deliver)]
    return [charged for delivery in deliveries for charged in delivery.charged]


def ends(rig: HubRig) -> list[tuple[str, int]]:
    """Bad ends that client 1 was told of."""
    deliveries = [message for message in rig.told[1] if isinstance(message, m.Deliver)]
    return [(failure.kind, failure.attempt) for delivery in deliveries for failure in delivery.failed]


def again(rig: HubRig, one: Spec, *charged: Charged, seqs: tuple[int, ...] = (1,)) -> None:
    """A client that knew an earlier hub submits its tasks once more."""
    rig.client()
    run = Run(number_of(one), 0, list(seqs), [b"x"] * len(seqs), again=True)
    specs = [(number_of(one), one)]
    rig.tell(FromClient(1, m.Submit(1, [], [], charged=list(charged))))
    rig.tell(FromClient(1, m.Submit(2, specs, [run], whole=True)))


class TestAHubTellsItsClients:
    @pytest.mark.parametrize(
        ("kind", "charged"),
        [
            ("exception", Charged([1], 1, 1, errors=1)),
            ("crash", Charged([1], 1, 1, crashes=1)),
            ("oom", Charged([1], 1, 1, ooms=1)),
            ("lost", Charged([1], 1)),
        ],
    )
    def test_when_an_attempt_has_ended_badly_and_another_follows(self, kind, charged):
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1, spec(max_retries=2))
        rig.fail(session, (1, 1, 1), kind)

        assert told(rig) == [charged]

    def test_when_a_pool_is_gone_that_may_have_begun_them_together(self):
        rig = HubRig()
        session = rig.join(slots=3)
        rig.client()
        rig.submit(1, 3)
        rig.tell(ev.LinksLost(session))
        rig.after(1.5)

        assert told(rig) == [Charged([3, 2, 1], 1, losses=1)]

    def test_when_a_pool_has_died_with_them_and_when_it_turns_out_that_it_has_not(self):
        rig = HubRig(lease=3.0)
        rig.join(slots=3)
        rig.client()
        rig.submit(1, 1)
        rig.after(3.5)
        rig.tell(FromClient(1, m.ClientBeat()))
        rig.hello(number=2)
        rig.after(0.5)

        assert told(rig)[0] == Charged([1], 1, losses=1)
        assert told(rig)[-1] == Charged([1], 1)

    def test_not_what_was_handed_back_unstarted(self):
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1)
        rig.report(session, returned=((1, 1, 1),))

        assert told(rig) == []

    def test_not_an_embedded_one_which_dies_with_it(self):
        rig = HubRig()
        session = rig.join()
        rig.client(credit=0)
        rig.submit(1, 1, spec(max_retries=2))
        rig.fail(session, (1, 1, 1))

        assert told(rig) == []

    def test_once_more_when_it_was_not_acknowledged(self):
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1, spec(max_retries=2))
        rig.fail(session, (1, 1, 1))
        rig.tell(FromClient(1, m.ClientHello(1, EPOCH, first=2, credit=1 << 20)))

        assert told(rig) == [Charged([1], 1, 1, errors=1)] * 2


class TestAClientBringsItAlong:
    def restarted(self, *news: object, one: Spec | None = None) -> Client:
        client = Client()
        client.welcome(1)
        client.submit(1, 2, one=one or spec())
        client.hear(m.Accepted(1))
        for message in news:
            client.hear(message)
        client.after(2.0)
        client.hear(m.ClientRefused())
        client.welcome(2)
        return client

    @staticmethod
    def said(client: Client) -> list[Charged]:
        return [charged for submit in client.of(m.Submit) for charged in submit.charged]

    def test_to_the_hub_that_comes_next_before_the_tasks(self):
        charged = Charged([2], 2, 1, errors=1)
        client = self.restarted(m.Deliver(1, 1, [], [], charged=[charged]))

        assert self.said(client) == [charged]
        submits = [submit for submit in client.of(m.Submit) if submit.epoch == 2]
        assert [bool(submit.charged) for submit in submits] == [True, False, False]
        assert [seq for run in submits[1].runs for seq in run.seqs] == [1, 2]

    def test_that_an_attempt_runs(self):
        client = self.restarted(m.Notice([Progress(7, 2, 3, 0, -1)]))

        assert self.said(client) == [Charged([2], 3)]

    def test_the_most_of_what_it_has_heard(self):
        old = m.Deliver(1, 1, [], [], charged=[Charged([2], 1, 1, errors=1)])
        client = self.restarted(m.Notice([Progress(7, 2, 2, 0, -1)]), old)

        assert self.said(client) == [Charged([2], 2, 1, errors=1)]

    def test_nothing_of_most_tasks_and_of_those_that_have_ended(self):
        charged = m.Deliver(1, 1, [], [], charged=[Charged([1], 1, 1, errors=1)])
        client = self.restarted(charged, delivery(2, 1))

        assert self.said(client) == []

    def test_how_long_ago_a_task_that_may_expire_was_accepted_first(self):
        client = self.restarted(one=spec(expires=10.0))
        (charged,) = self.said(client)
        assert (charged.seqs, charged.begun) == ([1, 2], 0)
        assert charged.age == pytest.approx(2.0, abs=0.1)

        client.hear(m.Accepted(10))
        client.after(3.0)
        client.hear(m.ClientRefused())
        client.welcome(3)
        assert self.said(client)[-1].age == pytest.approx(5.0, abs=0.1), "the first acceptance counts"


class TestTheNextHubGoesOn:
    def test_with_the_number_of_attempts(self):
        rig, one = HubRig(lease=1.0), spec(max_retries=2)
        again(rig, one, Charged([1], 2))
        rig.after(1.2)
        session = rig.join()
        (key,) = rig.held[session]
        rig.fail(session, key, "argument")

        assert ends(rig) == [("argument", 3)]

    def test_with_retries(self):
        rig, one = HubRig(lease=1.0), spec(max_retries=2, backoff=0.0)
        again(rig, one, Charged([1], 2, 2, errors=2))
        rig.after(1.2)
        session = rig.join()
        rig.fail(session, rig.held[session][0])

        assert ends(rig) == [("exception", 3)], "the third and last"

    @pytest.mark.parametrize("kind", ["crash", "oom"])
    def test_with_crashes(self, kind):
        rig, one = HubRig(lease=1.0), spec()
        again(rig, one, Charged([1], 2, 2, **{{"crash": "crashes", "oom": "ooms"}[kind]: 2}))
        rig.after(1.2)
        session = rig.join()
        rig.fail(session, rig.held[session][0], kind)

        assert ends(rig) == [(kind, 3)]

    @pytest.mark.parametrize("field", ["begun", "errors", "crashes", "ooms", "losses"])
    def test_and_is_not_harmed_by_a_client_that_makes_numbers_up(self, field):
        rig = HubRig(lease=1.0)
        again(rig, spec(), Charged([1], **{"begun": 1, "failed": 1, field: 1 << 40}))
        rig.after(1.2)
        session = rig.join()
        rig.report(session, done=tuple(rig.held[session]))

        assert rig.outcomes() == {1: "done"}

    def test_with_pools_that_died_of_it(self):
        rig, one = HubRig(lease=1.0, pool_loss_limit=5), spec()
        rig.tell(FromClient(1, m.ClientHello(1, 0)))
        again(rig, one, Charged([1], 4, losses=4), seqs=(1, 2, 3))
        rig.after(1.2)
        session = rig.join(slots=3)
        assert rig.held[session] in ([(1, 1, 5)], [(1, 2, 1), (1, 3, 1)]), "a suspect goes alone"
        while (1, 1, 5) not in rig.held[session]:
            rig.report(session, done=tuple(rig.held[session]))
        rig.after(11.0)

        assert "WAITING" not in rig.state(1, 1)
        rig.tell(FromClient(1, m.ClientBeat()))
        assert rig.outcomes()[1] == "crash", "the fifth"

    def test_with_the_time_that_it_may_take_to_start(self):
        rig = HubRig()
        again(rig, spec(expires=10.0), Charged([1], age=9.0))
        rig.after(0.5)
        assert ends(rig) == []

        rig.after(0.8)
        assert ends(rig) == [("expired", 0)]

    def test_what_has_failed_before_has_started_and_expires_no_more(self):
        rig = HubRig()
        again(rig, spec(expires=10.0, max_retries=2), Charged([1], 1, 1, errors=1, age=9.0))
        rig.after(3.0)

        assert ends(rig) == []

    def test_with_the_highest_number_that_anybody_brings(self):
        rig = HubRig(lease=1.0)
        again(rig, spec(), Charged([1], 1))
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 4, [1], returns=1)])
        rig.fail(session, (1, 1, 4), "argument")

        assert ends(rig) == [("argument", 3)], "its client had not heard of the third"

    def test_an_attempt_whose_failure_was_charged_is_not_taken_over(self):
        rig = HubRig(lease=1.0)
        again(rig, spec(max_retries=2), Charged([1], 1, 1, errors=1))
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.fail(session, (1, 1, 1))

        assert rig.hub.state.ledger.tasks[1 << 64 | 1].errors == 1, "once for one failure"

    def test_a_failure_that_came_before_its_client_counts(self):
        rig, one = HubRig(), spec(max_retries=1, backoff=0.0)
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
        rig.fail(session, (1, 1, 1), retryable=True)
        again(rig, one)
        rig.after(0.1)
        assert rig.held[session] == [(1, 1, 2)], "at once: nothing is waited for"
        rig.fail(session, (1, 1, 2))

        assert ends(rig) == [("exception", 2)]

    def test_two_failures_that_came_before_it_count_both(self):
        rig = HubRig()
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 2, [1]), Held(1, 1, [1])])
        for attempt in (1, 2):
            rig.fail(session, (1, 1, attempt), retryable=True)
        again(rig, spec(max_retries=1))

        assert ends(rig) == [("exception", 2)]

    def test_for_all_who_share_a_key(self):
        rig, one = HubRig(), spec(max_retries=3)
        for client, errors in ((1, 1), (2, 3)):
            rig.client(client)
            run = Run(number_of(one), 0, [1], [b"x"], "K", again=True)
            charged = [Charged([1], errors, errors, errors=errors)]
            rig.tell(FromClient(client, m.Submit(1, [], [], charged=charged)))
            rig.tell(FromClient(client, m.Submit(2, [(number_of(one), one)], [run])))

        assert rig.hub.state.ledger.tasks[1 << 64 | 1].errors == 3

    def test_what_a_client_says_of_tasks_that_never_come_is_forgotten(self):
        rig = HubRig()
        again(rig, spec(), Charged([1, 2, 3], 1))

        assert not rig.hub.state.ledger.accounts[1].charged


class TestNumbersThatAPoolKnows:
    """A hub that dies may have known of the end of an attempt, and not have told its client."""

    def test_it_names_what_has_ended_there(self):
        rig = PoolRig(slots=1)
        rig.push(1, 2)
        rig.finish(0)
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, rig.reports()[-1].number)))
        rig.lose_lane()

        hello = rig.of(m.Hello)[-1]
        assert [held.seqs for held in hello.ended] == [[1]]
        assert [held.seqs for held in hello.inventory] == [[2]]

    @pytest.mark.parametrize("first", ["client", "pool"])
    def test_the_next_hub_gives_them_to_no_other_attempt(self, first):
        rig = HubRig(lease=1.0)
        if first == "client":
            again(rig, spec())
        session = rig.join(epoch=EPOCH - 1, ended=[Held(1, 2, [1], returns=1)])
        if first == "pool":
            again(rig, spec())
        rig.after(0.8)
        rig.beat(session)
        rig.after(0.4)
        rig.fail(session, rig.held[session][0], "argument")

        assert ends(rig) == [("argument", 2)]

    def test_so_it_does_with_what_a_pool_held_that_is_gone(self):
        rig = HubRig(lease=1.0)
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 2, [1])])
        rig.tell(ev.LinksLost(session))
        rig.after(1.2)
        again(rig, spec())
        session = rig.join("q")
        rig.fail(session, rig.held[session][0], "argument")

        assert ends(rig) == [("argument", 3)]

    def test_an_older_attempt_that_turns_up_later_does_not_lower_them(self):
        rig = HubRig(lease=1.0)
        again(rig, spec(), Charged([1], 3))
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])

        assert rig.hub.state.lanes[session].stale == [Held(1, 1, [1])]
        rig.after(0.8)
        rig.beat(session)
        rig.after(0.4)
        rig.fail(session, rig.held[session][0], "argument")
        assert ends(rig) == [("argument", 4)]


class TestHandBacksOfAnotherHub:
    """Seed 500008360: hand-backs of this hub were taken off the number of an attempt of another."""

    def test_do_not_count_for_an_attempt_that_is_taken_over(self):
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
