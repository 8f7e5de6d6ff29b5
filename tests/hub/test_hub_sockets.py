"""A hub's sockets remember their peers."""

from collections import deque
from pathlib import Path

from zmq import POLLOUT

from taskmesh.core.actions import SendClient
from taskmesh.core.events import FromPool, LaneLost, LinksLost
from taskmesh.hub.embedded_hub import LocalLinks
from taskmesh.hub.machine.submission import RETRY_BUSY
from taskmesh.hub.sockets import SWEEP, HubAccess, HubSockets
from taskmesh.link.endpoints import Endpoints
from taskmesh.link.socket_profiles import topic
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import FRAGMENT, Assembler, Cutter
from taskmesh.messages.frames import encode, to_client
from taskmesh.messages.runs import DoneRun, Run
from taskmesh.sockets import Context, Dealer, Pull, Push, Sub
from taskmesh.system.loop import Loop
from tests.harness.waiting import wait_until


def bound(
    context: Context, folder: Path, assembler: Assembler | None = None
) -> tuple[HubSockets, deque[object]]:
    """A hub's sockets, bound in a folder, and what has come by them."""
    loop = Loop()
    links = LocalLinks(loop, lambda kind, fields: None)
    hub = HubSockets(context, loop, links, HubAccess(assembler=assembler or Assembler()))
    hub.bind(Endpoints.of(f"ipc://{folder}/hub"))
    return hub, links.events


def test_a_client_that_is_refused_for_good_is_forgotten(tmp_path):
    with Context() as context, Dealer(context) as client:
        hub, events = bound(context, tmp_path)
        client.connect(hub.endpoints.gateway)
        for refused in (m.ClientRefused(), m.ClientRefused("the hub is full")):
            events.clear()
            client.send_parts(encode(m.ClientHello(7, 0)), timeout=5)
            wait_until(lambda: hub._from_clients() or events)
            hub.send_client(SendClient(7, refused))
            assert to_client.decode(client.recv_parts(timeout=5)) == refused
            assert list(hub._identities) == ([] if refused.reason else [7])  # who is unknown says Hello again
        hub.close()

    assert not hub._clients


def test_a_pool_without_keys_begins_anew_where_there_was_no_room_for_its_report(tmp_path):
    """Nothing else tells who sends to a PULL; unheard, it would wait as long as so much may be under way."""
    with Context() as context, Push(context) as first, Push(context) as second:
        hub, events = bound(context, tmp_path, Assembler(3 * FRAGMENT, 0, 1 << 30))
        ended: list[list[bytes]] = []
        for session, pool in ((5, first), (6, second)):
            pool.connect(hub.endpoints.collector)
            done = DoneRun(7, 1, 1, "pool/0", [1], [bytes(4 * FRAGMENT)], 0.1)
            *fragments, last = Cutter(session).cut(encode(m.Results(1, session, 1, [done], [], [])))
            for fragment in fragments:
                pool.send_parts(fragment, timeout=5)
            size = sum(len(part) for fragment in fragments for part in fragment[1:])
            wait_until(lambda size=size: hub._from_pools() or hub._assembler.size >= size or events)
            ended.append(last)

        wait_until(lambda: hub._from_pools() or events)
        first.send_parts(ended[0], timeout=5)
        wait_until(lambda: hub._from_pools() or any(isinstance(event, FromPool) for event in events))
        hub.close()

    lost, reported = events
    assert lost == LaneLost(6)
    assert isinstance(reported, FromPool)


def test_a_client_without_room_for_its_message_is_told_so(tmp_path):
    with Context() as context, Dealer(context) as first, Dealer(context) as second:
        hub = bound(context, tmp_path, Assembler(3 * FRAGMENT, 0, 1 << 30))[0]
        submit = m.Submit(1, [], [Run(7, 0, [1], [bytes(4 * FRAGMENT)])])
        for sender, client in enumerate((first, second)):
            client.connect(hub.endpoints.gateway)
            fragments = Cutter(sender).cut(encode(submit))[:-1]
            for fragment in fragments:
                client.send_parts(fragment, timeout=5)
            size = sum(len(part) for fragment in fragments for part in fragment[1:])
            wait_until(lambda size=size: hub._from_clients() or hub._assembler.size >= size)
        wait_until(lambda: hub._from_clients() or second.raw.poll(0))
        assert to_client.decode(second.recv_parts(timeout=5)) == m.Busy(0, RETRY_BUSY)
        hub.close()


def test_a_pool_that_died_is_known_to_have_no_links_though_another_has_taken_its_name(tmp_path):
    with Context() as context, Sub(context) as holder, Sub(context) as newcomer, Pull(context) as lane:
        hub, events = bound(context, tmp_path)
        lane.connect(hub.open_lane(1, "p", b""))
        hub._lanes[1].linked = wait_until(lambda: hub._lanes[1].socket.raw.poll(0, POLLOUT)) > 0

        def heard() -> None:
            wait_until(lambda: hub.control.raw.poll(0))
            hub._from_subscribers()

        for pool in (holder, newcomer):
            pool.connect(hub.endpoints.control)
            pool.subscribe(topic("p"))
            heard()
            if pool is holder:
                holder.close()
                heard()
        hub.turn(0.0)
        assert not events  # the end of its lane has not been seen yet
        lane.close()
        wait_until(lambda: not hub._lanes[1].socket.raw.poll(0, POLLOUT))
        hub.turn(2 * SWEEP)
        hub.close()

    assert list(events) == [LaneLost(1), LinksLost(1)]
