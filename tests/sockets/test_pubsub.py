from __future__ import annotations

from collections.abc import Callable

import pytest

from taskmesh.sockets import (
    Cancelled,
    Context,
    NoMessageWithinTimeout,
    SocketClosed,
    SocketOptions,
    Sub,
    Subscribed,
    UserMessage,
    XPub,
    XSub,
)

Address = Callable[[str], str]
VERBOSE = SocketOptions(xpub_verbose=True)


def test_a_subscriber_gets_what_begins_with_its_topics(
    context: Context, transport: str, address: Address
) -> None:
    with XPub(context) as xpub, Sub(context) as sub:
        sub.connect(xpub.bind(address(transport)))
        sub.subscribe(b"a.")
        sub.subscribe(b"b")
        assert {xpub.recv_event(5), xpub.recv_event(5)} == {Subscribed(b"a."), Subscribed(b"b")}
        for topic in (b"a.1", b"a", b"b", b"bb", b"c"):
            xpub.send_parts([topic, b"body"])
        assert [sub.recv_parts(5)[0] for _ in range(3)] == [b"a.1", b"b", b"bb"]
        sub.unsubscribe(b"b")
        assert xpub.recv_event(5) == Cancelled(b"b")
        xpub.send(b"b again")
        xpub.send(b"a.end")
        assert sub.recv(5) == b"a.end"


def test_events_of_subscribers_are_typed(context: Context) -> None:
    with XPub(context) as xpub, XSub(context) as xsub:
        xsub.connect(xpub.bind("inproc://typed"))
        assert xpub.recv_events_many() == []
        with pytest.raises(NoMessageWithinTimeout):
            xpub.recv_event(0.05)
        xsub.subscribe(b"\0\xff")
        xsub.send(b"hello")
        xsub.send_parts([b"two", b"parts"])
        xsub.unsubscribe(b"\0\xff")

        assert xpub.recv_event(5) == Subscribed(b"\0\xff")
        assert xpub.recv_events_many() == [
            UserMessage((b"hello",)),
            UserMessage((b"two", b"parts")),
            Cancelled(b"\0\xff"),
        ]


def test_equal_subscriptions_are_told_once_or_each(context: Context) -> None:
    for options, expected in ((SocketOptions(), 1), (VERBOSE, 2)):
        with XPub(context, options) as xpub, Sub(context) as first, Sub(context) as second:
            endpoint = xpub.bind("inproc://equal")
            for sub in (first, second):
                sub.subscribe(b"t")
                sub.connect(endpoint)

            assert xpub.recv_events_many() == [Subscribed(b"t")] * expected


def test_a_closed_sub_says_so(context: Context) -> None:
    sub = Sub(context)
    sub.close()
    with pytest.raises(SocketClosed):
        sub.subscribe(b"")
