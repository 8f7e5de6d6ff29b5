"""A remote pool's sockets, without a hub."""

from collections import deque

import zmq

from taskmesh.core.events import HubLaneLost
from taskmesh.net import pool_links
from taskmesh.net.loop import Loop
from taskmesh.net.pool_links import PoolSockets
from taskmesh.sockets import Context, SocketError


def test_a_lane_for_which_no_socket_is_to_be_had_is_lost_and_asked_for_again(tmp_path, monkeypatch):
    events = deque()
    with Context() as context:
        loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        links = PoolSockets(context, loop, [f"ipc://{tmp_path}/hub"], "pool", events, max_payload=1)

        def refuse(*_):
            raise SocketError("no socket could be made")

        with monkeypatch.context() as shortage:
            shortage.setattr(pool_links, "Pull", refuse)
            links.dial(f"ipc://{tmp_path}/lane")

        assert [type(event) for event in events] == [HubLaneLost]
        links.dial(f"ipc://{tmp_path}/lane")
        assert len(events) == 1
        links.close()
