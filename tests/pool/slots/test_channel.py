"""Frames and descriptors over a stream socket."""

import errno
import os
import select
import socket
import time

import pytest

from taskmesh.errors import RemoteProtocolError
from taskmesh.pool.slots.channel import Inbound, Outbound, pack, send_all
from taskmesh.pool.slots.messages import HEADER


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        yield left, right


def all_frames(inbound):
    """Everything that can be read now, with copies of the bodies."""
    found = []
    try:
        while inbound.receive():
            found += [(kind, bytes(body), fds) for kind, body, fds in inbound.frames()]
    except BlockingIOError:
        pass
    return found


def test_frames_come_out_as_they_went_in(pair):
    left, right = pair
    frames = [(1, b""), (2, b"x"), (3, b"y" * 100_000), (4, b"z")]
    outbound, inbound = Outbound(left), Inbound(right)

    for kind, body in frames:
        outbound.send(pack(kind, body))
    found = all_frames(inbound)
    while not outbound.flush():
        found += all_frames(inbound)
    found += all_frames(inbound)

    assert found == [(kind, body, []) for kind, body in frames]


def test_end_that_is_closed_with_frames_unread_is_an_end(pair):
    left, right = pair
    inbound = Inbound(right)
    send_all(right, pack(1, b"unread"))
    send_all(left, pack(2, b"last"))
    left.close()

    assert inbound.receive()
    assert [bytes(body) for _, body, _ in inbound.frames()] == [b"last"]
    assert not inbound.receive()
    assert not inbound.receive()


def test_frame_larger_than_any_buffer(pair):
    left, right = pair
    outbound, inbound = Outbound(left), Inbound(right)
    body = os.urandom(5_000_000)

    outbound.send(pack(7, body))
    outbound.send(pack(8, b"after"))
    found = all_frames(inbound)
    while outbound.queue:
        outbound.flush()
        found += all_frames(inbound)

    assert found == [(7, body, []), (8, b"after", [])]
    assert not outbound.queue


def test_frames_cut_at_every_byte(pair):
    left, right = pair
    inbound = Inbound(right)
    data = pack(1, b"abc") + pack(2, b"") + pack(3, b"de")
    found = []

    for i in range(len(data)):
        left.send(data[i : i + 1])
        found += all_frames(inbound)

    assert found == [(1, b"abc", []), (2, b"", []), (3, b"de", [])]


@pytest.mark.parametrize("count", [1, 253, 254, 600])
def test_descriptors_arrive_with_their_frame(pair, count):
    left, right = pair
    outbound, inbound = Outbound(left), Inbound(right)
    reader, writer = os.pipe()
    try:
        outbound.send(pack(1, b"before"))
        outbound.send(pack(2, b"with them", count), [writer] * count)
        outbound.send(pack(3, b"after"))
        found = all_frames(inbound)
    finally:
        os.close(writer)

    assert [(kind, body, len(fds)) for kind, body, fds in found] == [
        (1, b"before", 0),
        (2, b"with them", count),
        (3, b"after", 0),
    ]
    for fd in found[1][2]:
        assert os.write(fd, b"!") == 1
        os.close(fd)
    assert os.read(reader, 1000) == b"!" * count
    os.close(reader)


def test_missing_descriptors_are_an_error(pair):
    left, right = pair
    left.send(pack(1, b"", 2))
    inbound = Inbound(right)
    inbound.receive()

    with pytest.raises(RemoteProtocolError, match="too many open files"):
        list(inbound.frames())


def test_unclaimed_descriptors_can_be_closed(pair):
    left, right = pair
    reader, writer = os.pipe()
    send_all(left, HEADER.pack(10, 1, 1), [writer])
    os.close(writer)
    inbound = Inbound(right)
    inbound.receive()

    inbound.close_fds()

    assert os.read(reader, 1) == b""
    os.close(reader)


def test_full_socket_does_not_block(pair):
    left, _ = pair
    outbound = Outbound(left)

    for _ in range(100):
        outbound.send(pack(1, b"x" * 50_000))

    assert not outbound.flush()
    assert outbound.queue


class Crowded(socket.socket):
    """A socket of a user who has too many descriptors in flight, until told otherwise."""

    crowded = True
    attempts = 0

    def sendmsg(self, *args):
        self.attempts += 1
        if self.crowded:
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        return super().sendmsg(*args)


def test_too_many_descriptors_in_flight_are_waited_for_without_spinning(pair):
    left, right = pair
    reader, writer = os.pipe()
    with Crowded(fileno=left.detach()) as crowded:
        outbound, inbound = Outbound(crowded), Inbound(right)
        outbound.send(pack(1, b"with it", 1), [writer])
        outbound.send(pack(2, b"after"))
        outbound.send(pack(3, b"and again", 1), [writer])
        assert crowded.attempts == 1

        begin = time.monotonic()
        while crowded.attempts < 10:
            select.select([], [crowded], [])
            assert not outbound.flush()
        took = time.monotonic() - begin
        crowded.crowded = False
        assert outbound.flush()
        os.close(writer)

        assert took > 0.05
        found = all_frames(inbound)
        assert [(kind, body, len(fds)) for kind, body, fds in found] == [
            (1, b"with it", 1),
            (2, b"after", 0),
            (3, b"and again", 1),
        ]
        for fd in (*found[0][2], *found[2][2]):
            assert os.write(fd, b"!") == 1
            os.close(fd)
        os.close(reader)


def test_closed_end_is_told(pair):
    left, right = pair
    right.close()
    outbound, inbound = Outbound(left), Inbound(left)

    assert not inbound.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        outbound.send(pack(1, b"x"))
