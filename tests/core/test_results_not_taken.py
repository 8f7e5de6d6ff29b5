"""A client that does not take its results: they count against its cap, and no more of its tasks are run."""

import pytest

from taskmesh.core.actions import OpenLane, PushTasks, SendClient
from taskmesh.core.events import ClientGone, FromClient, FromPool, LaneOpened, Tick
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.books import client_session
from taskmesh.hub.machine.books.ledger import tasks_by_id
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.views import views
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Run, Spec
from tests.core.rig import handle

EPOCH = 7
ONE = Spec(function=b"f", name="f")
SPEC = spec_number(ONE)


class Mesh:
    """A hub with one pool of four slots, and clients."""

    def __init__(self, cap: int, result: bytes = b"x" * 1000) -> None:
        self.result = result
        self.hub = HubMachine(HubSettings(EPOCH, client_max_bytes=cap), 0.0)
        self.now = 0.0
        self.held: list[tuple[int, int, int]] = []  # client, seq, attempt
        self.delivered: dict[int, list[m.Deliver]] = {}
        self.results = 0
        self.tell(FromPool(m.Hello("pool", 1, 1, 4, ["default"], [], 0, 0, [])))
        self.tell(FromPool(m.Beat(EPOCH, 1, "pool", 0, 0, 0, [])))

    def tell(self, event: object) -> None:
        self.now += 0.001
        for action in handle(self.hub, event, self.now):
            match action:
                case OpenLane(session=session):
                    self.tell(LaneOpened(session, "1"))
                case PushTasks(message=message):
                    self.held += [(run.client, seq, run.attempt) for run in message.runs for seq in run.seqs]
                case SendClient(client=client, message=m.Deliver() as deliver):
                    self.delivered.setdefault(client, []).append(deliver)
        self.hub.check()

    def join(self, client: int, tasks: int) -> None:
        self.tell(FromClient(client, m.ClientHello(client, 0, credit=1 << 20)))
        run = Run(SPEC, 1, list(range(1, tasks + 1)), [b"call"] * tasks)
        self.tell(FromClient(client, m.Submit(1, [(SPEC, ONE)], [run])))

    def run_one(self) -> None:
        client, seq, attempt = self.held.pop(0)
        self.results += 1
        done = DoneRun(SPEC, client, attempt, "pool/0", [seq], [self.result], 0.001)
        self.tell(FromPool(m.Results(EPOCH, 1, self.results, [done], [], [])))

    def run_all(self) -> int:
        """Run what the pool is given until it is given nothing more; return how many tasks that were."""
        before = self.results
        while self.held:
            self.run_one()
        return self.results - before

    def acknowledge(self, client: int) -> None:
        self.tell(FromClient(client, m.ResultAck(EPOCH, self.delivered[client][-1].number)))


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(cap=20_000)


def test_no_more_is_run_until_the_client_has_taken_its_results(mesh):
    mesh.join(11, tasks=200)

    assert 20 <= mesh.run_all() < 100, "to the cap, and what was on its way then"
    assert mesh.hub.state.clients[11].size > 20_000

    mesh.acknowledge(11)
    assert mesh.run_all() >= 20


def test_other_clients_tasks_go_on(mesh):
    mesh.join(11, tasks=200)
    mesh.run_all()

    mesh.join(12, tasks=10)
    assert mesh.run_all() == 10
    assert {deliver.done[0].client for deliver in mesh.delivered[12]} == {12}


def test_all_of_it_is_run_by_a_client_that_keeps_up(mesh):
    mesh.join(11, tasks=200)

    while mesh.held:
        mesh.run_all()
        mesh.acknowledge(11)

    assert mesh.results == 200
    assert not mesh.hub.state.ledger.count


def test_people_are_told_why(mesh):
    mesh.join(11, tasks=200)
    mesh.run_all()
    waiting = next(tasks_by_id(mesh.hub.state.ledger))[0]

    view = views.answer(mesh.hub.state, m.Query(1, "task", f"{waiting:032x}"), mesh.now)

    assert "client.max_bytes" in view.value["why"]


def test_tasks_with_large_results_are_not_given_out_far_ahead():
    mesh = Mesh(cap=1 << 30, result=b"x" * (4 << 20))
    mesh.join(11, tasks=100)

    for _ in range(50):
        mesh.run_one()

    assert 4 <= len(mesh.held) <= 8, "two for each slot"


def test_who_is_away_is_sent_nothing_again_until_it_is_back():
    mesh = Mesh(cap=1 << 20)
    mesh.join(1, 1)
    mesh.run_one()
    assert len(mesh.delivered[1]) == 1
    mesh.tell(ClientGone(1))

    for _ in range(100):
        mesh.now += 0.1
        mesh.tell(Tick())
        mesh.tell(FromPool(m.Beat(EPOCH, 1, "pool", 0, 0, 0, [])))
    assert len(mesh.delivered[1]) == 1

    mesh.tell(FromClient(1, m.ClientHello(1, EPOCH, first=2, credit=1 << 20)))
    assert [deliver.number for deliver in mesh.delivered[1]] == [1, 1]


def test_who_comes_back_gets_what_has_gathered_in_deliveries_of_limited_size(monkeypatch):
    monkeypatch.setattr(client_session, "MAX_DELIVERY", 3000)
    mesh = Mesh(cap=1 << 20)
    mesh.join(1, 20)
    mesh.tell(ClientGone(1))
    assert mesh.run_all() == 20
    assert not mesh.delivered

    mesh.tell(FromClient(1, m.ClientHello(1, EPOCH, first=2, credit=1 << 20)))

    sizes = [sum(len(run.seqs) for run in deliver.done) for deliver in mesh.delivered[1]]
    assert sum(sizes) == 20
    assert max(sizes) <= 3
