"""Subscriptions to the control channel: the topics, the pools that have left it, and a bound of both."""

from __future__ import annotations

from collections.abc import Iterable

from taskmesh.link.socket_profiles import pool_of
from taskmesh.sockets import Cancelled, Subscribed, XPubEvent

TOPIC_BYTES = 256
"""Bytes of topics for each pool that a hub may have; a pool's own takes some 40."""


class Subscriptions:
    """The topics that peers have subscribed to.

    libzmq keeps them as long as the peer: some 50 bytes for each byte of a topic.

    Args:
        pools: number of pools that there may be.

    Attributes:
        silenced: pools whose subscription has gone. It still has if another process has taken the pool's name
            since: that one's subscription says nothing of the links of the first.
    """

    def __init__(self, pools: int) -> None:
        self.silenced: set[str] = set()
        self._topics: set[bytes] = set()
        self._size = 0
        self._room = TOPIC_BYTES * (pools + 16)

    @property
    def too_many(self) -> bool:
        """True if there are more topics than the pools could need."""
        return self._size > self._room

    def take(self, events: Iterable[XPubEvent]) -> None:
        for event in events:
            if isinstance(event, Subscribed):
                self._add(event.topic)
            elif isinstance(event, Cancelled):
                self._drop(event.topic)

    def _add(self, topic: bytes) -> None:
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
        """Forget all topics: every peer has been cut off."""
        self._topics.clear()
        self._size = 0
