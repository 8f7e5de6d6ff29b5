from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
import zmq
from zmq.utils.garbage import gc

from taskmesh.sockets import (
    ZERO_COPY_BYTES,
    Context,
    Dealer,
    Frame,
    Gather,
    NoMessageWithinTimeout,
    Pub,
    Pull,
    Push,
    Router,
    Scatter,
    Socket,
    Sub,
    WrongDirection,
)
from tests.harness.waiting import wait_until

Address = Callable[[str], str]
gc_store = gc.store


def test_a_message_travels_from_push_to_pull(context: Context, transport: str, address: Address) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind(address(transport)))

        push.send(b"one", timeout=5)
        push.send(Frame(b"two"), timeout=5)
        push.send(memoryview(b"three"))
        push.send(bytearray(b"four"))

        assert [pull.recv(5) for _ in range(4)] == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 5e6])
@pytest.mark.parametrize("kinds", [(Push, Pull), (Scatter, Gather)])
def test_a_time_out_may_be_endless(
    context: Context, kinds: tuple[type[Push | Scatter], type[Pull | Gather]], timeout: float
) -> None:
    sending, receiving = kinds
    with sending(context) as sender, receiving(context) as receiver:
        endpoint = sender.bind("tcp://127.0.0.1:*")
        comes = threading.Timer(0.05, receiver.connect, [endpoint])
        comes.start()
        sender.send(b"one", timeout)
        comes.join()
        assert receiver.recv(timeout) == b"one"

        later = threading.Timer(0.05, sender.send, [b"two"])
        later.start()
        assert receiver.recv(timeout) == b"two"
        later.join()


def test_recv_raises_when_nothing_came(context: Context) -> None:
    with Gather(context) as gather, pytest.raises(NoMessageWithinTimeout):
        gather.recv(0.05)
    with Pull(context) as pull:
        pull.bind("tcp://127.0.0.1:*")
        for timeout in (0, 0.05):
            with pytest.raises(NoMessageWithinTimeout):
                pull.recv(timeout)
            with pytest.raises(NoMessageWithinTimeout):
                pull.recv_parts(timeout)
        assert pull.recv_many() == []
        assert pull.recv_parts_many() == []


def test_recv_many_drains_in_order_and_keeps_to_its_limit(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://drain"))
        for number in range(10):
            push.send(b"%d" % number)

        assert pull.recv_many(limit=4) == [b"0", b"1", b"2", b"3"]
        assert pull.recv_many() == [b"%d" % number for number in range(4, 10)]


def test_messages_of_several_parts_keep_their_borders(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://parts"))
        push.send_parts([b"a", b"", b"c"])
        push.send(b"single")
        push.send_parts([b"x", b"y"], timeout=5)
        push.send_parts([b"last"], timeout=None)

        assert pull.recv_parts(5) == [b"a", b"", b"c"]
        assert pull.recv_parts_many(limit=1) == [[b"single"]]
        assert pull.recv_parts_many() == [[b"x", b"y"], [b"last"]]
        push.send(b"alone")
        assert pull.recv_parts_many() == [[b"alone"]]


def test_recv_many_gives_the_parts_of_such_a_message_one_after_the_other(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://flat"))
        push.send_parts([b"a", b"b", b"c"])
        push.send(b"d")

        assert pull.recv_many(limit=2) == [b"a", b"b"]
        assert pull.recv_many() == [b"c", b"d"]


def test_large_parts_are_not_copied_on_receipt(context: Context) -> None:
    array = np.arange(ZERO_COPY_BYTES, dtype=np.uint8)
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://large"))
        push.send_parts([b"head", memoryview(array).cast("B"), b"x" * (ZERO_COPY_BYTES - 1)])

        head, view, below = pull.recv_parts(5)
        assert head == b"head"
        assert isinstance(view, memoryview)
        assert np.array_equal(np.frombuffer(view, np.uint8), array)
        assert isinstance(below, bytes)
        assert len(below) == ZERO_COPY_BYTES - 1


def test_a_large_part_that_was_received_is_passed_on_as_the_frame_that_it_is(
    context: Context, transport: str, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[object] = []
    monkeypatch.setattr(
        gc, "store", lambda part, event=None: waited_for.append(part) or gc_store(part, event)
    )
    data = np.random.default_rng(1).bytes(3 * ZERO_COPY_BYTES)
    with Push(context) as push, Pull(context) as last, Router(context) as hub, Dealer(context) as dealer:
        dealer.connect(hub.bind(address(transport)))
        last.connect(push.bind(address(transport)))
        dealer.send_parts([data])
        whole = hub.recv_parts(5)[1]
        assert isinstance(whole, memoryview)
        assert waited_for == [data], "libzmq says when it needs memory of ours no more"

        push.send_parts([b"head", whole, whole, whole[:-1]])
        received = last.recv_parts(5)

        assert [bytes(part) for part in received] == [b"head", data, data, data[:-1]]
        assert len(waited_for) == 2, "only a part of a frame is memory of ours"


def test_a_message_needs_a_part(context: Context) -> None:
    with Push(context) as push:
        with pytest.raises(ValueError, match="at least one part"):
            push.send_parts([])
        push.bind("inproc://nobody")
        assert push.try_send_parts([b"a", b"b"]) is False


def test_a_message_cut_short_between_its_parts_is_sent_anew(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the peer leaves after the first part, libzmq says EAGAIN once, then swallows the rest."""
    given: list[tuple[bytes, int]] = []

    def cut_once(part: bytes, flags: int, _: bool = True) -> None:
        given.append((part, flags & zmq.SNDMORE))
        if len(given) == 2:
            raise zmq.Again

    with Push(context) as push:
        monkeypatch.setattr(push, "_send", cut_once)
        push.send_parts([b"a", b"b", b"c", b"d"])

    more = zmq.SNDMORE
    assert given[:4] == [(b"a", more), (b"b", more), (b"", more), (b"", 0)]
    assert given[4:] == [(b"a", more), (b"b", more), (b"c", more), (b"d", 0)]


@pytest.mark.parametrize("kind", [Push, Scatter, Pub, Pull, Gather, Sub])
def test_what_a_role_has_no_direction_for_is_refused(context: Context, kind: type[Socket]) -> None:
    if kind in (Push, Scatter, Pub):
        calls, words = ("recv", "recv_many", "recv_parts", "recv_parts_many", "__iter__"), "only sends"
    else:
        calls, words = ("send", "try_send", "send_parts", "try_send_parts"), "only receives"
    with kind(context) as socket:
        for call in calls:
            with pytest.raises(WrongDirection, match=f"{kind.__name__} {words}"):
                getattr(socket, call)()


def test_iteration_receives_until_the_context_ends() -> None:
    context = Context()
    received: list[bytes] = []

    def collect() -> None:
        with Pull(context) as pull:
            pull.bind("inproc://iterate")
            received.extend(pull)

    collector = threading.Thread(target=collect)
    collector.start()
    with Push(context) as push:
        push.connect("inproc://iterate")
        for number in range(3):
            push.send(b"%d" % number)
        wait_until(lambda: len(received) == 3)
    context.close()
    collector.join(5)

    assert not collector.is_alive()
    assert received == [b"0", b"1", b"2"]


def test_the_raw_socket_works_with_a_poller(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("tcp://127.0.0.1:*"))
        poller = zmq.Poller()
        poller.register(pull.raw, zmq.POLLIN)
        push.send(b"x")

        assert poller.poll(5000) == [(pull.raw, zmq.POLLIN)]
        assert pull.recv_many() == [b"x"]
        assert pull.fileno() >= 0
