"""What no client or pool would send neither stops a hub nor a worker."""

import random
import socket
import struct

import pytest

from taskmesh.framing.frames import encode, to_client
from taskmesh.net.endpoints import Endpoints, tcp_parts
from taskmesh.sockets import Context, Dealer, Push, Sub
from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Failed, Held, Run
from tests.harness.waiting import wait_until
from tests.net import workload


@pytest.fixture
def endpoints(shared_address):
    return Endpoints.of(shared_address)


def noise(random_state: random.Random) -> list[bytes]:
    """A message of random bytes, often one that begins like a real one."""
    parts = [random_state.randbytes(random_state.randrange(40)) for _ in range(random_state.randrange(1, 4))]
    if random_state.random() < 0.5:
        real = encode(m.Submit(1, [], [Run(7, 0, [1, 2], [b"x", b"y"])]))[0]
        cut = random_state.randrange(len(real))
        parts[0] = bytes(real[:cut]) + parts[0]
    return parts


@pytest.mark.parametrize("part", ["gateway", "collector"])
def test_random_messages_are_refused(mesh, shared_programs, endpoints, part):
    kind = Dealer if part == "gateway" else Push
    random_state = random.Random(part)
    with Context() as context, kind(context) as peer:
        peer.connect(getattr(endpoints, part))
        for _ in range(500):
            peer.send_parts(noise(random_state), timeout=5)
        peer.send_parts([b"last"], timeout=5)
        assert [mesh.submit(workload.add, n, 1).result(20) for n in range(20)] == list(range(1, 21))
    wait_until(lambda: "malformed message" in shared_programs.started[0].errors)


def test_a_message_of_the_wrong_direction_is_refused(mesh, endpoints):
    with Context() as context, Dealer(context) as client, Push(context) as pool:
        client.connect(endpoints.gateway)
        pool.connect(endpoints.collector)
        for message in (m.Deliver(1, 1, [], []), m.Welcome(1, 1, "p", 1, 1, "5", 1.0, 1.0), m.Bye(1, 1)):
            client.send_parts(encode(message), timeout=5)
        for message in (m.ClientBeat(), m.Submit(1, [], []), m.Tasks(1, 1, 1, 1, 0.0, [], [])):
            pool.send_parts(encode(message), timeout=5)

        assert mesh.submit(workload.add, 1, 1).result(20) == 2


def test_a_client_that_did_not_say_hello_is_told_to(endpoints):
    with Context() as context, Dealer(context) as client:
        client.connect(endpoints.gateway)
        client.send_parts(encode(m.ClientBeat()), timeout=5)

        assert to_client.decode(client.recv_parts(timeout=10)) == m.ClientRefused("")


def test_another_protocol_version_is_refused_with_the_cure(endpoints):
    with Context() as context, Dealer(context) as client:
        client.connect(endpoints.gateway)
        client.send_parts(encode(m.ClientHello(77, 0, protocol=m.PROTOCOL + 1)), timeout=5)

        refused = to_client.decode(client.recv_parts(timeout=10))

    assert isinstance(refused, m.ClientRefused)
    assert "install the same taskmesh" in refused.reason


def test_reports_of_a_pool_that_has_no_session_change_nothing(mesh, endpoints):
    done = DoneRun(1, 1, 1, "nobody/0", [1, 2, 3], [b"", b"", b""], 0.1)
    messages = [
        m.Results(1, 1, 1, [done], [Failed(1, 1, 1, "exception")], [Held(1, 1, [1])]),
        m.Beat(1, 1, "nobody", 1, 1, 1, []),
        m.Misrouted("nobody", 1, 1),
        m.PoolNeedSpec(1, 1, [1]),
    ]
    with Context() as context, Push(context) as pool, Sub(context) as control:
        control.subscribe(b"pool.nobody.")
        control.connect(endpoints.control)
        pool.connect(endpoints.collector)

        def answered() -> bool:
            for message in messages:
                pool.send_parts(encode(message), timeout=5)
            return bool(control.recv_parts_many())  # it is told to say hello

        wait_until(answered)

    assert mesh.submit(workload.add, 1, 1).result(20) == 2
    assert [pool["pool"] for pool in mesh.status()["pools"]] == ["first"]


@pytest.mark.parametrize("part", ["gateway", "collector", "control"])
@pytest.mark.parametrize(
    "bytes_sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03", bytes(300)]
)
def test_connections_that_do_not_speak_zmtp_do_no_harm(mesh, endpoints, part, bytes_sent):
    endpoint = getattr(endpoints, part)
    family = socket.AF_UNIX if endpoint.startswith("ipc://") else socket.AF_INET
    place = endpoint.removeprefix("ipc://") if family == socket.AF_UNIX else tcp_parts(endpoint)
    with socket.socket(family, socket.SOCK_STREAM) as stranger:
        stranger.connect(place)
        stranger.sendall(bytes_sent)
        if family == socket.AF_INET:  # leave by a reset
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert mesh.submit(workload.add, 1, 1).result(20) == 2
