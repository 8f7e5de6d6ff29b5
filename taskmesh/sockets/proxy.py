"""proxy(): many publishers to many subscribers through one XSub and one XPub."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import zmq

from taskmesh.sockets.errors import ContextClosed
from taskmesh.sockets.last_value import LastValues
from taskmesh.sockets.pubsub import CANCEL, SUBSCRIBE, Subscribed, UserMessage, XPub, XPubEvent, XSub
from taskmesh.sockets.traffic import SendingParts
from taskmesh.system.wakeup import Wakeup

MESSAGES_A_TURN = 1000
"""How many messages are passed on before subscriptions are looked at again."""


class StopSignal:
    """Ends a proxy() from another thread."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return what a poller waits on: readable for good once set() was called."""
        return self._wakeup.fileno()

    def set(self) -> None:
        """Gives the signal; giving it again does nothing."""
        self._wakeup.set()

    def close(self) -> None:
        """Releases the descriptors; no proxy may wait on it any more."""
        self._wakeup.close()


def proxy(
    frontend: XSub,
    backend: XPub,
    *,
    stop: StopSignal | None = None,
    last_values: LastValues | None = None,
    capture: SendingParts | None = None,
) -> None:
    """Passes messages from publishers to subscribers, and subscriptions and user messages the other way.

    Runs in the calling thread until `stop` is set or the context is closed; both sockets belong to it as
    long.

    Args:
        frontend: where publishers connect.
        backend: where subscribers connect.
        stop: ends it.
        last_values: keeps the newest message of each topic and welcomes new subscribers with them; the
            backend must then be made with `xpub_verbose`. Give it the topics to keep by
            `frontend.subscribe(b"")`: without a subscriber nothing reaches a proxy otherwise.
        capture: gets a copy of every message published, unless it is full.
    """
    poller = zmq.Poller()
    poller.register(frontend.raw, zmq.POLLIN)
    poller.register(backend.raw, zmq.POLLIN)
    if stop is not None:
        poller.register(stop.fileno(), zmq.POLLIN)
    upstream = Upstream(frontend)
    try:
        while True:
            ready = dict(poller.poll())
            if stop is not None and stop.fileno() in ready:
                return
            for event in backend.recv_events_many():
                upstream.forward(event)
                if last_values is not None:
                    last_values.welcome(backend, event)
            for parts in frontend.recv_parts_many(limit=MESSAGES_A_TURN):
                if last_values is not None:
                    last_values.update(parts)
                backend.send_parts(parts)
                if capture is not None:
                    capture.try_send_parts(parts)
    except (ContextClosed, zmq.ContextTerminated):
        return


class Upstream:
    """Passes subscriptions on to the publishers, each topic once.

    With `xpub_verbose` equal subscriptions are told each, but their end only once, while an XSub counts them:
    passed on as they come they would never end upstream.
    """

    def __init__(self, frontend: XSub) -> None:
        self._frontend = frontend
        self._topics: set[bytes] = set()

    def forward(self, event: XPubEvent) -> None:
        """Passes one event on."""
        if isinstance(event, UserMessage):
            self._frontend.send_parts(event.parts)
        elif isinstance(event, Subscribed):
            if event.topic not in self._topics:
                self._topics.add(event.topic)
                self._frontend.send(SUBSCRIBE + event.topic)
        else:
            self._topics.discard(event.topic)
            self._frontend.send(CANCEL + event.topic)
