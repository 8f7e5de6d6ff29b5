"""A remote pool's sockets to its hub: PUSH to collector and for beats, SUB to control, PULL from its lane.

The pool only dials out.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from taskmesh.config import Config
from taskmesh.core.events import FromHub, HubLaneLost
from taskmesh.errors import RemoteProtocolError, TooLarge
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.dialer import Dialer
from taskmesh.link.endpoints import Endpoints, Target, check_dialled
from taskmesh.link.socket_profiles import ALL, BATCH, topic
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import Assembler, Cutter
from taskmesh.messages.frames import encode, to_pool
from taskmesh.messages.runs import TOKEN, DoneRun, Failed
from taskmesh.pool.shell import Gateway
from taskmesh.security.keys import WORKER, credentials_of
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
    Socket,
    SocketError,
    SocketOptions,
    Sub,
    new_key_pair,
    raw_key,
)
from taskmesh.system.loop import Loop

FEW_HELLOS = 8
"""Unanswered Hellos, some 1.5 s, after which the hub is dialled anew, with its next key."""
MANY_HELLOS = 32
"""Bound of that number, which doubles each time."""


class _Sockets:
    """The sockets to the hub, not connected yet: all of them, or none.

    Raises:
        SocketError: one of them cannot be made.
    """

    def __init__(
        self, context: Context, options: Callable[[SocketOptions], SocketOptions], pool: str
    ) -> None:
        with contextlib.ExitStack() as undo:  # descriptors may run out half-way
            self.collector = Push(context, options(profiles.TO_COLLECTOR))
            undo.callback(self.collector.close, 0)
            self.monitor = self.collector.monitor()
            undo.callback(self.monitor.close)
            self.beats = Push(context, options(profiles.BEATS))
            undo.callback(self.beats.close, 0)
            self.control = Sub(context, options(profiles.TO_CONTROL))
            undo.callback(self.control.close, 0)
            self.control.subscribe(topic(pool))
            self.control.subscribe(ALL)
            undo.pop_all()

    def connect(self, hub: Endpoints) -> None:
        """Dial the hub; control first, so that an answer can arrive."""
        self.control.connect(hub.control)
        self.collector.connect(hub.collector)
        self.beats.connect(hub.collector)

    def close(self, linger_ms: int | None) -> None:
        self.monitor.close()
        for socket in (self.collector, self.beats, self.control):
            socket.close(linger_ms)


class PoolSockets:
    """HubLink over ZeroMQ.

    Args:
        context: makes the sockets.
        loop: watches them.
        config: the hub's address, the keys, and the largest result that may travel.
        pool: the pool's name.

    Attributes:
        address: the hub's gateway.
        events: what comes from the hub, for the pool's machine.
        refused: number of messages that could not be decoded.

    Raises:
        InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
        ConfigError: the address cannot be used, or keys are missing.
        SocketError: no sockets can be made at the start.
    """

    def __init__(self, context: Context, loop: Loop, config: Config, pool: str) -> None:
        self.address = address = config.mesh.address
        self.events: deque[object] = deque()
        self.refused = 0
        self._keys = config.mesh.keys
        credentials = credentials_of(self._keys, WORKER)
        check_dialled(address, keys=credentials is not None)
        self._context = context
        self._loop = loop
        self._pool = pool
        self._max_payload = self._limit = config.pool.max_payload
        self._credentials = credentials
        self._signer = PayloadSigner(credentials.mesh_keys) if credentials is not None else None
        self._token = secrets.token_bytes(TOKEN)
        self._sender = secrets.randbits(62) | 1 << 62  # no session has such a number
        self._cutter = Cutter(self._sender)
        self._assembler = Assembler()
        self._lane_pair: tuple[int, KeyPair] | None = None
        self._lane: Pull | None = None
        self._hello_number = 0
        self._beats_unanswered = False
        self._sockets: _Sockets | None = None
        self._dialer = Dialer(loop, address, credentials, self, hellos=FEW_HELLOS, most_hellos=MANY_HELLOS)
        self._dialer.start()

    @property
    def is_up(self) -> bool:
        """True while the hub is reached. Links are dialled anew while no session begins."""
        return self._dialer.is_up

    # --- the dialer's sockets -------------------------------------------------------------------------------

    def open_sockets(self, target: Target) -> Socket:
        sockets = self._sockets = _Sockets(self._context, self._dialer.options, self._pool)
        self._loop.watch(sockets.control.raw, self._from_control)
        self._loop.watch(sockets.monitor.raw, self._from_monitor)
        return sockets.control

    def connect(self, hub: Endpoints) -> None:
        if self._sockets is not None:
            self._sockets.connect(hub)

    def close_sockets(self, linger_ms: int | None) -> None:
        self.hang_up()
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            self._loop.unwatch(sockets.monitor.raw)
            self._loop.unwatch(sockets.control.raw)
            sockets.close(linger_ms)

    def on_lost(self) -> None:
        self.events.append(HubLaneLost())

    def on_cut(self) -> None:
        """Do nothing: beats show if the session goes on."""

    # --- HubLink --------------------------------------------------------------------------------------------

    def send(self, message: m.PoolMessage) -> None:
        """Send a message to the collector; one that cannot be sent is dropped, and the machine repeats it."""
        if isinstance(message, m.Results):
            limit_results(message, self._limit)
            self._cutter.sender = message.session  # tells the hub whose message it had no room for
            message = self._signer.results(message) if self._signer is not None else message
        elif isinstance(message, m.Hello):
            self._cutter.sender = self._sender
            message = self._prepare(message)
        if self._sockets is not None:
            for frames in self._cutter.cut(encode(message)):
                if not self._sockets.collector.try_send_parts(self._with_token(frames)):
                    return

    def beat(self, message: m.Beat) -> None:
        """Send a beat to the collector, past any results that wait."""
        if self._sockets is not None:
            self._sockets.beats.try_send_parts(self._with_token(encode(message)))

    def _with_token(self, frames: list[Buffer]) -> Sequence[Sendable]:
        """Return frames after the token that no other pool knows, where keys are in use."""
        return frames if self._credentials is None else [self._token, *frames]

    def _prepare(self, hello: m.Hello) -> m.Hello:
        """Prepare the link for a Hello, and add the key of the lane that is asked for.

        The links are dialled anew when a whole session's beats were not answered.
        """
        if hello.number != self._hello_number and self._beats_unanswered:
            self._dialer.redial(move=False)
            self._beats_unanswered = False
        self._hello_number = hello.number
        self._dialer.hello()
        if self._dialer.rejection:
            reason = f"at {self.address}: {self._dialer.rejection}"
            self.events.append(FromHub(m.Refused(hello.pool, hello.instance, reason)))
        if self._credentials is None:
            return hello
        if self._lane_pair is None or self._lane_pair[0] != hello.number:
            self._lane_pair = (hello.number, new_key_pair())
        return msgspec.structs.replace(hello, key=raw_key(self._lane_pair[1].public))

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Connect a fresh PULL to the lane; if none can be made now, the pool asks for another lane."""
        self._limit = min(self._max_payload, max_payload or self._max_payload)
        self.hang_up()
        try:
            self._connect_lane(endpoint)
        except SocketError:
            self.hang_up()
            self.events.append(HubLaneLost())

    def _connect_lane(self, endpoint: str) -> None:
        pair = self._lane_pair[1] if self._lane_pair is not None else None
        target = self._dialer.target
        self._lane = Pull(self._context, target.options(profiles.TO_LANE, pair))
        self._lane.connect(target.hub.lane(endpoint))
        self._loop.watch(self._lane.raw, self._from_lane)

    def hang_up(self) -> None:
        """Close the lane's PULL, and with it messages that were not taken in."""
        self._assembler = Assembler()
        if self._lane is not None:
            self._loop.unwatch(self._lane.raw)
            self._lane.close(linger_ms=0)
            self._lane = None

    def gateway(self) -> Gateway:
        return Gateway(self.address, self._keys, WORKER)

    # --- incoming -------------------------------------------------------------------------------------------

    def _from_lane(self) -> None:
        if self._lane is not None:
            self._take(self._lane.recv_parts_many(BATCH), 0)

    def _from_control(self) -> None:
        self._dialer.is_heard = True
        if self._sockets is not None:
            self._take(self._sockets.control.recv_parts_many(BATCH), 1)

    def _from_monitor(self) -> None:
        """End a session whose results may have been lost: the next one begins with an inventory."""
        events = self._sockets.monitor.recv_many() if self._sockets is not None else ()
        if any(event.kind is EventKind.DISCONNECTED for event in events):
            self.events.append(HubLaneLost())

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
            if isinstance(message, m.Tasks):
                message = self._signer.tasks(message) if self._signer is not None else message
            elif isinstance(message, m.Welcome):
                self._beats_unanswered = True
            elif isinstance(message, m.BeatReply) and message.session:
                self._beats_unanswered = False
            self.events.append(FromHub(message))

    def close(self) -> None:
        """Close every socket; the last messages have a second to leave."""
        self._dialer.close()


def limit_results(results: m.Results, limit: int) -> None:
    """Replace successes whose result is larger than `limit` bytes by failures that say so.

    Changes the message itself, which the pool keeps until the hub has it: repeated, it is the same.
    """
    for failed in results.failed:
        if len(failed.pickled) > limit:
            failed.pickled = b""  # its type, text and frames still travel
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
