"""The hub machine as a whole: one handle, one deadline, the same answer to the same events."""

import pytest

from taskmesh.core.actions import Publish, PushTasks
from taskmesh.core.events import FromClient, FromPool, Tick
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run
from tests.core.rig import EPOCH, HubRig, handle, number_of, spec


def test_what_is_no_event_is_refused():
    with pytest.raises(TypeError, match="not an event of a hub"):
        handle(HubMachine(HubSettings(1), 0.0), "hello", 0.0)


def test_the_same_events_give_the_same_actions():
    def play() -> list[object]:
        rig, actions = HubRig(), []
        tell = rig.tell
        rig.tell = lambda event: actions.append(tell(event))
        session = rig.join(slots=3)
        rig.client()
        rig.submit(1, 20)
        rig.report(session, done=tuple(rig.held[session]))
        rig.after(1.0)
        return actions

    assert play() == play()


def test_the_deadline_is_never_far_nor_past():
    rig = HubRig()
    rig.join()
    rig.client()
    rig.submit(1, 5, spec("f", max_retries=1, backoff=0.2))
    for _ in range(50):
        assert rig.now < rig.hub.deadline <= rig.now + rig.config.stall
        rig.now = rig.hub.deadline
        rig.tell(Tick())


def test_a_misrouted_message_is_noted():
    rig = HubRig()
    rig.tell(FromPool(m.Misrouted("p", EPOCH, 3)))

    assert rig.records[-1].kind == "pool.misrouted"


def test_news_of_running_tasks_goes_to_their_clients():
    rig = HubRig()
    session = rig.join()
    for client in (1, 2):
        rig.client(client)
        rig.submit(client, 1)
    rig.beat(session, running=((1, 1, 1), (2, 1, 1)))

    for client in (1, 2):
        notices = [message for message in rig.told[client] if isinstance(message, m.Notice)]
        assert [progress.client for progress in notices[-1].progress] == [client]


class TestSpecs:
    def test_one_travels_to_a_pool_once(self):
        rig = HubRig()
        session = rig.join(slots=1)
        rig.client()
        sent = []
        for _ in range(2):
            (seq,) = rig.submit(1, 1)
            rig.report(session, done=((1, seq, 1),))
        run = Run(number_of(spec()), 0, [9], [b""])
        for action in rig.tell(FromClient(1, m.Submit(3, [], [run]))):
            if isinstance(action, PushTasks):
                sent += action.message.specs

        assert sent == []

    def test_again_when_the_pool_says_that_it_lacks_it(self):
        rig = HubRig()
        session = rig.join(slots=1)
        rig.client()
        rig.submit(1, 2)
        rig.tell(FromPool(m.PoolNeedSpec(EPOCH, session, [number_of(spec())])))
        actions = rig.tell(FromPool(m.Results(EPOCH, session, 1, [], [], [Held(1, 1, [1])])))

        (push,) = [action for action in actions if isinstance(action, PushTasks)]
        assert push.message.specs == [(number_of(spec()), spec())]

    def test_those_that_nobody_needs_are_forgotten_when_they_are_many(self):
        rig = HubRig(spec_bytes=4000)
        session = rig.join(slots=1)
        rig.client()
        for index in range(6):
            (seq,) = rig.submit(1, 1, spec(f"function-{index}"))
            rig.report(session, done=((1, seq, 1),))
        rig.submit(1, 1, spec("in use"))
        rig.after(1.0)

        names = [entry.spec.name for entry in rig.hub.state.specs.values()]
        assert "in use" in names
        assert "function-5" in names, "no more than need be"
        assert len(names) < 6
        assert not rig.hub.state.lanes[session].known_specs - rig.hub.state.specs.keys(), "it comes again"


def test_control_messages_name_their_pool():
    rig = HubRig()
    rig.hello("a")
    actions = rig.tell(FromPool(m.Beat(EPOCH, 77, "b", 0, 0, 0, [])))

    assert [action.pool for action in actions if isinstance(action, Publish)] == ["b"]


def test_tasks_that_end_in_a_queue_that_no_pool_serves_leave_nothing_there():
    rig = HubRig()
    rig.join()
    rig.client()
    rig.submit(one=spec("stays", queue="gpu"))  # for them all to stand behind
    for number in range(50):
        rig.submit(one=spec("brief", queue="gpu", expires=1.0))
        rig.cancel(1, *rig.submit(one=spec("given up", queue=f"cpu-{number}")))
    assert len(rig.hub.state.ledger.backlog.routes) == 51

    rig.after(2.0)

    backlog = rig.hub.state.ledger.backlog
    assert [route_queue.route for route_queue in backlog.route_queues()] == [("gpu", frozenset(), (), "")]
    assert len(list(backlog.entries())) == len(rig.tasks) == 1


def test_a_task_that_has_left_a_queue_nobody_serves_and_comes_back_is_there_once():
    rig = HubRig()
    rig.client()
    (kept, gone) = rig.submit(count=2)
    rig.cancel(1, gone)
    rig.after(1.0)
    session = rig.join()

    assert [key[1] for key in rig.held[session]] == [kept]
    rig.report(session, returned=tuple(rig.held[session]))
    rig.after(1.0)
    assert [key[1] for key in rig.held[session]] == [kept]
