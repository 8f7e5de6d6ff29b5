"""A TCP proxy for bad weather: it delays, stalls, starves, blocks one way or both, flips bytes and resets.

It listens on 127.0.0.2, at the ports where a hub listens on 127.0.0.1: every link of a pool or client that
dials the hub there passes through it, lanes too. So no netem is needed, which not every kernel has.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import psutil

HOST = "127.0.0.2"
CHUNK = 16_384
TICK = 0.005
LOOK = 0.05
"""Seconds between looks at where the hub listens; also before control is passed: a WELCOME names a port."""
RESET = struct.pack("ii", 1, 0)

UP, DOWN = "up", "down"
"""To the hub, and from it."""


@dataclass(frozen=True)
class Weather:
    """What happens to bytes.

    Attributes:
        blocked: directions in which nothing passes; it waits, as in the senders' kernels.
        delay, jitter: seconds that a chunk is held; each link has its own luck, so links overtake each other.
        rate: bytes a second of a link and direction, 0 for any.
        flips: the chance that a byte has one of its bits flipped.
        refusing: new connections are reset.
    """

    blocked: frozenset[str] = frozenset()
    delay: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    flips: float = 0.0
    refusing: bool = False


FAIR = Weather()


@dataclass(eq=False)
class Stream:
    """One direction of one link: what has come in and is to go out, each chunk with the time when it may."""

    source: socket.socket
    target: socket.socket
    direction: str
    port: int
    held: list[tuple[float, int, bytes]] = field(default_factory=list)
    out: bytearray = field(default_factory=bytearray)
    ended: bool = False
    free_at: float = 0.0
    last: float = 0.0


class Chaos:
    """The proxy. One thread; `weather` may be set at any time.

    Args:
        hub: process id of the hub, whose listening ports are served. gateway: its address. seed: of chance.

    Attributes:
        hubs: more processes may be served. diverted: new connections to one port that go to another.
        flipped, links: how many bytes were spoilt, and how many links there were.
    """

    def __init__(self, hub: int, gateway: str, seed: int = 1) -> None:
        self.hubs = [hub]
        self.diverted: dict[int, int] = {}
        self.weather = FAIR
        self._gateway = int(gateway.rpartition(":")[2])
        self.flipped = 0
        self.links = 0
        self._random = random.Random(seed)
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[int, socket.socket] = {}
        self._streams: dict[socket.socket, Stream] = {}
        self._count = 0
        self._looked = 0.0
        self._idle = False
        self._injections: deque[tuple[int, bytes]] = deque()
        self._injected: list[Stream] = []
        self._resets = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._look_for_ports()
        self._thread.start()

    @property
    def address(self) -> str:
        """The gateway's address by way of the proxy."""
        return f"tcp://{HOST}:{self._gateway}"

    def divert(self, gateway: str) -> None:
        """Lets the hub's address belong to another one: gateway, collector and control."""
        other = int(gateway.rpartition(":")[2])
        self.diverted = {self._gateway + i: other + i for i in range(3)}

    def reset(self) -> None:
        """Resets every link, and returns when that is done."""
        self._resets.set()
        while self._resets.is_set() and self._thread.is_alive():
            self._done.wait(TICK)

    def inject(self, offset: int, data: bytes) -> None:
        """Puts bytes that the hub has not sent into each link from its gateway's port plus `offset`."""
        self._injections.append((self._gateway + offset, data))

    @property
    def took_injections(self) -> bool:
        """Whether every link that had something injected has ended of it."""
        lives = any(stream.source in self._streams for stream in self._injected)
        return bool(self._injected) and not self._injections and not lives

    def close(self) -> None:
        """Ends the proxy and every link."""
        self._done.set()
        self._thread.join(10)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._turn()
        finally:
            self._reset_all()
            for listener in self._listeners.values():
                listener.close()
            self._selector.close()

    def _turn(self) -> None:
        if self._resets.is_set():
            self._reset_all()
            self._resets.clear()
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._look_for_ports()
        while self._injections:
            self._inject(*self._injections.popleft())
        blocked, self._idle = self.weather.blocked, False
        for key, _ in self._selector.select(TICK):
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data.direction not in blocked:
                self._read(key.data)
        if blocked or self._idle:
            self._done.wait(TICK)  # what is not read stays readable: not too busy a wait
        for stream in list(self._streams.values()):
            if stream.direction not in blocked:
                self._write(stream)

    def _inject(self, port: int, data: bytes) -> None:
        for stream in self._streams.values():
            if (stream.port, stream.direction) == (port, DOWN):
                stream.out += data
                self._injected.append(stream)

    def _look_for_ports(self) -> None:
        self._looked = time.monotonic()
        for hub in list(self.hubs):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(hub).net_connections("tcp4"):
                    if one.status == psutil.CONN_LISTEN and one.laddr.port not in self._listeners:
                        self._listen(one.laddr.port)

    def _listen(self, port: int) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:  # another proxy's, or another program's
            listener.close()
            return
        listener.listen(128)
        listener.setblocking(False)
        self._listeners[port] = listener
        self._selector.register(listener, selectors.EVENT_READ, None)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            near, _ = listener.accept()
            port = listener.getsockname()[1]
            far = socket.socket()
            far.setblocking(True)
            try:
                if self.weather.refusing:
                    raise ConnectionRefusedError
                far.connect(("127.0.0.1", self.diverted.get(port, port)))
            except OSError:
                cut(near)
                far.close()
                return
            self.links += 1
            for source, target, direction in ((near, far, UP), (far, near, DOWN)):
                source.setblocking(False)
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = self._streams[source] = Stream(source, target, direction, port)
                self._selector.register(source, selectors.EVENT_READ, stream)

    def _read(self, stream: Stream) -> None:
        if len(stream.held) > 256 or len(stream.out) > (1 << 20):
            self._idle = True
            return  # the rest waits in the kernels, as on a slow line
        try:
            data = stream.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._drop(stream)
            return
        if not data:
            stream.ended = True
            self._selector.unregister(stream.source)
            return
        if stream.direction == DOWN and stream.port == self._gateway + 2:
            self._look_for_ports()
        weather, now = self.weather, time.monotonic()
        when = now + weather.delay + weather.jitter * (2 * self._random.random() - 1)
        if weather.rate:
            stream.free_at = max(stream.free_at, now) + len(data) / weather.rate
            when = max(when, stream.free_at)
        stream.last = max(stream.last, when)  # bytes of one link keep their order
        self._count += 1
        heapq.heappush(stream.held, (stream.last, self._count, self._spoilt(data, weather.flips)))

    def _spoilt(self, data: bytes, chance: float) -> bytes:
        if not chance or self._random.random() >= chance * len(data):
            return data
        spoilt = bytearray(data)
        spoilt[self._random.randrange(len(spoilt))] ^= 1 << self._random.randrange(8)
        self.flipped += 1
        return bytes(spoilt)

    def _write(self, stream: Stream) -> None:
        now = time.monotonic()
        while stream.held and stream.held[0][0] <= now:
            stream.out += heapq.heappop(stream.held)[2]
        if stream.out:
            try:
                sent = stream.target.send(stream.out)
            except BlockingIOError:
                return
            except OSError:
                self._drop(stream)
                return
            del stream.out[:sent]
        if stream.ended and not stream.out and not stream.held:
            self._drop(stream, politely=True)

    def _drop(self, stream: Stream, *, politely: bool = False) -> None:
        """Ends a link: as one end has closed it, or by a reset."""
        for end in (stream.source, stream.target):
            if self._streams.pop(end, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close() if politely else cut(end)

    def _reset_all(self) -> None:
        for stream in list(self._streams.values()):
            self._drop(stream)


def cut(end: socket.socket) -> None:
    """Closes a connection by a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.close()
