from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from taskmesh.sockets import (
    Context,
    EventKind,
    NoMessageWithinTimeout,
    NoPeerWithinTimeout,
    Pull,
    Push,
    SocketClosed,
    SocketError,
)

Address = Callable[[str], str]


def test_monitor_tells_the_life_of_a_connection(context: Context, tmp_path: Path) -> None:
    with Push(context) as push, push.monitor() as events:
        endpoint = push.bind(f"ipc://{tmp_path}/m")
        assert events.recv(5).kind is EventKind.LISTENING
        with pytest.raises(NoMessageWithinTimeout):
            events.recv(0.01)
        with Pull(context) as pull:
            pull.connect(endpoint)
            assert events.wait_ready(5).kind is EventKind.HANDSHAKE_SUCCEEDED
        gone = events.wait_for(EventKind.DISCONNECTED, 5)
        assert gone.endpoint == endpoint
        assert events.recv_many() == []


def test_a_monitor_ends_with_its_socket(context: Context) -> None:
    push = Push(context)
    events = push.monitor()
    push.bind("tcp://127.0.0.1:*")
    push.close()

    with pytest.raises(SocketClosed):
        events.recv(1)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 5e6])
def test_an_event_may_be_waited_for_endlessly(context: Context, timeout: float) -> None:
    with Push(context) as push, push.monitor() as events:
        begins = threading.Timer(0.05, push.bind, ["tcp://127.0.0.1:*"])
        begins.start()
        assert events.recv(timeout).kind is EventKind.LISTENING
        begins.join()
        with pytest.raises(NoMessageWithinTimeout):
            events.recv(-1)


@pytest.mark.parametrize("left", [0, 1])
def test_a_monitor_for_which_no_sockets_are_left_is_told_and_leaves_nothing(left: int) -> None:
    with Context(max_sockets=1 + left) as small, Push(small) as push:
        for _ in range(3):
            with pytest.raises(SocketError, match="max_sockets"):
                push.monitor()


def test_a_second_monitor_of_a_socket_is_refused_while_the_first_is_open(context: Context) -> None:
    with Push(context) as push:
        first = push.monitor()
        with pytest.raises(SocketError, match="close that one first"):
            push.monitor()
        first.close()
        first.close()
        push.monitor().close()


def test_wait_ready_raises_when_nobody_comes(context: Context) -> None:
    with Push(context) as push, push.monitor() as events:
        push.bind("tcp://127.0.0.1:*")
        with pytest.raises(NoPeerWithinTimeout, match="no handshake"):
            events.wait_ready(0.05)
