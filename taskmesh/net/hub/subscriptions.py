"""Topics of the control channel: which there are, which pools have left it, and when there are too many."""

from __future__ import annotations

from collections.abc import Iterable

from taskmesh.net.socket_profiles import pool_of
from taskmesh.sockets import Cancelled, Subscribed, XPubEvent

TOPIC_BYTES = 256
"""Bytes of topics for each pool that a hub may have; its own takes some 40."""


class Subscriptions:
    """What is subscribed to. libzmq keeps that as long as the peer: some 50 bytes for each byte of a topic.

    Args:
        pools: how many there may be.

    Attributes:
        silenced: pools whose subscription has gone.
    """

    def __init__(self, pools: int) -> None:
        self.silenced: set[str] = set()
        self._topics: set[bytes] = set()
        self._size = 0
        self._room = TOPIC_BYTES * (pools + 16)

    @property
    def too_many(self) -> bool:
        """Whether there are more topics than so many pools could need."""
        return self._size > self._room

    def take(self, events: Iterable[XPubEvent]) -> None:
        """Takes in what subscribers have said."""
        for event in events:
            if isinstance(event, Subscribed):
                self._add(event.topic)
            elif isinstance(event, Cancelled):
                self._drop(event.topic)

    def _add(self, topic: bytes) -> None:
        self.silenced.discard(pool_of(topic))
        if topic not in self._topics:
            self._topics.add(topic)
            self._size += len(topic) + 1

    def _drop(self, topic: bytes) -> None:
        if pool := pool_of(topic):
            self.silenced.add(pool)
        if topic in self._topics:
            self._topics.remove(topic)
            self._size -= len(topic) + 1

    def forget(self) -> None:
        """Everybody has been cut off."""
        self._topics.clear()
        self._size = 0
