"""Messages that name what is another key's change nothing: lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.ids import house_of, owned, plain, task_id, text_of
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import (
    FIRING,
    PROMISE,
    PROMISE_NAME,
    SINK_VALUE,
    SINK_VALUE_NAME,
    DoneRun,
    Held,
    LogLine,
    Progress,
    Run,
    Spec,
)
from taskmesh.messages.schedules import Declaration, Timing
from tests.core.rig import EPOCH, HubRig, number_of, spec

ANN, MALLORY = "client:ann", "client:mallory"
POOL, FALSE_POOL = "worker:pool", "worker:mallory"
TOKEN, OTHER = b"t" * 16, b"o" * 16


def hello(rig: HubRig, client: int, user: str) -> None:
    rig.tell(ev.FromClient(client, m.ClientHello(client, 0), user))


def pool(rig: HubRig, user: str = POOL, token: bytes = TOKEN, **fields: object) -> None:
    says = {"pool": "p", "instance": 1, "number": 1, "slots": 1, "queues": ["default"], "tags": []}
    says |= {"epoch": EPOCH, "session": 0, "inventory": [], **fields}
    rig.tell(ev.FromPool(m.Hello(**says), user, token))


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    hello(rig, 1, ANN)
    return rig


def refused(rig: HubRig) -> list[object]:
    return [record.fields["error"] for record in rig.records if record.kind == "message.refused"]


class TestSessions:
    def test_another_key_is_not_let_in_and_the_owner_is_told_nothing(self, rig):
        rig.submit(1)
        told = len(rig.told[1])

        hello(rig, 1, MALLORY)

        assert rig.told[1][told:] == []
        assert rig.hub.state.clients[1].user == ANN
        assert refused(rig) == ["this client session belongs to another key"]

    def test_nothing_that_another_key_says_for_it_counts(self, rig):
        (seq,) = rig.submit(1)

        rig.tell(ev.FromClient(1, m.CancelTasks([seq]), MALLORY))
        rig.tell(ev.FromClient(1, m.ClientBye(), MALLORY))

        assert rig.state(1, seq) == "QUEUED"

    def test_it_is_another_s_while_tasks_of_it_are_here(self, rig):
        rig.submit(1)
        rig.tell(ev.FromClient(1, m.ClientBye(cancel=False), ANN))
        assert 1 not in rig.hub.state.clients

        hello(rig, 1, MALLORY)
        assert 1 not in rig.hub.state.clients

    def test_the_next_hub_has_the_owner_from_the_journal(self):
        rig = HubRig(journaled=True)
        rig.tell(ev.JournalRead({}, 0.0))
        hello(rig, 1, ANN)
        rig.submit(1)
        rig.write()
        after = HubRig(journaled=True)
        after.tell(ev.JournalRead(rig.journal, 0.0))

        hello(after, 1, MALLORY)
        assert not after.hub.state.clients[1].linked
        hello(after, 1, ANN)
        assert after.hub.state.clients[1].linked

    @pytest.mark.parametrize("user", [MALLORY, ""])
    def test_nobody_is_the_hub_s_own_client(self, rig, user):
        house = house_of(EPOCH)  # also before its first task
        hello(rig, house, user)

        assert house not in rig.hub.state.clients
        assert rig.told[house] == []


class TestSpecs:
    def test_a_number_that_is_not_its_spec_s_is_not_taken(self, rig):
        real, false = spec("f"), spec("f", sink="loot")
        rig.tell(ev.FromClient(1, m.Submit(1, [(number_of(real), false)], [])))
        run = Run(number_of(real), 0, [1], [b"x"])
        rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(real), false)], [run])))
        assert rig.told[1][-1] == m.NeedSpec(2, [number_of(real)])

        rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(real), real)], [run])))
        assert rig.hub.state.specs[number_of(real)].spec == real


class TestPools:
    def test_the_session_of_another_key_or_process_is_not_taken_over(self, rig):
        pool(rig)
        session = rig.session()
        rig.beat(session)
        rig.submit(1)
        held = [Held(1, 1, [1])]

        pool(rig, FALSE_POOL, OTHER, number=2, inventory=held)
        pool(rig, POOL, OTHER, number=2, inventory=held)

        assert rig.session() == session
        assert rig.state(1, 1) == "SENT"
        assert refused(rig) == ["the process 1 of pool p is another's"] * 2

    def test_another_key_does_not_get_the_name_while_its_session_lives(self, rig):
        pool(rig)
        session = rig.session()
        rig.beat(session)
        rig.tell(ev.LinksLost(session))

        pool(rig, FALSE_POOL, OTHER, instance=2)
        assert rig.session() == session
        pool(rig, POOL, OTHER, instance=2)
        assert rig.session() != session, "a process that was started in its place, with its key"

    @pytest.mark.parametrize("epoch", [EPOCH, EPOCH - 1])
    @pytest.mark.parametrize("queues", [["default"], ["other"]])
    def test_of_what_waits_it_may_list_what_its_process_was_sent(self, rig, queues, epoch):
        """Of an earlier hub nobody knows that: whoever could be sent a task is believed to have it."""
        (seq,) = rig.submit(1)

        pool(rig, pool="false", queues=queues, inventory=[Held(1, 1, [seq])], epoch=epoch)

        is_believed = epoch != EPOCH and queues == ["default"]
        lane = rig.hub.state.lanes[rig.session("false")]
        assert bool(lane.stale) is not is_believed

    def test_a_process_that_comes_back_after_its_lease_goes_on(self, rig):
        pool(rig)
        session = rig.session()
        rig.beat(session)
        (seq,) = rig.submit(1)
        rig.after(rig.config.lease + 1)
        assert rig.state(1, seq) == "QUEUED"

        pool(rig, number=2, inventory=[Held(1, 1, [seq])])

        assert rig.state(1, seq) == "SENT"


class TestSchedules:
    def put(self, rig: HubRig, user: str, seconds: float) -> m.Answer:
        client = {ANN: 1, MALLORY: 2}[user]
        one = Declaration("nightly", Timing(period=seconds), spec(kind=FIRING), b"call")
        rig.tell(ev.FromClient(client, m.PutSchedule(7, one)))
        return rig.told[client][-1]

    def test_another_s_is_neither_changed_nor_removed(self, rig):
        hello(rig, 2, MALLORY)
        assert not self.put(rig, ANN, 60.0).error
        assert "belongs to client:ann" in self.put(rig, MALLORY, 1.0).error
        rig.tell(ev.FromClient(2, m.DropSchedule(8, "nightly")))
        assert "belongs to client:ann" in rig.told[2][-1].error

        assert rig.hub.state.schedules.records["nightly"].declaration.timing.period == 60.0
        assert not self.put(rig, ANN, 30.0).error


KEPT = spec(keep=60.0)


@pytest.fixture
def both(rig: HubRig) -> HubRig:
    """Ann is client 1, Mallory client 2; a pool of ann's runs tasks."""
    hello(rig, 2, MALLORY)
    pool(rig, slots=4)
    rig.beat(rig.session())
    return rig


def outcomes(rig: HubRig, client: int) -> list[DoneRun]:
    """All successes that a client was told of, or took from sinks."""
    return [
        run
        for message in rig.told[client]
        if isinstance(message, m.Deliver | m.SinkDeliver)
        for run in message.done
    ]


def run_all(rig: HubRig) -> None:
    rig.report(rig.session(), done=tuple(rig.held[rig.session()]))


def take(rig: HubRig, client: int, sink: str) -> None:
    rig.tell(ev.FromClient(client, m.SinkReport(sink, 1, 1, 0, 1 << 20)))


class TestNames:
    @pytest.mark.parametrize(("key", "meets"), [("k", False), ("shared:k", True)])
    @pytest.mark.parametrize("ended", [False, True])
    def test_a_key_finds_the_tasks_of_its_user(self, both, key, meets, ended):
        both.submit(1, one=KEPT, key=key)
        if ended:
            run_all(both)
        both.submit(2, one=KEPT, key=key)

        assert len(both.pushed) == (1 if meets else 2)

    def test_an_outcome_that_is_kept_is_its_user_s_after_a_restart_too(self):
        rig = HubRig(journaled=True)
        rig.tell(ev.JournalRead({}, 0.0))
        hello(rig, 1, ANN)
        pool(rig)
        rig.beat(rig.session())
        rig.submit(1, one=KEPT, key="k")
        rig.write()
        run_all(rig)
        rig.write()
        after = HubRig(journaled=True)
        after.tell(ev.JournalRead(rig.journal, 0.0))
        for client, user in ((3, ANN), (2, MALLORY)):
            hello(after, client, user)
            hello(after, client, user)
            after.submit(client, one=KEPT, key="k")
            after.write()

        assert [len(outcomes(after, client)) for client in (3, 2)] == [1, 0]

    @pytest.mark.parametrize(("key", "meets"), [("k", False), ("shared:k", True)])
    @pytest.mark.parametrize("first", [False, True])
    def test_a_promise_is_fulfilled_by_its_user(self, both, key, meets, first):
        promise = Spec(b"", PROMISE_NAME, kind=PROMISE, keep=60.0)
        fulfil = ev.FromClient(2, m.Fulfil(5, key, b"loot", 60.0))
        if first:
            both.tell(fulfil)
        both.submit(1, one=promise, key=key, size=0)
        if not first:
            both.tell(fulfil)

        assert [run.payloads for run in outcomes(both, 1)] == ([[b"loot"]] if meets else [])

    @pytest.mark.parametrize(("sink", "meets"), [("s", False), ("shared:s", True)])
    def test_a_sink_is_emptied_by_its_user(self, both, sink, meets):
        both.submit(1, one=spec(sink=sink))
        run_all(both)
        take(both, 2, sink)
        assert bool(outcomes(both, 2)) is meets

        take(both, 1, sink)
        assert bool(outcomes(both, 1)) is not meets
        told = [one for one in both.told[1] if isinstance(one, m.SinkDeliver | m.SinkReportAck)]
        assert {one.sink for one in told} == {sink}

    def test_a_full_sink_holds_back_the_tasks_of_its_user_alone(self):
        rig = HubRig(result_bytes=100)
        for client, user in ((1, ANN), (2, MALLORY)):
            hello(rig, client, user)
        pool(rig, slots=4)
        rig.beat(rig.session())
        rig.submit(2, 1, one=spec(sink="s"))
        run_all(rig)
        rig.submit(2, 3, one=spec(sink="s"))
        pushed = len(rig.pushed)

        rig.submit(1, 1, one=spec(sink="s"))
        assert [run.client for message in rig.pushed[pushed:] for run in message.runs].count(1) == 1

    @pytest.mark.parametrize("kind", ["results", "values"])
    def test_one_that_holds_more_than_its_share_holds_back_none_of_another_user(self, kind):
        """Nobody takes what one user has left; each outcome of the other is large, too."""
        rig = HubRig(result_bytes=10)
        for client, user in ((1, ANN), (2, MALLORY)):
            hello(rig, client, user)
        pool(rig, slots=1)
        rig.beat(rig.session())
        value = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink="s")
        one = spec(sink="s") if kind == "results" else value
        rig.submit(2, 1, one=one)
        run_all(rig)
        assert rig.hub.state.sinks.large == {MALLORY: owned(MALLORY, "s")}

        take(rig, 1, "s")
        seqs = rig.submit(1, 3, one=one)
        for number, seq in enumerate(seqs, 2):
            run_all(rig)
            rig.tell(ev.FromClient(1, m.SinkReport("s", 1, number, number - 1, 1 << 20, [(1, seq)])))
        assert rig.outcomes(1) == dict.fromkeys(seqs, "done")

    def test_firings_are_their_user_s(self, both):
        firing = spec(kind=FIRING, sink="s")
        both.tell(ev.Clock(0.0))
        both.tell(ev.FromClient(1, m.PutSchedule(7, Declaration("n", Timing(period=1.0), firing, b"call"))))
        both.after(1.5)
        run_all(both)
        take(both, 2, "s")
        assert not outcomes(both, 2)

        take(both, 1, "s")
        assert outcomes(both, 1)


class TestTasksOfTasks:
    """With a pool's key a task speaks for the user whose it is, and for nobody else."""

    def child(self, rig: HubRig, parent: int, user: str = POOL) -> None:
        hello = m.ClientHello(9, 0, slot=f"p/7@{parent:016x}")
        rig.tell(ev.FromClient(9, hello, user))
        rig.tell(ev.FromClient(9, hello, user))

    def ended(self, rig: HubRig, parent: int) -> bool:
        """Tell if a task in a slot gets what is in a sink of ann's."""
        rig.submit(1, one=spec(sink="s"))
        run_all(rig)
        rig.submit(1, one=spec("parent"))
        self.child(rig, parent)
        take(rig, 9, "s")
        return bool(outcomes(rig, 9))

    def test_it_takes_from_the_sinks_of_its_user(self, both):
        assert self.ended(both, parent=1)

    def test_of_nobody_whose_task_it_is_not(self, both):
        assert not self.ended(both, parent=2)
        assert not both.told[9][-1].known

    def test_nor_with_the_key_of_a_pool_that_has_no_task(self, both):
        both.submit(1, one=spec("parent"))
        self.child(both, 1, FALSE_POOL)
        take(both, 9, "s")

        assert not both.told[9][-1].known

    def test_its_promise_is_its_user_s(self, both):
        both.submit(1, one=spec("parent"))
        self.child(both, 1)
        promise = Spec(b"", PROMISE_NAME, kind=PROMISE, keep=60.0, on_client_loss="cancel")
        run = Run(number_of(promise), 0, [1], [b""], "k")
        both.tell(ev.FromClient(9, m.Submit(1, [(number_of(promise), promise)], [run])))

        both.tell(ev.FromClient(2, m.Fulfil(5, "k", b"loot", 60.0)))
        assert not outcomes(both, 9)
        both.tell(ev.FromClient(1, m.Fulfil(5, "k", b"yes", 60.0)))
        assert [one.payloads for one in outcomes(both, 9)] == [[b"yes"]]

    def test_a_slot_that_another_pool_says_is_gone_goes_on(self, both):
        both.submit(1, one=spec("parent"))
        self.child(both, 1)
        pool(both, FALSE_POOL, OTHER, pool="q")
        both.tell(ev.FromPool(m.SlotGone(EPOCH, both.session("q"), 7), FALSE_POOL, OTHER))
        assert 9 in both.hub.state.clients

        both.tell(ev.FromPool(m.SlotGone(EPOCH, both.session(), 7), POOL, TOKEN))
        assert 9 not in both.hub.state.clients


class TestViews:
    """Errors, output and keys are told to the user whose task it was, and to operators."""

    def ask(self, rig: HubRig, client: int, what: str, argument: str = "") -> m.Answer:
        rig.tell(ev.FromClient(client, m.Query(77, what, argument)))
        return rig.told[client][-1]

    @pytest.fixture
    def letter(self, both: HubRig) -> str:
        hello(both, 3, "operator:olga")
        (seq,) = both.submit(1, one=spec(detach=True), key="secret key")
        both.fail(both.session(), (1, seq, 1), text="secret text", retryable=False)
        return text_of(task_id(1, seq))

    @pytest.mark.parametrize("what", ["dead", "dead-letter", "task"])
    def test_others_are_told_nothing_that_it_said(self, both, letter, what):
        argument = "" if what == "dead" else letter
        ann, mallory, olga = (self.ask(both, client, what, argument) for client in (1, 2, 3))

        assert "secret" not in repr(mallory)
        assert "secret" in repr(olga)
        assert "secret" in repr(ann)

    def test_nor_in_events_and_warnings(self, both):
        hello(both, 3, "operator:olga")
        pool(both, pool="q", slots=4)
        both.beat(both.session("q"), "q")
        (seq,) = both.submit(1)
        [held] = [key for session in (both.session(), both.session("q")) for key in both.held[session]]
        where = both.session() if held in both.held[both.session()] else both.session("q")
        both.fail(where, held, "function", type_name="ImportError", text="secret text")

        for what in ("events", "status"):
            assert "secret" in repr(self.ask(both, 3, what))
            assert "secret" not in repr(self.ask(both, 2, what))
        assert seq == held[1]

    def test_nor_what_it_has_logged(self, both):
        hello(both, 3, "operator:olga")
        (seq,) = both.submit(1)
        told = [Progress(1, seq, 1, 0, -1, lines=[LogLine(1.0, 30, "lib", "secret text")])]
        both.tell(ev.FromPool(m.Results(EPOCH, both.session(), 1, [], [], [], told=told), POOL, TOKEN))
        task = text_of(task_id(1, seq))

        ann, mallory, olga = (self.ask(both, client, "logs", task) for client in (1, 2, 3))
        assert [line["text"] for line in ann.value["lines"]] == ["secret text"]
        assert "secret" in repr(olga)
        assert "operators" in mallory.error

    def test_nor_of_one_that_goes_on(self, both):
        (seq,) = both.submit(1, one=spec(max_retries=3, backoff=60.0))
        both.fail(both.session(), (1, seq, 1), text="secret text")
        task = text_of(task_id(1, seq))

        assert "secret" in repr(self.ask(both, 1, "task", task).value["history"])
        assert "history" not in self.ask(both, 2, "task", task).value


def test_names_of_users_meet_only_where_they_say_so():
    assert owned(ANN, "s") != owned(MALLORY, "s")
    assert owned(ANN, "shared:s") == owned(MALLORY, "shared:s") == "shared:s"
    assert plain(owned(ANN, "s")) == plain("s") == "s"
