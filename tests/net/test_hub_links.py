"""What a hub's sockets remember of those at their other ends."""

from collections import deque

from taskmesh.net.endpoints import Endpoints
from taskmesh.net.hub_links import HubSockets
from taskmesh.net.loop import Loop
from taskmesh.sockets import Context, Dealer
from taskmesh.wire import messages as m
from taskmesh.wire.frames import encode, to_client
from tests.waiting import wait_until


def test_a_client_that_is_refused_for_good_is_forgotten(tmp_path):
    events: deque[object] = deque()
    with Context() as context, Dealer(context) as client:
        hub = HubSockets(context, Loop(), events, lambda kind, fields: None)
        hub.bind(Endpoints.of(f"ipc://{tmp_path}/hub"))
        client.connect(hub.endpoints.gateway)
        for refused in (m.ClientRefused(), m.ClientRefused("the hub is full")):
            events.clear()
            client.send_parts(encode(m.ClientHello(7, 0)), timeout=5)
            wait_until(lambda: hub._from_clients() or events)
            hub.send_client(7, refused)
            assert to_client.decode(client.recv_parts(timeout=5)) == refused
            assert list(hub._identities) == ([] if refused.reason else [7])  # who is unknown says Hello again
        hub.close()

    assert not hub._clients
