"""Scatter and Gather: 49/SCATTERGATHER, the pipeline for many threads, in messages of one part.

They are Push and Pull inside a lock, and can talk to those: libzmq's own types are drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import zmq
from zmq import Frame

from taskmesh.sockets.errors import (
    ContextClosed,
    MultipartRefused,
    NoMessageWithinTimeout,
    NoPeerWithinTimeout,
)
from taskmesh.sockets.roles import Role
from taskmesh.sockets.shared_socket import SharedSocket
from taskmesh.sockets.socket import translated
from taskmesh.sockets.traffic import NOBLOCK, ReceiveOnly, Sendable, SendOnly


class Scatter(SendOnly, SharedSocket):
    """Sends to its Gather peers in turn, from any thread (SG-14, SG-15, SG-17).

    With no peer available it waits or raises NoPeerWithinTimeout, and keeps no other thread from anything but
    sending.
    """

    __slots__ = ()
    role = Role.SCATTER
    emulated_by = Role.PUSH

    def send(self, data: Sendable, timeout: float | None = None) -> None:
        """Send a message. When it returns, the message is queued for one peer.

        Args:
            data: the message; it is copied.
            timeout: seconds to wait for a peer with room; None waits for ever, 0 not at all.

        Raises:
            MultipartRefused: data is a sequence of parts.
            NoPeerWithinTimeout: nothing was queued.
        """
        try:
            with self._lock:
                if not self._line:
                    try:
                        self._send(data, NOBLOCK)
                        return
                    except zmq.Again:
                        pass
                self._stand_in_line(partial(self._send, data, NOBLOCK), zmq.POLLOUT, timeout)
        except zmq.Again:
            raise NoPeerWithinTimeout(
                f"no peer of this SCATTER had room within {timeout} s; nothing was queued", zmq.EAGAIN
            ) from None
        except zmq.ZMQError as error:
            raise translated(error, self) from None
        except (TypeError, ValueError):
            given: object = data
            if isinstance(given, (list, tuple)):
                self.send_parts(given)
            raise

    def try_send(self, data: Sendable) -> bool:
        """Send a message if a peer has room for it now and no other thread stands in line.

        Returns:
            False when nothing was queued.
        """
        try:
            self.send(data, 0)
        except NoPeerWithinTimeout:
            return False
        return True

    def send_parts(self, parts: Sequence[Sendable], timeout: float | None = None) -> NoReturn:
        """Refused: a message of several parts could not be atomic (SG-03, SG-21).

        Raises:
            MultipartRefused: always.
        """
        raise MultipartRefused("SCATTER sends one part; join the parts, or use Push", zmq.EINVAL) from None

    try_send_parts = send_parts


class Gather(ReceiveOnly, SharedSocket):
    """Receives from its Scatter peers by fair queueing, in any thread (SG-32 to SG-34).

    Messages of several parts are discarded (SG-36); their sender is kept (SG-37 is not used).
    """

    __slots__ = ()
    role = Role.GATHER
    emulated_by = Role.PULL

    def recv(self, timeout: float | None = None) -> bytes:
        """Receive a message.

        Args:
            timeout: seconds to wait; None waits for ever, 0 not at all.

        Raises:
            NoMessageWithinTimeout: nothing arrived.
        """
        try:
            with self._lock:
                if not self._line:
                    try:
                        frame: Frame = self._recv(NOBLOCK, False)  # type: ignore[assignment]
                        if not frame.more:
                            return frame.bytes
                        self._discard_rest()
                    except zmq.Again:
                        pass
                return self._stand_in_line(self._take, zmq.POLLIN, timeout)
        except zmq.Again:
            message = f"no message for this GATHER within {timeout} s"
            raise NoMessageWithinTimeout(message, zmq.EAGAIN) from None
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def recv_many(self, limit: int | None = None) -> list[bytes]:
        """Take the messages that are there, without waiting: until nothing is left, or `limit` of them."""
        messages: list[bytes] = []
        recv_frame: Callable[[int, bool], Frame] = self._recv  # type: ignore[assignment]
        try:
            with self._lock:
                while not self._line and (limit is None or len(messages) < limit):
                    frame = recv_frame(NOBLOCK, False)
                    if frame.more:
                        self._discard_rest()
                    else:
                        messages.append(frame.bytes)
        except zmq.Again:
            pass
        except zmq.ZMQError as error:
            if not messages:
                raise translated(error, self) from None
        return messages

    def recv_parts(self, timeout: float | None = None) -> NoReturn:
        """Refused: there are no messages of several parts here.

        Raises:
            MultipartRefused: always.
        """
        raise MultipartRefused("GATHER receives one part; use recv()", zmq.EINVAL)

    recv_parts_many = recv_parts

    def __iter__(self) -> Iterator[bytes]:
        """Receive for ever; end when the context is closed. Several threads may iterate."""
        try:
            while True:
                yield self.recv()
        except ContextClosed:
            return

    def _take(self) -> bytes:
        """The next message of one part; those of several are dropped. The lock is held."""
        recv_frame: Callable[[int, bool], Frame] = self._recv  # type: ignore[assignment]
        while True:
            frame = recv_frame(NOBLOCK, False)
            if not frame.more:
                return frame.bytes
            self._discard_rest()

    def _discard_rest(self) -> None:
        """Drop the parts that follow the one just read; libzmq has them all. The lock is held."""
        frame: Frame = self._recv(NOBLOCK, False)  # type: ignore[assignment]
        while frame.more:
            frame = self._recv(NOBLOCK, False)  # type: ignore[assignment]
