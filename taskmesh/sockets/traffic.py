"""The two directions of traffic, and the roles that have no more than these.

All waits are: try without blocking, wait for readiness, try again; so a time-out never leaves half a message
behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import zmq
from zmq import Frame

from taskmesh.sockets.errors import ContextClosed, NoMessageWithinTimeout, NoPeerWithinTimeout, WrongDirection
from taskmesh.sockets.roles import Role
from taskmesh.sockets.socket import Socket, translated

Sendable = bytes | bytearray | memoryview | Frame
"""Objects that can be sent as one part."""

Part = bytes | memoryview
"""Parts as recv_parts gives them: bytes, or from ZERO_COPY_BYTES on a view of libzmq's own memory."""

ZERO_COPY_BYTES = 65_536
"""From this size on send_parts and recv_parts do not copy (pyzmq's own threshold; it pays from 10-64 KiB)."""

T = TypeVar("T")
NOBLOCK = int(zmq.NOBLOCK)
SNDMORE = int(zmq.SNDMORE)
POLLIN = int(zmq.POLLIN)
NOBLOCK_MORE = NOBLOCK | SNDMORE

MOST_PARTS = 10_000
"""Parts of one message that are kept where its sender is asked for, and so is not trusted."""


class SendingParts(Socket):
    """The sending half of a role."""

    __slots__ = ()

    def send(self, data: Sendable, timeout: float | None = None) -> None:
        """Send a message of one part. When it returns, the message is queued for one peer.

        Args:
            data: the message; it is copied.
            timeout: seconds to wait for a peer with room; None waits for ever, 0 not at all.

        Raises:
            NoPeerWithinTimeout: nothing was queued.
        """
        try:
            if timeout is None:
                self._send(data)
                return
            self._send(data, NOBLOCK)
        except zmq.Again:
            self._retry(partial(self.try_send, data), timeout or 0.0)
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def try_send(self, data: Sendable) -> bool:
        """Send a message of one part if a peer has room for it now.

        Returns:
            False when nothing was queued. POLLOUT on `raw` tells when to try again.
        """
        try:
            self._send(data, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise translated(error, self) from None
        return True

    def _retry(self, attempt: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._wait(zmq.POLLOUT, left)
            if attempt():
                return
        raise NoPeerWithinTimeout(
            f"no peer of this {self.role.value} had room within {timeout} s; nothing was queued", zmq.EAGAIN
        ) from None

    def send_parts(self, parts: Sequence[Sendable], timeout: float | None = None) -> None:
        """Send one message of several parts, all of them or none.

        Args:
            parts: at least one. From ZERO_COPY_BYTES on a part is not copied: leave it unchanged until it is
                sent.
            timeout: seconds to wait for a peer with room; None waits for ever, 0 not at all.

        Raises:
            NoPeerWithinTimeout: nothing was queued.
        """
        try:
            while not self._send_parts_now(parts, 0 if timeout is None else NOBLOCK):
                if timeout is not None:
                    self._retry(partial(self.try_send_parts, parts), timeout)
                    return
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def try_send_parts(self, parts: Sequence[Sendable]) -> bool:
        """Send one message of several parts if a peer has room for it now.

        Returns:
            False when nothing was queued.

        Raises:
            PeerUnreachable: Router with router_mandatory: nobody has this identity.
        """
        try:
            return self._send_parts_now(parts, NOBLOCK)
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def _send_parts_now(self, parts: Sequence[Sendable], flags: int) -> bool:
        send, last = self._send, len(parts) - 1
        if last < 0:
            raise ValueError("a message has at least one part")
        more, index = flags | SNDMORE, 0
        try:
            for index, part in enumerate(parts):
                data = part if type(part) is bytes else whole_frame(part)
                send(data, more if index < last else flags, False)
        except zmq.Again:
            # Not at the first part: the peer left in between. libzmq has rolled the message back and now
            # swallows its remaining parts, so these must follow before the message can be sent anew.
            if 0 < index < last:
                for later in range(index + 1, last + 1):
                    send(b"", NOBLOCK_MORE if later < last else NOBLOCK)
            return False
        return True


class ReceivingParts(Socket):
    """The receiving half of a role."""

    __slots__ = ()

    def recv(self, timeout: float | None = None) -> bytes:
        """Receive one part: a whole message, unless the sender sends several parts (then see recv_parts).

        Args:
            timeout: seconds to wait; None waits for ever, 0 not at all.

        Raises:
            NoMessageWithinTimeout: nothing arrived.
        """
        try:
            if timeout is None:
                return self._recv()
            return self._recv(NOBLOCK)
        except zmq.Again:
            return self._recv_until(self._recv, timeout or 0.0)
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def recv_many(self, limit: int | None = None) -> list[bytes]:
        """Take the parts that are there, without waiting: until nothing is left, or `limit` of them.

        Parts of a message of several parts follow each other in the list; libzmq delivers such a message
        whole, so only a limit can cut it, and the next call then goes on with its next part. Large parts are
        copied.

        Returns:
            The parts in order of arrival; empty when nothing is there.
        """
        recv = self._recv
        parts: list[bytes] = []
        append = parts.append
        try:
            if limit is None:
                while True:
                    append(recv(NOBLOCK))
            for _ in range(limit):
                append(recv(NOBLOCK))
        except zmq.Again:
            pass
        except zmq.ZMQError as error:
            if not parts:
                raise translated(error, self) from None
        return parts

    def __iter__(self) -> Iterator[bytes]:
        """Receive for ever; end when the context is closed."""
        try:
            while True:
                yield self.recv()
        except ContextClosed:
            return

    def _recv_until(self, attempt: Callable[[int], T], timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._wait(zmq.POLLIN, left)
            try:
                return attempt(NOBLOCK)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                raise translated(error, self) from None
        message = f"no message for this {self.role.value} within {timeout} s"
        raise NoMessageWithinTimeout(message, zmq.EAGAIN) from None

    def recv_parts(self, timeout: float | None = None) -> list[Part]:
        """Receive one whole message.

        Args:
            timeout: seconds to wait; None waits for ever, 0 not at all.

        Returns:
            Its parts: bytes, or a view of libzmq's memory from ZERO_COPY_BYTES on (it keeps that memory
            alive).

        Raises:
            NoMessageWithinTimeout: nothing arrived.
        """
        try:
            return self._recv_parts_now(0 if timeout is None else NOBLOCK)
        except zmq.Again:
            return self._recv_until(self._recv_parts_now, timeout or 0.0)
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def recv_parts_many(self, limit: int | None = None) -> list[list[Part]]:
        """Take the whole messages that are there, without waiting: until none is left, or `limit` of them.

        Costs about three times recv_many for each part, because libzmq is asked whether more follow.
        """
        return self._all_there(self._recv_parts_now, limit)

    def recv_parts_from(self, limit: int) -> list[tuple[str, list[Part]]]:
        """Take at most `limit` whole messages that are there, each with its sender as ZAP has named it.

        Returns:
            The User-Id of the ZAP reply and the parts; the first is "" where no handler was asked. Of a
            message with more than MOST_PARTS parts the rest is dropped.
        """
        return self._all_there(self._recv_parts_and_sender_now, limit)

    def _all_there(self, receive: Callable[[int], T], limit: int | None) -> list[T]:
        messages: list[T] = []
        if limit is not None and limit < 1:
            return messages
        try:
            messages.append(receive(NOBLOCK))
            if not self._option(zmq.EVENTS) & POLLIN:  # mostly so; zmq.Again would take three times as long
                return messages
            while limit is None or len(messages) < limit:
                messages.append(receive(NOBLOCK))
        except zmq.Again:
            pass
        except zmq.ZMQError as error:
            if not messages:
                raise translated(error, self) from None
        return messages

    def _recv_parts_and_sender_now(self, flags: int) -> tuple[str, list[Part]]:
        recv_frame: Callable[[int, bool], Frame] = self._recv  # type: ignore[assignment]
        frame = recv_frame(flags, False)
        parts = [part_of(frame)]
        while frame.more:
            frame = recv_frame(flags, False)
            if len(parts) < MOST_PARTS:
                parts.append(part_of(frame))
        return user_of(frame), parts

    def _recv_parts_now(self, flags: int) -> list[Part]:
        recv_frame: Callable[[int, bool], Frame] = self._recv  # type: ignore[assignment]
        frame = recv_frame(flags, False)
        parts: list[Part] = [frame.bytes if len(frame) < ZERO_COPY_BYTES else frame.buffer]
        while frame.more:
            frame = recv_frame(flags, False)
            parts.append(frame.bytes if len(frame) < ZERO_COPY_BYTES else frame.buffer)
        return parts


def part_of(frame: Frame) -> Part:
    """Return what a frame holds; a large one is not copied."""
    return frame.bytes if len(frame) < ZERO_COPY_BYTES else frame.buffer


def whole_frame(part: Sendable) -> Sendable:
    """The received frame that a view shows, if it shows all of it: libzmq counts who needs its memory.

    Of other memory a thread of pyzmq waits for the end of the sending (45 us a message of the hub's time).
    """
    if type(part) is memoryview:
        owner: object = part.obj
        if type(owner) is Frame and len(owner) == part.nbytes:
            return owner
    return part


def user_of(frame: Frame) -> str:
    """Return who sent it, by the name that the ZAP handler gave."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:  # no handler was asked
        return ""


class SendOnly:
    """Says what a role without incoming traffic has to say about receiving."""

    __slots__ = ()

    def recv(self, *_: object, **__: object) -> NoReturn:
        """Refused.

        Raises:
            WrongDirection: always.
        """
        raise WrongDirection(f"{type(self).__name__} only sends; its peer receives", zmq.ENOTSUP)

    recv_many = recv_parts = recv_parts_many = __iter__ = recv


class ReceiveOnly:
    """Says what a role without outgoing traffic has to say about sending."""

    __slots__ = ()

    def send(self, *_: object, **__: object) -> NoReturn:
        """Refused.

        Raises:
            WrongDirection: always.
        """
        raise WrongDirection(f"{type(self).__name__} only receives; its peer sends", zmq.ENOTSUP)

    try_send = send_parts = try_send_parts = send


# --- roles that have no more than these --------------------------------------------------------------------


class Push(SendOnly, SendingParts):
    """Sends to its Pull peers in turn, skipping those whose queue is full (PIPE-12, PIPE-13).

    With no peer available it waits or raises NoPeerWithinTimeout; it never drops what it cannot queue
    (PIPE-14 to PIPE-16). A message that was queued is lost when its peer dies: that needs a ledger.
    """

    __slots__ = ()
    role = Role.PUSH


class Pull(ReceiveOnly, ReceivingParts):
    """Receives from its Push peers by fair queueing (PIPE-27).

    What arrived before a peer left is still delivered: libzmq differs from PIPE-24 and PIPE-25 here.
    """

    __slots__ = ()
    role = Role.PULL


class Req(SendingParts, ReceivingParts):
    """Asks: send, recv, send, ... Requests go round its peers; WrongTurn when the rhythm is broken."""

    __slots__ = ()
    role = Role.REQ


class Rep(SendingParts, ReceivingParts):
    """Answers: recv, send, recv, ... A reply to a requester that is gone is dropped."""

    __slots__ = ()
    role = Role.REP


class Dealer(SendingParts, ReceivingParts):
    """Sends to its peers in turn and receives by fair queueing, without a rhythm."""

    __slots__ = ()
    role = Role.DEALER


class Router(SendingParts, ReceivingParts):
    """Puts the sender's identity before each message, and sends to the identity in the first part.

    An unknown identity or a full peer drops the message, unless `router_mandatory` is set: then an unknown
    identity raises PeerUnreachable, and for a full peer send_parts waits and try_send_parts returns False.
    """

    __slots__ = ()
    role = Role.ROUTER


class Pair(SendingParts, ReceivingParts):
    """Talks to exactly one other Pair."""

    __slots__ = ()
    role = Role.PAIR
