"""What holders of good keys may not do: forge another's messages, dial another's lane, take its session."""

from pathlib import Path

import pytest

from taskmesh.core.ids import client_of, parse
from taskmesh.core.specs import spec_number
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run, Spec
from taskmesh.security.authorization import RIGHTS
from taskmesh.security.keys import credentials_of
from taskmesh.sockets import (
    EventKind,
    Pull,
    new_key_pair,
)
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.intruder import PLAIN, FalsePool, Meet

MESSAGES: list[m.ClientMessage] = [
    m.Submit(1, [], []),
    m.CancelTasks([1]),
    m.ResultAck(1, 1),
    m.Command(1, "drain", "all"),
]


@pytest.mark.parametrize("role", ["client", "operator"])
def test_every_message_that_a_role_may_not_send_is_refused(keyed: Cluster, meet: Meet, role: str):
    peer = meet(role, "mallory")
    assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
    forbidden = [message for message in MESSAGES if type(message) not in RIGHTS[role]]

    for message in forbidden:
        answer = peer.ask(message)
        said = answer.error if isinstance(answer, m.Answer) else answer.reason
        assert f"does not entitle it to a {type(message).__name__}" in said

    assert forbidden
    assert isinstance(peer.ask(m.Query(3, "status")), m.Answer)
    assert works(keyed)


def test_a_worker_s_key_submits_no_more_than_its_running_tasks_may(
    keyed: Cluster, meet: Meet, tmp_path: Path
):
    """The keys of the five commands are enough for tasks of tasks, and for nothing else."""
    gate, journal = tmp_path / "gate", tmp_path / "journal"
    thief = meet("worker", "first", str(keyed.ring.folder / "worker-first"))
    bound, free = (Spec(b"f", "f", on_client_loss=loss) for loss in ("cancel", "run"))
    (one, two) = (spec_number(spec) for spec in (bound, free))
    assert isinstance(thief.ask(m.ClientHello(9, 0)), m.ClientWelcome)

    submit = m.Submit(1, [(one, bound)], [Run(one, 0, [1], [b"x"])])
    assert isinstance(thief.ask(submit), m.Busy), "no task runs"
    with keyed.mesh() as mesh:
        future = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists, 20)
        assert isinstance(thief.ask(submit), m.Busy), "one does, but it says of no user that it is his"
        slot = f"first/1@{client_of(parse(future.task_id)):016x}"
        assert isinstance(thief.ask(m.ClientHello(9, 0, slot=slot)), m.ClientWelcome)
        assert isinstance(thief.ask(submit), m.Accepted)
        others = m.Submit(2, [(two, free)], [Run(two, 0, [2], [b"x"])])
        assert "on_client_loss" in thief.ask(others).reason
        assert "does not entitle it to a Query" in thief.ask(m.Query(1, "tasks")).reason
        thief.close()
        gate.touch()
        assert future.result(20)


def works(keyed: Cluster) -> bool:
    with keyed.mesh() as mesh:
        return bool(mesh.submit(workload.add, 1, 2).result(20) == 3)


# --- pools ------------------------------------------------------------------------------------------------


def refused(keyed: Cluster, complaint: str) -> bool:
    return bool(wait_until(lambda: complaint in keyed.hub.errors))


def test_a_key_that_several_pools_share_does_not_open_each_others_sessions(
    keyed: Cluster, false_pool: FalsePool
):
    welcome, _ = false_pool.join("false")
    twin = FalsePool(false_pool.peer)

    twin.say(m.Bye(welcome.epoch, welcome.session))

    refused(keyed, "sends for a session that is not its own")


@pytest.mark.parametrize("token", [b"", b"short"])
def test_a_message_without_its_token_is_refused(keyed: Cluster, false_pool: FalsePool, token: bytes):
    false_pool.say(m.Bye(1, 1), token)

    refused(keyed, "a message without its token")
    assert works(keyed)


def test_a_hello_without_a_key_for_its_lane_is_refused(keyed: Cluster, false_pool: FalsePool):
    false_pool.say(m.Hello("false", 99, 1, 1, [], [], 0, 0, []))

    refused(keyed, "a Hello without a key for the lane")
    assert works(keyed)


def test_a_lane_admits_only_the_key_of_its_session(keyed: Cluster, false_pool: FalsePool):
    welcome, pair = false_pool.join("false")
    peer = false_pool.peer
    endpoint = peer.hub.lane(welcome.lane)
    stranger = credentials_of(keyed.ring.peer("worker", "other"), "worker").pair

    for wrong in (new_key_pair(), peer.credentials.pair, stranger):
        with Pull(peer.context, peer.way.options(PLAIN, wrong)) as lane, lane.monitor() as monitor:
            lane.connect(endpoint)
            monitor.wait_for(EventKind.HANDSHAKE_FAILED_AUTH, 5)
    with Pull(peer.context, peer.way.options(PLAIN, pair)) as lane, lane.monitor() as monitor:
        lane.connect(endpoint)
        monitor.wait_for(EventKind.HANDSHAKE_SUCCEEDED, 5)
