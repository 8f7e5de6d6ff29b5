"""The cost of the hops alone: client, hub, pool and slot as over tcp, with no work in any of them.

The same threads, processes and sockets as a mesh with hub and pool of their own, or as one that listens,
without ids, ledger, credit, beats or acknowledgements. A task framework of such a shape cannot be quicker on
this machine.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import zmq

from benchmarks.contender import Sizes, Work
from benchmarks.raw import fork

LONGEST = 1 << 16


class Relay:
    """Round trips only: one task at a time, so one slot is enough."""

    sizes = Sizes(noops=0, mapped=0, trips=1_000)
    rows = frozenset({"roundtrip"})
    bulk = ""

    @classmethod
    def missing(cls) -> str:
        """Nothing but Linux's eventfd."""
        return "" if hasattr(os, "eventfd") else "this system has no eventfd"

    def open(self, workers: int) -> None:
        """Fork the processes before there is a context, then start the client's thread."""
        reading, writing = os.pipe()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pids = [fork(lambda: pool(reading, here, there)), fork(lambda: slot(there, here))]
        here.close()
        there.close()
        self._box: list[bytes] = []
        self._wake, self._done = os.eventfd(0), threading.Semaphore(0)
        os.write(writing, self._start())
        os.close(reading)
        os.close(writing)

    def _start(self) -> bytes:
        """Start hub and client; return the hub's ports."""
        reading, writing = os.pipe()
        self._pids.append(fork(lambda: hub(writing)))
        ports = os.read(reading, LONGEST)
        os.close(reading)
        os.close(writing)
        self._thread = threading.Thread(target=self._turn, args=(int(ports.split()[0]),))
        self._thread.start()
        return ports

    def close(self) -> None:
        """End the thread, then the processes."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def round_trip(self, work: Work, argument: Any) -> Any:
        """Hand one over, wait for what comes back."""
        self._box.append(pickle.dumps((work, argument)))
        os.eventfd_write(self._wake, 1)
        self._done.acquire()
        return pickle.loads(self._box.pop())

    def _turn(self, port: int) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as gateway:
            gateway.linger = 0
            gateway.connect(f"tcp://127.0.0.1:{port}")
            poller = poller_of(self._wake, gateway)
            while True:
                for source, _ in poller.poll():
                    if source is gateway:
                        self._box.append(gateway.recv())
                        self._done.release()
                        continue
                    os.eventfd_read(self._wake)
                    if not self._box:
                        return
                    gateway.send(self._box.pop())

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """One after the other."""
        return [self.round_trip(work, argument) for argument in arguments]


class ListeningRelay(Relay):
    """The same with hub and client in one thread, as in a mesh that listens."""

    def _start(self) -> bytes:
        """Start the thread; return its ports."""
        bound: SimpleQueue[bytes] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, args=(bound.put,))
        self._thread.start()
        return bound.get()

    def _listen(self, tell: Callable[[bytes], None]) -> None:
        with (
            zmq.Context() as context,
            context.socket(zmq.PUSH) as lane,
            context.socket(zmq.PULL) as collector,
        ):
            lane.linger = 0
            ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (lane, collector)]
            tell(f"0 {ports[0]} {ports[1]}".encode())
            poller = poller_of(self._wake, collector)
            while True:
                for source, _ in poller.poll():
                    if source is collector:
                        self._box.append(collector.recv())
                        self._done.release()
                        continue
                    os.eventfd_read(self._wake)
                    if not self._box:
                        return
                    lane.send(self._box.pop())


def poller_of(*sources: Any) -> zmq.Poller:
    """Return a poller for any of them to be readable."""
    poller = zmq.Poller()
    for source in sources:
        poller.register(source, zmq.POLLIN)
    return poller


def hub(writing: int) -> None:
    """From the client to the lane, from the collector to the client."""
    context = zmq.Context()
    gateway, lane, collector = (context.socket(kind) for kind in (zmq.ROUTER, zmq.PUSH, zmq.PULL))
    ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (gateway, lane, collector)]
    os.write(writing, " ".join(map(str, ports)).encode())
    poller = poller_of(gateway, collector)
    client = b""
    while True:
        for source, _ in poller.poll():
            if source is gateway:
                client, task = gateway.recv_multipart()
                lane.send(task)
            else:
                gateway.send_multipart((client, collector.recv()))


def pool(reading: int, seat: socket.socket, other: socket.socket) -> None:
    """From the lane to the slot, from the slot to the collector."""
    other.close()
    _, lane_port, collector_port = os.read(reading, LONGEST).split()
    context = zmq.Context()
    lane, collector = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    lane.connect(f"tcp://127.0.0.1:{int(lane_port)}")
    collector.connect(f"tcp://127.0.0.1:{int(collector_port)}")
    poller = poller_of(lane, seat)
    while True:
        for source, _ in poller.poll():
            if source is lane:
                seat.send(lane.recv())
            else:
                collector.send(seat.recv(LONGEST))


def slot(supervisor: socket.socket, other: socket.socket) -> None:
    """Work until killed."""
    other.close()
    while task := supervisor.recv(LONGEST):
        work, argument = pickle.loads(task)
        supervisor.send(pickle.dumps(work(argument)))
