"""A remote pool's sockets, and a client's, without a hub."""

from collections import deque

import pytest
import zmq

from taskmesh.client.port import sockets as client_sockets
from taskmesh.client.port.sockets import GatewayLink
from taskmesh.config import Config, MeshConfig, PoolConfig
from taskmesh.core.events import HubLaneLost
from taskmesh.link.endpoints import Endpoints
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode
from taskmesh.messages.runs import DoneRun
from taskmesh.pool import sockets as pool_sockets
from taskmesh.pool.sockets import FEW_HELLOS, PoolSockets
from taskmesh.sockets import Context, Pull, Router, SocketError
from taskmesh.system.loop import Loop
from tests.harness.pyzmq_collector import pyzmq_collector  # noqa: F401  a fixture of all tests here
from tests.harness.waiting import wait_until


def dialling(address: str, max_payload: int = 1) -> Config:
    """Settings of a pool that dials this hub."""
    return Config(mesh=MeshConfig(address=address), pool=PoolConfig(max_payload=max_payload))


def test_a_lane_for_which_no_socket_is_to_be_had_is_lost_and_asked_for_again(tmp_path, monkeypatch):
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        links = PoolSockets(context, loop, dialling(f"ipc://{tmp_path}/hub"), "pool")

        with monkeypatch.context() as shortage:
            shortage.setattr(pool_sockets, "Pull", refuse)
            links.dial(f"ipc://{tmp_path}/lane")

        assert [type(event) for event in links.events] == [HubLaneLost]
        links.dial(f"ipc://{tmp_path}/lane")
        assert len(links.events) == 1
        links.close()


def test_a_result_is_held_against_the_limit_of_the_hub_that_has_opened_the_session(tmp_path):
    """Seed 530974: a welcome of the hub before came late, and what the new one does not take cut the link."""
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        links = PoolSockets(context, loop, dialling(f"ipc://{tmp_path}/hub", 100), "pool")
        taken = []
        for limit in (0, 10, 1000, 0):
            links.dial(f"ipc://{tmp_path}/lane", limit)
            late = m.Welcome(1, 1, "pool", 1, 1, "port", 1.0, 3.0, [], 50)
            links._take([encode(late)], 0)
            runs = [DoneRun(1, 1, 1, "p/0", [size], [bytes(size)], 0.1) for size in (10, 50, 100, 101)]
            results = m.Results(1, 1, 1, runs, [], [])
            links.send(results)
            taken.append([seq for run in results.done for seq in run.seqs])
        links.close()

    assert taken == [[10, 50, 100], [10], [10, 50, 100], [10, 50, 100]]


def hello(number=1):
    return m.Hello("pool", 1, number, 1, ["default"], [], 0, 0, [])


def refuse(*_):
    raise SocketError("no socket could be made")


@pytest.mark.parametrize("missing", ["Push", "Sub"])
@pytest.mark.parametrize("cause", ["nobody answers", "a handshake has failed"])
def test_links_for_which_no_socket_is_to_be_had_are_asked_for_with_the_next_hello(
    tmp_path, monkeypatch, missing, cause
):
    address = f"ipc://{tmp_path}/hub"
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        links = PoolSockets(context, loop, dialling(address), "pool")

        with monkeypatch.context() as shortage:
            shortage.setattr(pool_sockets, missing, refuse)
            if cause == "nobody answers":
                for _ in range(FEW_HELLOS):
                    links.send(hello())
            else:
                links._dialer._on_failure(True)
                links._dialer._handshakes.backoff = 1e-9
                links._dialer._on_failure(False)
            links.send(hello())
            links.beat(m.Beat(1, 0, "pool", 0, 0, 0, []))
            assert not links.is_up

        with Pull(context) as collector:
            collector.bind(Endpoints.of(address).collector)
            links.send(hello())
            wait_until(lambda: said(links, collector), 10)
        links.close()


def said(links, collector):
    links.send(hello())
    return collector.recv_parts_many(10)


def test_links_that_cannot_be_had_at_the_start_leave_no_socket_behind(tmp_path, monkeypatch):
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        monkeypatch.setattr(pool_sockets, "Sub", refuse)
        with pytest.raises(SocketError):
            PoolSockets(context, loop, dialling(f"ipc://{tmp_path}/hub"), "pool")


def test_a_client_s_link_for_which_no_socket_is_to_be_had_is_asked_for_with_the_next_hello(
    tmp_path, monkeypatch
):
    address = f"ipc://{tmp_path}/hub"
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        link = GatewayLink(context, loop, address, deque())
        with monkeypatch.context() as shortage:
            shortage.setattr(client_sockets, "Dealer", refuse)
            link.send(m.ClientHello(1, 0))
            link.reconnect()
            link.send(m.ClientHello(1, 0))
            link.send(m.ClientBeat(1))

        with Router(context) as gateway:
            gateway.bind(address)
            wait_until(lambda: link.send(m.ClientHello(1, 0)) or gateway.recv_parts_many(10), 10)
        link.close(0)
