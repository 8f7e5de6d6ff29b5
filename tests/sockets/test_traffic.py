from __future__ import annotations

import math
import threading
import time
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
    NoPeerWithinTimeout,
    Pair,
    PeerUnreachable,
    Pub,
    Pull,
    Push,
    Rep,
    Req,
    Router,
    Scatter,
    Socket,
    SocketOptions,
    Sub,
    WrongDirection,
    WrongTurn,
)
from tests.harness.waiting import wait_until

Address = Callable[[str], str]
gc_store = gc.store
SMALL = SocketOptions(send_hwm_messages=1, recv_hwm_messages=1)


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


def test_send_without_a_peer_raises_when_the_time_is_up_and_queues_nothing(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        endpoint = push.bind("tcp://127.0.0.1:*")
        start = time.monotonic()

        with pytest.raises(NoPeerWithinTimeout, match="nothing was queued"):
            push.send(b"lost?", timeout=0.1)
        assert 0.1 <= time.monotonic() - start < 2
        with pytest.raises(TimeoutError):
            push.send(b"lost?", timeout=0)
        assert push.try_send(b"lost?") is False
        assert push.try_send_parts([b"lost?", b"too"]) is False

        pull.connect(endpoint)
        push.send(b"kept", timeout=5)
        assert pull.recv(5) == b"kept"
        assert pull.recv_many() == []


def test_send_waits_until_a_peer_has_room(context: Context) -> None:
    with Push(context, SMALL) as push, Pull(context, SMALL) as pull:
        pull.connect(push.bind("inproc://room"))
        while push.try_send(b"x"):
            pass
        with pytest.raises(NoPeerWithinTimeout):
            push.send(b"y", timeout=0.05)

        assert pull.recv(5) == b"x"
        push.send(b"z", timeout=5)
        assert [pull.recv(5), pull.recv(5)] == [b"x", b"z"]


def test_recv_raises_when_nothing_came(context: Context) -> None:
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
    with Push(context) as push, pytest.raises(ValueError, match="at least one part"):
        push.send_parts([])


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


def test_router_and_dealer_exchange_addressed_messages(context: Context) -> None:
    mandatory = SocketOptions(router_mandatory=True)
    with Router(context, mandatory) as router, Dealer(context, SocketOptions(identity=b"d1")) as dealer:
        dealer.connect(router.bind("tcp://127.0.0.1:*"))
        assert dealer.try_send_parts([b"hello", b"there"])
        assert router.recv_parts(5) == [b"d1", b"hello", b"there"]
        assert router.try_send_parts([b"d1", b"back"])
        assert dealer.recv(5) == b"back"
        with pytest.raises(PeerUnreachable, match="identity"):
            router.try_send_parts([b"nobody", b"x"])
        with pytest.raises(PeerUnreachable):
            router.send_parts([b"nobody", b"x"], timeout=1)


def test_router_with_router_mandatory_reports_a_full_peer_without_losing_its_place(context: Context) -> None:
    small_mandatory = SocketOptions(send_hwm_messages=2, recv_hwm_messages=2, router_mandatory=True)
    with Router(context, small_mandatory) as router, Dealer(context, SMALL) as dealer:
        router.bind("inproc://full")
        dealer.connect("inproc://full")
        dealer.send(b"hello")
        identity = router.recv_parts(5)[0]
        accepted = 0
        while router.try_send_parts([identity, b"%d" % accepted]):
            accepted += 1
        with pytest.raises(NoPeerWithinTimeout):
            router.send_parts([identity, b"late"], timeout=0.05)

        assert [dealer.recv(5) for _ in range(accepted)] == [b"%d" % number for number in range(accepted)]
        router.send_parts([identity, b"next"], timeout=5)
        assert dealer.recv_parts(5) == [b"next"]


def test_req_and_rep_alternate(context: Context) -> None:
    with Req(context) as req, Rep(context) as rep:
        rep.connect(req.bind("inproc://turns"))
        req.send(b"question", timeout=5)
        with pytest.raises(WrongTurn, match="other one's turn"):
            req.send(b"again")
        with pytest.raises(WrongTurn):
            rep.send(b"too early")
        assert rep.recv(5) == b"question"
        rep.send(b"answer")
        assert req.recv(5) == b"answer"


def test_pair_talks_both_ways(context: Context) -> None:
    with Pair(context) as left, Pair(context) as right:
        right.connect(left.bind("inproc://pair"))
        left.send(b"l")
        right.send(b"r")
        assert (left.recv(5), right.recv(5)) == (b"r", b"l")


def test_the_raw_socket_works_with_a_poller(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("tcp://127.0.0.1:*"))
        poller = zmq.Poller()
        poller.register(pull.raw, zmq.POLLIN)
        push.send(b"x")

        assert poller.poll(5000) == [(pull.raw, zmq.POLLIN)]
        assert pull.recv_many() == [b"x"]
        assert pull.fileno() >= 0
