"""A hub under attack: what has to hold whatever comes in, and strangers who say what they like."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import psutil

from taskmesh import Mesh, TaskFuture
from taskmesh.link.endpoints import tcp_parts
from taskmesh.security.peer_errors import AT_ONCE, EVERY
from tests.harness.program import Program
from tests.harness.waiting import wait_until
from tests.hosting import workload

GROWTH = 50 << 20
"""Bytes that a hub may grow by under any attack."""
RECOVERY_S = 10.0
FEW = 8
"""Files that may come between: the links of the attacker himself, who is still there."""
HALF_GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
CURVE_GREETING = HALF_GREETING + b"\x00CURVE".ljust(21, b"\0") + bytes(32)
NULL_GREETING = HALF_GREETING + b"\x00NULL".ljust(21, b"\0") + bytes(32)


class Siege:
    """A context manager around an attack: at the end the hub must be as it was, and honest tasks done.

    Args:
        mesh: of an honest client whose pool works. program: the hub.
        patience: seconds that honest tasks may take, once the attack is over.
    """

    def __init__(self, mesh: Mesh, program: Program, patience: float = 20.0) -> None:
        self.mesh = mesh
        self.program = program
        self.process = psutil.Process(program.pid)
        self.patience = patience
        self._futures: list[TaskFuture[int]] = []
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        list(self.mesh.map(workload.add, range(200), range(200), chunksize=1, timeout=30))
        self.memory = self.process.memory_info().rss
        self.files = self.process.num_fds()
        self.work()
        return self

    def work(self, count: int = 50) -> None:
        """More honest tasks, while the attack goes on."""
        first = len(self._futures)
        self._futures += [self.mesh.submit(workload.add, number, 1) for number in range(first, first + count)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        self.work()
        results = [future.result(self.patience) for future in self._futures]
        assert results == list(range(1, len(results) + 1))
        assert self.program.process.poll() is None, self.program.errors
        try:
            wait_until(lambda: self.process.num_fds() <= self.files + FEW, RECOVERY_S)
        except AssertionError as late:
            links = [str(link) for link in self.process.net_connections("tcp")]
            raise AssertionError("\n".join([f"{self.files} files before, now:", *links])) from late
        grown = self.process.memory_info().rss - self.memory
        assert grown < GROWTH, f"the hub has grown by {grown >> 20} MiB"
        most = AT_ONCE + 1 + (time.monotonic() - self._began) / EVERY
        assert max(self.lines().values(), default=0) <= most, self.lines()

    def lines(self) -> Counter[str]:
        """How many lines of each kind the hub has written to its log."""
        kinds = (
            line.partition('"event": "')[2].partition('"')[0] for line in self.program.errors.splitlines()
        )
        found = Counter(kinds)
        assert not found[""], self.program.errors
        return found


def stranger(endpoint: str, said: bytes = b"", patience: float = 10.0) -> socket.socket:
    """A connection that leaves by a reset.

    Who loses `patience` goes on dialling, and says nothing.
    """
    found = socket.socket()
    found.settimeout(patience)
    with contextlib.suppress(TimeoutError):
        found.connect(tcp_parts(endpoint))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        found.sendall(said)
    return found


def garbage(chance: random.Random) -> bytes:
    """What a stranger may say: noise, other protocols, greetings of every version, cut anywhere."""
    noise = chance.randbytes(chance.randrange(300))
    begin = chance.choice(
        (
            *(b"", b"\x01\x00", b"\xff", HALF_GREETING, NULL_GREETING, CURVE_GREETING),
            HALF_GREETING[:-1] + bytes([chance.randrange(256)]),
            HALF_GREETING + b"\x01" + chance.randbytes(20) + bytes(32),
            NULL_GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
            CURVE_GREETING + b"\x04\xc8\x05HELLO\x01\x00",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
        )
    )
    if chance.random() < 0.3:
        begin = begin[: chance.randrange(len(begin) + 1)]
    return begin + noise


def ticks(seconds: float, sockets: Sequence[socket.socket]) -> Iterator[list[socket.socket]]:
    """Each so many seconds, those of the connections that are still open; ends with the last one."""
    clock, other = socket.socketpair()  # nothing ever comes through it: its time-out is the tick
    with clock, other:
        clock.settimeout(seconds)
        left = list(sockets)
        while left:
            yield left
            with contextlib.suppress(TimeoutError):
                clock.recv(1)
            left = [one for one in left if not is_closed(one)]


def is_closed(one: socket.socket) -> bool:
    """Whether the other end has closed a connection; what it has said is read."""
    one.setblocking(False)
    try:
        while data := one.recv(4096):
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
