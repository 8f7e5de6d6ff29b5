"""Messages that name what is another key's change nothing: lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.wire import messages as m
from taskmesh.wire.runs import FIRING, Held, Run
from taskmesh.wire.schedules import Declaration, Timing
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
        house = rig.hub.state.house.client
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

        assert rig.hub.schedules.records["nightly"].declaration.timing.period == 60.0
        assert not self.put(rig, ANN, 30.0).error
