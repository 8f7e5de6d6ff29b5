"""A remote pool's sockets: PUSH to the collector, another PUSH for beats, SUB to control, PULL from its lane.

The pool only dials out. What cannot be sent because nobody is there is dropped here; the machine repeats it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from taskmesh.core.events import FromHub
from taskmesh.errors import RemoteProtocolError
from taskmesh.net import wires
from taskmesh.net.endpoints import Endpoints
from taskmesh.net.hub_links import ALL, BATCH, topic
from taskmesh.net.loop import Loop
from taskmesh.net.sizes import hold_against
from taskmesh.sockets import Context, Part, Pull, Push, Sub
from taskmesh.wire import messages as m
from taskmesh.wire.frames import encode, to_pool

HELLOS = 15
"""Unanswered Hellos after which the next hub of the list is dialled."""


class PoolSockets:
    """HubLink over ZeroMQ.

    Args:
        hubs: where hubs listen; the first that answers is kept until it does not answer any more.
        events: the pool shell's.
        max_payload: bytes of a result that may travel.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        hubs: Sequence[Endpoints],
        pool: str,
        events: deque[object],
        max_payload: int,
    ) -> None:
        self._context = context
        self._loop = loop
        self._hubs = list(hubs)
        self._turn = 0
        self._unanswered = 0
        self._pool = pool
        self._events = events
        self._max_payload = self._limit = max_payload
        self._lane: Pull | None = None
        self.refused = 0
        self._dial_hub()

    @property
    def address(self) -> str:
        """The gateway of the hub that is dialled now."""
        return self._hub.gateway

    def _dial_hub(self) -> None:
        hub = self._hub = self._hubs[self._turn % len(self._hubs)]
        self._collector = Push(self._context, wires.TO_COLLECTOR)
        self._beats = Push(self._context, wires.TO_COLLECTOR)
        self._control = Sub(self._context, wires.TO_CONTROL)
        self._control.subscribe(topic(self._pool))
        self._control.subscribe(ALL)
        self._control.connect(hub.control)
        self._collector.connect(hub.collector)
        self._beats.connect(hub.collector)
        self._loop.watch(self._control.raw, self._from_control)

    # --- HubLink ------------------------------------------------------------------------------------------

    def send(self, message: m.PoolMessage) -> None:
        """To the collector."""
        if isinstance(message, m.Results):
            hold_against(message, self._limit)
        elif isinstance(message, m.Hello) and len(self._hubs) > 1:
            self._try_next_hub()
        self._collector.try_send_parts(encode(message))

    def beat(self, message: m.Beat) -> None:
        """To the collector, past any results that wait."""
        self._beats.try_send_parts(encode(message))

    def dial(self, endpoint: str) -> None:
        """Connects a fresh PULL to the lane."""
        self.hang_up()
        self._lane = Pull(self._context, wires.TO_LANE)
        self._lane.connect(self._hub.lane(endpoint))
        self._loop.watch(self._lane.raw, self._from_lane)

    def hang_up(self) -> None:
        """Closes the lane's PULL, and with it what was not taken in."""
        if self._lane is not None:
            self._loop.unwatch(self._lane.raw)
            self._lane.close(linger_ms=0)
            self._lane = None

    def _try_next_hub(self) -> None:
        self._unanswered += 1
        if self._unanswered > HELLOS:
            self._unanswered = 0
            self._turn += 1
            self._hang_up_hub(linger_ms=0)
            self._dial_hub()

    # --- incoming -----------------------------------------------------------------------------------------

    def _from_lane(self) -> None:
        if self._lane is not None:
            self._take(self._lane.recv_parts_many(BATCH), 0)

    def _from_control(self) -> None:
        self._unanswered = 0
        self._take(self._control.recv_parts_many(BATCH), 1)

    def _take(self, arrived: list[list[Part]], skip: int) -> None:
        for frames in arrived:
            try:
                message = to_pool.decode(frames[skip:])
            except RemoteProtocolError:
                self.refused += 1
                continue
            if isinstance(message, m.Welcome) and message.max_payload:
                self._limit = min(self._max_payload, message.max_payload)
            self._events.append(FromHub(message))

    # --- the end ------------------------------------------------------------------------------------------

    def _hang_up_hub(self, linger_ms: int | None = None) -> None:
        self.hang_up()
        self._loop.unwatch(self._control.raw)
        for socket in (self._collector, self._beats, self._control):
            socket.close(linger_ms)

    def close(self) -> None:
        """Closes every socket; what was just sent has a second to leave."""
        self._hang_up_hub()
