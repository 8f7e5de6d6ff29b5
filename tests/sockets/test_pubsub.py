from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from taskmesh.sockets import (
    Cancelled,
    Context,
    InvalidOption,
    LastValues,
    NoMessageWithinTimeout,
    Pub,
    Pull,
    Push,
    SocketClosed,
    SocketOptions,
    StopSignal,
    Sub,
    Subscribed,
    UserMessage,
    WrongDirection,
    XPub,
    XSub,
    proxy,
)
from tests.harness.waiting import wait_until

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


@pytest.mark.parametrize("call", ["recv", "recv_parts", "recv_many", "recv_parts_many"])
def test_pub_refuses_to_receive(context: Context, call: str) -> None:
    with Pub(context) as pub, pytest.raises(WrongDirection):
        getattr(pub, call)()


def test_sub_refuses_to_send_and_says_when_it_is_closed(context: Context) -> None:
    sub = Sub(context)
    with pytest.raises(WrongDirection):
        sub.send(b"x")
    sub.close()
    with pytest.raises(SocketClosed):
        sub.subscribe(b"")


def test_last_values_keep_the_newest_of_each_topic_and_forget_the_oldest() -> None:
    values = LastValues(most_topics=2)
    values.update([b"a", b"1"])
    values.update([b"b", b"1"])
    values.update([b"a", b"2"])
    values.update([b"ab"])

    assert values.matching(b"") == [[b"a", b"2"], [b"ab"]]
    assert values.matching(b"ab") == [[b"ab"]]
    assert (len(values), values.forgotten) == (2, 1)
    values.drop(b"ab")
    values.drop(b"never there")
    assert values.matching(b"a") == [[b"a", b"2"]]
    with pytest.raises(InvalidOption):
        LastValues(0)


def test_a_late_subscriber_is_welcomed_with_the_present_state(
    context: Context, transport: str, address: Address
) -> None:
    values = LastValues()
    with XPub(context, VERBOSE) as xpub, Sub(context) as early, Sub(context) as late:
        endpoint = xpub.bind(address(transport))
        early.subscribe(b"state.")
        early.connect(endpoint)
        assert values.welcome(xpub, xpub.recv_event(5)) == 0
        values.publish(xpub, [b"state.x", b"1"])
        values.publish(xpub, [b"state.y", b"1"])
        values.publish(xpub, [b"state.x", b"2"])
        late.subscribe(b"state.x")
        late.connect(endpoint)
        assert values.welcome(xpub, xpub.recv_event(5)) == 1

        assert late.recv_parts(5) == [b"state.x", b"2"]
        assert [early.recv_parts(5)[1] for _ in range(3)] == [b"1", b"1", b"2"]
        late.unsubscribe(b"state.x")
        assert values.welcome(xpub, Cancelled(b"state.x")) == 0


@contextmanager
def running_proxy(
    context: Context,
    address: str,
    options: SocketOptions,
    capture: Push | None = None,
    values: LastValues | None = None,
) -> Iterator[tuple[str, str]]:
    """A proxy in a thread; gives the endpoints for publishers and for subscribers."""
    with XSub(context) as frontend, XPub(context, options) as backend, StopSignal() as stop:
        if values is not None:
            frontend.subscribe(b"")
        endpoints = frontend.bind(address + "f"), backend.bind(address + "b")
        thread = threading.Thread(
            target=proxy,
            args=(frontend, backend),
            kwargs={"stop": stop, "capture": capture, "last_values": values},
        )
        thread.start()
        try:
            yield endpoints
        finally:
            stop.set()
            stop.set()
            thread.join(5)
            assert not thread.is_alive()


def test_proxy_joins_many_publishers_to_many_subscribers(context: Context) -> None:
    with (
        running_proxy(context, "inproc://many-", SocketOptions()) as (publishers, subscribers),
        XPub(context) as one,
        XPub(context) as two,
        Sub(context) as red,
        Sub(context) as all_colours,
    ):
        for pub in (one, two):
            pub.connect(publishers)
        red.subscribe(b"red")
        red.connect(subscribers)
        all_colours.subscribe(b"")
        all_colours.connect(subscribers)
        for pub in (one, two):
            assert {pub.recv_event(5), pub.recv_event(5)} == {Subscribed(b"red"), Subscribed(b"")}
        one.send_parts([b"red", b"1"])
        two.send_parts([b"red", b"2"])
        two.send_parts([b"blue", b"3"])

        assert {bytes(red.recv_parts(5)[1]) for _ in range(2)} == {b"1", b"2"}
        assert {bytes(all_colours.recv_parts(5)[1]) for _ in range(3)} == {b"1", b"2", b"3"}
        assert red.recv_parts_many() == []


def test_proxy_ends_a_subscription_upstream_when_the_last_subscriber_has_gone(context: Context) -> None:
    with running_proxy(context, "inproc://end-", VERBOSE) as (publishers, subscribers), XPub(context) as pub:
        pub.connect(publishers)
        with Sub(context) as first:
            first.subscribe(b"t")
            first.connect(subscribers)
            assert pub.recv_event(5) == Subscribed(b"t")
            with Sub(context) as second:
                second.subscribe(b"t")
                second.connect(subscribers)

        assert pub.recv_event(5) == Cancelled(b"t")


def test_proxy_carries_user_messages_upstream_and_copies_to_the_capture(context: Context) -> None:
    with Push(context) as capture, Pull(context) as tap:
        tap.connect(capture.bind("inproc://tap"))
        with (
            running_proxy(context, "inproc://up-", SocketOptions(), capture) as (publishers, subscribers),
            XPub(context) as pub,
            XSub(context) as xsub,
        ):
            pub.connect(publishers)
            xsub.connect(subscribers)
            xsub.subscribe(b"n")
            xsub.send_parts([b"to", b"publisher"])
            assert pub.recv_event(5) == Subscribed(b"n")
            assert pub.recv_event(5) == UserMessage((b"to", b"publisher"))
            pub.send_parts([b"news", b"1"])
            assert xsub.recv_parts(5) == [b"news", b"1"]
            assert tap.recv_parts(5) == [b"news", b"1"]


def test_proxy_welcomes_late_subscribers_with_the_last_values(context: Context) -> None:
    values = LastValues()
    with (
        running_proxy(context, "inproc://last-", VERBOSE, values=values) as (publishers, subscribers),
        XPub(context) as pub,
        Sub(context) as first,
        Sub(context) as second,
    ):
        pub.connect(publishers)
        assert pub.recv_event(5) == Subscribed(b"")
        pub.send_parts([b"state", b"old"])
        pub.send_parts([b"state", b"new"])
        wait_until(lambda: values.matching(b"state") == [[b"state", b"new"]])
        for sub in (first, second):
            sub.subscribe(b"state")
            sub.connect(subscribers)
            assert sub.recv_parts(5) == [b"state", b"new"]


def test_proxy_ends_with_its_context() -> None:
    context = Context()
    frontend, backend = XSub(context), XPub(context)
    thread = threading.Thread(target=proxy, args=(frontend, backend))
    thread.start()
    ending = threading.Thread(target=context.close)
    ending.start()
    thread.join(5)
    frontend.close()
    backend.close()
    ending.join(5)

    assert not thread.is_alive()
    assert context.raw.closed
