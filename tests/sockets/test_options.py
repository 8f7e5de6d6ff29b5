from __future__ import annotations

from collections.abc import Callable

import pytest
import zmq

from taskmesh.sockets import (
    Context,
    CurveClient,
    CurveServer,
    Dealer,
    InvalidOption,
    Pub,
    Pull,
    Push,
    SocketOptions,
    XPub,
)

Address = Callable[[str], str]


@pytest.mark.parametrize(
    "bad",
    [
        {"send_hwm_messages": -1},
        {"recv_hwm_messages": 1.5},
        {"linger_ms": -2},
        {"linger_ms": True},
        {"backlog_connections": 0},
        {"identity": b"\0x"},
        {"identity": b"x" * 256},
    ],
)
def test_impossible_options_are_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(bad))):
        SocketOptions(**bad)  # type: ignore[arg-type]


def test_options_of_another_role_are_refused(context: Context) -> None:
    with pytest.raises(InvalidOption, match="router_mandatory belongs to ROUTER, not to PUSH"):
        Push(context, SocketOptions(router_mandatory=True))
    with pytest.raises(InvalidOption, match="xpub_verbose belongs to XPUB, not to PUB"):
        Pub(context, SocketOptions(xpub_verbose=True))
    XPub(context, SocketOptions(xpub_verbose=True)).close()


def test_options_reach_libzmq(context: Context) -> None:
    options = SocketOptions(
        send_hwm_messages=7,
        recv_hwm_messages=8,
        linger_ms=9,
        heartbeat_interval_ms=1000,
        heartbeat_timeout_ms=2000,
        heartbeat_ttl_ms=3000,
        keepalive_s=40,
        max_message_bytes=10_000,
        handshake_interval_ms=4000,
        immediate=True,
        reconnect_interval_ms=-1,
        reconnect_max_ms=5000,
        backlog_connections=4096,
        send_buffer_bytes=65_536,
        recv_buffer_bytes=32_768,
        identity=b"me",
    )
    expected: dict[int, int | bytes] = {
        zmq.SNDHWM: 7,
        zmq.RCVHWM: 8,
        zmq.LINGER: 9,
        zmq.HEARTBEAT_IVL: 1000,
        zmq.HEARTBEAT_TIMEOUT: 2000,
        zmq.HEARTBEAT_TTL: 3000,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: 40,
        zmq.TCP_KEEPALIVE_INTVL: 10,
        zmq.TCP_KEEPALIVE_CNT: 4,
        zmq.MAXMSGSIZE: 10_000,
        zmq.HANDSHAKE_IVL: 4000,
        zmq.IMMEDIATE: 1,
        zmq.RECONNECT_IVL: -1,
        zmq.RECONNECT_IVL_MAX: 5000,
        zmq.BACKLOG: 4096,
        zmq.SNDBUF: 65_536,
        zmq.RCVBUF: 32_768,
        zmq.ROUTING_ID: b"me",
    }
    with Dealer(context, options) as dealer:
        assert {option: dealer.raw.get(option) for option in expected} == expected
    with Dealer(context) as plain:
        assert plain.raw.get(zmq.LINGER) == 0
        assert plain.raw.get(zmq.SNDHWM) == 1000


def test_curve_admits_who_knows_the_server_key(context: Context) -> None:
    public, secret = zmq.curve_keypair()
    mine, mine_secret = zmq.curve_keypair()
    wrong, _ = zmq.curve_keypair()
    with Pull(context, SocketOptions(curve=CurveServer(secret))) as pull:
        endpoint = pull.bind("tcp://127.0.0.1:*")
        good = SocketOptions(curve=CurveClient(mine, mine_secret, public), immediate=True)
        bad = SocketOptions(curve=CurveClient(mine, mine_secret, wrong), immediate=True)
        with Push(context, good) as push, Push(context, bad) as stranger:
            push.connect(endpoint)
            stranger.connect(endpoint)
            push.send(b"secret", timeout=5)
            assert pull.recv(5) == b"secret"
            assert stranger.try_send(b"never") is False
    assert secret.decode() not in repr(good)


def test_a_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InvalidOption, match="secret_key must be 32 bytes"):
        CurveServer(b"short")
