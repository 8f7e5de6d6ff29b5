"""The last message of each topic, so that a late subscriber learns the present state.

A Pub tells a subscriber nothing of what was published before (D5 in docs/conformance.md: slow joiner). What
is state and not event is therefore kept, and sent again when a subscription arrives. libzmq cannot address
one subscriber: those that already had the value get it once more, so values must be idempotent and are best
numbered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from taskmesh.sockets.errors import InvalidOption
from taskmesh.sockets.pubsub import Subscribed, XPub, XPubEvent
from taskmesh.sockets.traffic import Part

Message = Sequence[Part]


class LastValues:
    """Keeps the newest message of each topic (its first part) and welcomes subscribers with them.

    The XPub must be made with `xpub_verbose`, else the second of two equal subscriptions is not told and gets
    nothing, and with a `send_hwm_messages` above the number of topics that one subscription can match, else
    it drops the rest.

    Args:
        most_topics: how many topics are kept; beyond that the one updated longest ago is forgotten and
            counted.
    """

    def __init__(self, most_topics: int = 100_000) -> None:
        if most_topics < 1:
            raise InvalidOption("most_topics must be at least 1")
        self._most_topics = most_topics
        self._values: OrderedDict[bytes, Message] = OrderedDict()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._values)

    def update(self, message: Message) -> None:
        """Keeps a message as the newest of its topic; a message of one part is its own topic."""
        topic = bytes(message[0])
        self._values[topic] = message
        self._values.move_to_end(topic)
        if len(self._values) > self._most_topics:
            self._values.popitem(last=False)
            self.forgotten += 1

    def drop(self, topic: bytes) -> None:
        """Forgets a topic; nothing happens when it is not kept."""
        self._values.pop(topic, None)

    def matching(self, prefix: bytes) -> list[Message]:
        """The kept messages whose topic begins with `prefix`, the one updated longest ago first."""
        return [message for topic, message in self._values.items() if topic.startswith(prefix)]

    def publish(self, xpub: XPub, message: Message) -> None:
        """Sends a message to the subscribers there are, and keeps it for those to come."""
        self.update(message)
        xpub.send_parts(message)

    def welcome(self, xpub: XPub, event: XPubEvent) -> int:
        """Answers a subscription with the kept messages that it asks for.

        Returns:
            How many were sent; 0 for an event that is no subscription.
        """
        if not isinstance(event, Subscribed):
            return 0
        messages = self.matching(event.topic)
        for message in messages:
            xpub.send_parts(message)
        return len(messages)
