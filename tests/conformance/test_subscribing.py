"""What SUB and XSUB must do towards publishers; `kind` is the typed socket under test."""

from __future__ import annotations

import pytest

from taskmesh.sockets import Sub, XSub
from tests.conformance.coverage import each
from tests.conformance.rig import (
    LARGE,
    PATIENCE_S,
    TINY,
    Rig,
    assert_limits,
    assert_taken_in_turn,
    numbers,
    receive,
)
from tests.conformance.synchrony import assert_sends_unchanged, heard_by, held, subscribe, synchronise

Subscriber = type[Sub] | type[XSub]


@each(Sub="PS-41", XSub="PS-56")
@pytest.mark.parametrize("count", [1, 10])
def test_hears_any_number(rig: Rig, kind: Subscriber, count: int) -> None:
    subscriber = rig.ours(kind)
    publishers = [*rig.peers(count - count // 2, "PUB"), *rig.peers(count // 2, "XPUB")]
    rig.join(subscriber, *publishers)
    subscribe(subscriber, b"")
    for publisher in publishers:
        synchronise(publisher, subscriber)

    for publisher, message in zip(publishers, numbers(count), strict=True):
        publisher.send(message)

    assert sorted(receive(subscriber, count)) == sorted(numbers(count))


@each(Sub="PS-43", XSub="PS-58")
def test_has_a_queue_for_each_publisher(rig: Rig, kind: Subscriber) -> None:
    subscriber = rig.ours(kind, recv_hwm_messages=5)
    greedy, modest = rig.peer("PUB", send_hwm_messages=1000), rig.peer("PUB")
    rig.join(subscriber, greedy, modest)
    subscribe(subscriber, b"")
    synchronise(greedy, subscriber)
    synchronise(modest, subscriber)
    for _ in range(20):
        greedy.send(b"greedy" + LARGE)

    modest.send(b"modest")
    rig.leave(subscriber, modest)

    assert b"modest" in receive(subscriber, 2)


@each(Sub="PS-44")
def test_hears_a_publisher_that_binds_later(rig: Rig, kind: Subscriber) -> None:
    subscriber, publisher = rig.ours(kind, reconnect_interval_ms=10), rig.peer("PUB")
    endpoint = str(publisher.bind(rig.address()))
    publisher.raw.unbind(endpoint)
    subscriber.connect(endpoint)
    subscribe(subscriber, b"a")

    rig.bind_again(publisher, endpoint)
    synchronise(publisher, subscriber)

    assert heard_by(publisher, subscriber, [b"b", b"a"]) == [b"a"]


@each(Sub="PS-45", XSub="PS-60")
@pytest.mark.transports("tcp", "ipc")
def test_keeps_queue_and_subscriptions_over_a_lost_connection(rig: Rig, kind: Subscriber) -> None:
    subscriber, publisher = rig.ours(kind, reconnect_interval_ms=10), rig.peer("PUB")
    endpoint = rig.join(publisher, subscriber)
    subscribe(subscriber, b"a")
    synchronise(publisher, subscriber)
    sent = [b"a" + number for number in numbers(20)]
    for message in sent:
        publisher.send(message)
    rig.leave(subscriber, publisher)
    successor = rig.peer("PUB")
    rig.bind_again(successor, endpoint)

    assert synchronise(successor, subscriber) == [sent]
    assert heard_by(successor, subscriber, [b"b", b"after", b"a"]) == [b"after", b"a"]


@each(Sub="PS-46", XSub="PS-61")
def test_hears_a_publisher_that_connects(rig: Rig, kind: Subscriber) -> None:
    subscriber, early, late = rig.ours(kind), rig.peer("PUB"), rig.peer("PUB")
    rig.join(subscriber, early)
    subscribe(subscriber, b"")
    synchronise(early, subscriber)

    rig.join(subscriber, late)
    synchronise(late, subscriber)

    assert heard_by(late, subscriber, [b"late"]) == [b"late"]
    assert heard_by(early, subscriber, [b"early"]) == [b"early"]


@each(Sub="PS-47 PS-48", XSub="PS-62 PS-63")
def test_delivers_what_it_read_before_the_publisher_left(rig: Rig, kind: Subscriber) -> None:
    """Deviates, D4: the queue is destroyed only when it is empty."""
    subscriber, publisher = rig.ours(kind), rig.peer("PUB")
    rig.join(subscriber, publisher)
    subscribe(subscriber, b"")
    synchronise(publisher, subscriber)
    for message in numbers(100):
        publisher.send(message)

    rig.leave(subscriber, publisher)

    assert receive(subscriber, 100) == numbers(100)
    assert subscriber.recv_many() == []


@each(Sub="PS-49", XSub="PS-64")
def test_has_an_incoming_limit_that_can_be_set(rig: Rig, kind: Subscriber) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        subscriber = rig.ours(kind, **{**TINY, "recv_hwm_messages": limit})
        accepted.append(held(rig, limit, rig.peer("PUB", **TINY), subscriber, binder=subscriber))

    assert_limits(rig, accepted)


@each(Sub="PS-50 TBL-SUB", XSub="PS-66")
def test_stops_reading_when_full(rig: Rig, kind: Subscriber) -> None:
    """Deviates, D7: at its high-water mark it stops reading, and the publisher drops."""
    """The publisher has no limit: over tcp and ipc it keeps all that the full subscriber does not read."""
    subscriber = rig.ours(kind, recv_hwm_messages=5)
    publisher = rig.peer("PUB", send_hwm_messages=0 if rig.is_network else 5)
    subscribe(subscriber, b"")
    rig.join(subscriber, publisher)
    if rig.is_network:
        synchronise(publisher, subscriber)
    sent = [number + LARGE[:16_384] for number in numbers(400)]
    for message in sent:
        publisher.send(message)

    arrived = synchronise(publisher, subscriber)[0]

    assert arrived == (sent if rig.is_network else sent[:10])


@each(Sub="PS-51 TBL-SUB", XSub="PS-67")
def test_takes_from_its_publishers_in_turn(rig: Rig, kind: Subscriber) -> None:
    subscriber, publishers = rig.ours(kind), rig.peers(3, "PUB")
    rig.join(subscriber, *publishers)
    subscribe(subscriber, b"")
    for publisher in publishers:
        synchronise(publisher, subscriber)
    for name, publisher in enumerate(publishers):
        for _ in range(104 if name == 0 else 4):
            publisher.send(b"%d" % name)
    rig.leave(subscriber, *publishers)

    assert_taken_in_turn(receive(subscriber, 112), 3)


@each(Sub="PS-52 PS-54", XSub="PS-65 PS-69")
def test_delivers_messages_unchanged(rig: Rig, kind: Subscriber) -> None:
    subscriber, publisher = rig.ours(kind), rig.peer("PUB")
    rig.join(subscriber, publisher)
    subscribe(subscriber, b"")
    synchronise(publisher, subscriber)

    assert_sends_unchanged(publisher, subscriber)


@each(Sub="PS-53")
def test_filters_what_is_queued_by_the_subscriptions_it_has_when_reading(rig: Rig, kind: type[Sub]) -> None:
    sub, pub = rig.ours(kind), rig.peer("PUB")
    rig.join(sub, pub)
    subscribe(sub, b"a", b"b")
    synchronise(pub, sub)
    for message in (b"b0", b"a1", b"b1", b"a2"):
        pub.send(message)
    rig.leave(sub, pub)  # the first is already taken out of the queue when its arrival is noticed

    sub.unsubscribe(b"a")

    assert sub.recv_many() == [b"b0", b"b1"]


@each(Sub="PS-55")
def test_sends_subscriptions_and_cancellations(rig: Rig, kind: type[Sub]) -> None:
    sub, xpub = rig.ours(kind), rig.peer("XPUB")
    rig.join(xpub, sub)

    sub.subscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x01a\0"]
    sub.unsubscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x00a\0"]
