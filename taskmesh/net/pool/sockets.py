"""A remote pool's sockets to a hub: PUSH to the collector and for beats, SUB to control, PULL from its lane.

The pool only dials out. What cannot be sent because nobody is there is dropped here; the machine repeats it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from taskmesh.core.events import FromHub, HubLaneLost
from taskmesh.errors import RemoteProtocolError, TooLarge
from taskmesh.framing.fragments import Assembler, Cutter
from taskmesh.framing.frames import encode, to_pool
from taskmesh.net import socket_profiles as profiles
from taskmesh.net.endpoints import Endpoints, targets
from taskmesh.net.handshake import Handshakes
from taskmesh.net.socket_profiles import ALL, BATCH, topic
from taskmesh.security.keys import Credentials
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.serialize.payload import check_size
from taskmesh.shm.files import Buffer
from taskmesh.sockets import (
    Context,
    EventKind,
    KeyPair,
    Part,
    Pull,
    Push,
    Sendable,
    SocketError,
    SocketOptions,
    Sub,
    new_key_pair,
    raw_key,
)
from taskmesh.system.loop import Loop
from taskmesh.wire import messages as m
from taskmesh.wire.runs import TOKEN, DoneRun, Failed

FEW_HELLOS = 8
"""Unanswered Hellos, some 1.5 s, after which the hub is dialled anew, every second time with the next key.

A link that has met something else than ZeroMQ is given up by libzmq for good, without a word.
"""
MANY_HELLOS = 32
"""As many at most, twice as many each time: where a message takes 300 ms, a link is up after two seconds."""


class _Links:
    """The sockets to one hub, not connected yet: all of them, or none.

    Raises:
        SocketError: one of them cannot be had.
    """

    def __init__(self, context: Context, keyed: Callable[[SocketOptions], SocketOptions]) -> None:
        with contextlib.ExitStack() as undo:  # descriptors may run out half-way
            self.collector = Push(context, keyed(profiles.TO_COLLECTOR))
            undo.callback(self.collector.close, 0)
            self.watched = self.collector.monitor()
            self.beats = Push(context, keyed(profiles.BEATS))
            undo.callback(self.beats.close, 0)
            self.control = Sub(context, keyed(profiles.TO_CONTROL))
            undo.pop_all()

    def connect(self, hub: Endpoints) -> None:
        """Dials; control first, so that an answer finds its way."""
        self.control.connect(hub.control)
        self.collector.connect(hub.collector)
        self.beats.connect(hub.collector)

    def close(self, linger_ms: int | None) -> None:
        """Closes them all."""
        self.watched.close()
        for socket in (self.collector, self.beats, self.control):
            socket.close(linger_ms)


class PoolSockets:
    """HubLink over ZeroMQ. Where no socket is to be had, what is sent goes nowhere until the next Hello.

    Args:
        address: the hub's gateway. hub: its place among those that the pool serves.
        credentials: a worker's, where keys are in use.
        events: the pool shell's.
        max_payload: bytes of a result that may travel.

    Raises:
        SocketError: no sockets are to be had at the start.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        address: str,
        pool: str,
        events: deque[object],
        *,
        max_payload: int,
        hub: int = 0,
        credentials: Credentials | None = None,
    ) -> None:
        self._context = context
        self._loop = loop
        self._targets = targets([address], credentials)
        self._credentials = credentials
        self._seal = PayloadSigner(credentials.mesh_keys) if credentials is not None else None
        self._token = secrets.token_bytes(TOKEN)
        self._sender = secrets.randbits(62) | 1 << 62  # no session has such a number
        self._cutter = Cutter(self._sender)
        self._assembler = Assembler()
        self._lane_pair: tuple[int, KeyPair] | None = None
        self._handshakes = Handshakes(loop, credentials, len(self._targets), self._hub_refuses, lambda: None)
        self._turn = 0
        self._unanswered = 0
        self._patience = FEW_HELLOS
        self._is_second = False
        self._asked = 0
        self._beats_answered = True
        self._pool = pool
        self._events = events
        self._place = hub
        self._max_payload = self._limit = max_payload
        self._lane: Pull | None = None
        self.refused = 0
        self._dial_at = 0.0
        self._links: _Links | None = None
        self._open_links()
        self._dial_hub()

    @property
    def address(self) -> str:
        """The hub's gateway."""
        return self._hub.gateway

    @property
    def is_up(self) -> bool:
        """Whether the hub is reached. Links are dialled anew while no session begins."""
        return self._handshakes.is_up

    def _open_links(self) -> None:
        """Sockets for the way whose turn it is.

        Raises:
            SocketError: there are none; nothing is left open.
        """
        self._target = self._targets[self._turn % len(self._targets)]
        self._hub = self._target.hub
        links = _Links(self._context, self._keyed)
        try:
            self._handshakes.watch(links.control, self._target)
            links.control.subscribe(topic(self._pool))
            links.control.subscribe(ALL)
        except BaseException:
            self._handshakes.unwatch()
            links.close(linger_ms=0)
            raise
        self._loop.watch(links.control.raw, self._from_control)
        self._loop.watch(links.watched.raw, self._look_at_collector)
        self._links = links

    def _renew_links(self) -> None:
        """Other sockets in place of these; where there are none, the next Hello asks for them again."""
        self._hang_up_hub(linger_ms=0)
        with contextlib.suppress(SocketError):
            self._open_links()

    def _dial_hub(self) -> None:
        """Connects, unless there is to be a rest first: what is sent until then goes nowhere."""
        if self._links is None or time.monotonic() < self._dial_at:
            return
        self._dial_at = 0.0
        self._links.connect(self._hub)

    def _keyed(self, options: SocketOptions) -> SocketOptions:
        return self._target.options(
            options, self._credentials.pair if self._credentials is not None else None
        )

    # --- HubLink ------------------------------------------------------------------------------------------

    def send(self, message: m.PoolMessage) -> None:
        """To the collector."""
        if isinstance(message, m.Results):
            limit_results(message, self._limit)
            self._cutter.sender = message.session  # who shows no key is told by it that there was no room
            message = self._seal.results(message) if self._seal is not None else message
        elif isinstance(message, m.Hello):
            self._cutter.sender = self._sender
            message = self._hello(message)
        if self._links is not None:
            for frames in self._cutter.cut(encode(message)):
                if not self._links.collector.try_send_parts(self._shown(frames)):
                    return

    def beat(self, message: m.Beat) -> None:
        """To the collector, past any results that wait."""
        if self._links is not None:
            self._links.beats.try_send_parts(self._shown(encode(message)))

    def _shown(self, frames: list[Buffer]) -> Sequence[Sendable]:
        """Frames after the token that no other pool knows, where keys are in use."""
        return frames if self._credentials is None else [self._token, *frames]

    def _hello(self, hello: m.Hello) -> m.Hello:
        """Another way's turn, or the answer where none lets this pool in; the key of the lane asked for."""
        if self._handshakes.rejection:
            reason = f"at {self.address}: {self._handshakes.rejection}"
            self._events.append(FromHub(m.Refused(hello.pool, hello.instance, reason), self._place))
        else:
            self._doubt_links(hello.number)
        if self._credentials is None:
            return hello
        if self._lane_pair is None or self._lane_pair[0] != hello.number:
            self._lane_pair = (hello.number, new_key_pair())
        return msgspec.structs.replace(hello, key=raw_key(self._lane_pair[1].public))

    def _hub_refuses(self, dead: bool) -> None:
        """A handshake has failed: the next Hello goes another way, or over new links, or after a rest."""
        if self._handshakes.backoff:
            self._dial_at = time.monotonic() + self._handshakes.backoff
            self._turn += 1
            self._renew_links()
            self._events.append(HubLaneLost(self._place))
        elif dead or len(self._targets) > 1:
            self._unanswered, self._is_second = self._patience, True

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Connects a fresh PULL to the lane; where none is to be had now, the pool asks for another lane."""
        self._limit = min(self._max_payload, max_payload or self._max_payload)
        self.hang_up()
        try:
            self._connect_lane(endpoint)
        except SocketError:
            self.hang_up()
            self._events.append(HubLaneLost(self._place))

    def _connect_lane(self, endpoint: str) -> None:
        options = profiles.TO_LANE
        if self._target.hub_key is not None and self._lane_pair is not None:
            options = self._target.options(options, self._lane_pair[1])
        self._lane = Pull(self._context, options)
        self._lane.connect(self._hub.lane(endpoint))
        self._loop.watch(self._lane.raw, self._from_lane)

    def hang_up(self) -> None:
        """Closes the lane's PULL, and with it what was not taken in."""
        self._assembler = Assembler()
        if self._lane is not None:
            self._loop.unwatch(self._lane.raw)
            self._lane.close(linger_ms=0)
            self._lane = None

    def _doubt_links(self, number: int) -> None:
        """Dials anew, perhaps with the next key, when Hellos or a whole session's beats were in vain."""
        if self._links is None:
            self._renew_links()
            self._dial_hub()
            return
        if self._dial_at:
            self._dial_hub()
            self._unanswered = 0
            return
        vain = number != self._asked and not self._beats_answered
        if number != self._asked:
            self._asked, self._beats_answered = number, number == 1
        self._unanswered += 1
        if self._unanswered >= self._patience:
            self._patience = min(2 * self._patience, MANY_HELLOS)
            self._turn += self._is_second
            self._is_second = not self._is_second
        elif not vain:
            return
        self._unanswered = 0
        self._renew_links()
        self._dial_hub()

    # --- incoming -----------------------------------------------------------------------------------------

    def _from_lane(self) -> None:
        if self._lane is not None:
            self._take(self._lane.recv_parts_many(BATCH), 0)

    def _from_control(self) -> None:
        self._unanswered, self._patience = 0, FEW_HELLOS
        if self._links is not None:
            self._take(self._links.control.recv_parts_many(BATCH), 1)

    def _look_at_collector(self) -> None:
        """A session whose results may have been lost is over: the next one begins with an inventory."""
        watched = self._links.watched.recv_many() if self._links is not None else ()
        if any(event.kind is EventKind.DISCONNECTED for event in watched):
            self._events.append(HubLaneLost(self._place))

    def _take(self, arrived: list[list[Part]], skip: int) -> None:
        for frames in arrived:
            try:
                whole = self._assembler.whole(frames, time.monotonic())
                if whole is None:
                    continue
                message = to_pool.decode(whole[skip:])
            except RemoteProtocolError:
                self.refused += 1
                continue
            if isinstance(message, m.BeatReply) and message.session:
                self._beats_answered = True
            if self._seal is not None and isinstance(message, m.Tasks):
                message = self._seal.tasks(message)
            self._events.append(FromHub(message, self._place))

    # --- the end ------------------------------------------------------------------------------------------

    def _hang_up_hub(self, linger_ms: int | None = None) -> None:
        self.hang_up()
        self._handshakes.unwatch()
        links, self._links = self._links, None
        if links is not None:
            self._loop.unwatch(links.watched.raw)
            self._loop.unwatch(links.control.raw)
            links.close(linger_ms)

    def close(self) -> None:
        """Closes every socket; what was just sent has a second to leave."""
        self._hang_up_hub()


def limit_results(results: m.Results, limit: int) -> None:
    """Replace successes whose result is larger than `limit` bytes by failures that say so.

    Changes the message itself, which the pool keeps until the hub has it: repeated, it is the same.
    """
    for failed in results.failed:
        if len(failed.pickled) > limit:
            failed.pickled = b""  # its type, text and frames travel all the same
    kept = []
    for run in results.done:
        if max(map(len, run.payloads), default=0) <= limit:
            kept.append(run)
            continue
        small = DoneRun(run.spec, run.client, run.attempt, run.worker, [], [], run.elapsed, run.returns)
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            try:
                check_size(payload, limit, "its result")
            except TooLarge as error:
                results.failed.append(_size_failure(run, seq, error))
            else:
                small.seqs.append(seq)
                small.payloads.append(payload)
        if small.seqs:
            kept.append(small)
    results.done[:] = kept


def _size_failure(run: DoneRun, seq: int, error: TooLarge) -> Failed:
    """Return the failure of a task whose result is too large; another attempt would not help."""
    return Failed(
        run.client,
        seq,
        run.attempt,
        "result",
        type_name=f"{type(error).__module__}.{type(error).__qualname__}",
        text=str(error),
        worker=run.worker,
        returns=run.returns,
    )
