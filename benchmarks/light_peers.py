"""Many light peers in one process: each has the protocol's machine and its own sockets, and no slots.

`python -m benchmarks.light_peers ADDRESS KIND COUNT [TASKS]`, KIND is one of

    clients     COUNT clients that wait for nothing, or submit TASKS tasks together
    executors   COUNT clients that work through TASKS partitions as Spark's Python workers do: each takes the
                next one when it has the outcomes of the pieces of its last one
    pools       COUNT pools of a queue that gets no tasks
    takers      COUNT pools of 64 slots that answer each task with None at once

It prints a line of JSON when all have joined, then (TASKS) one when all tasks are accepted (of executors:
those of the first partition of each) and one when all have their outcomes; for each of these two it waits for
a line on standard input, whose end ends it. Pools of `takers` take work from the start.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import zmq

from taskmesh.client.machine.machine import ClientMachine
from taskmesh.client.machine.settings import ClientSettings
from taskmesh.core import events as ev
from taskmesh.core.actions import Accept, DialLane, HangUp, PoolAction, Resolve, Send, SendBeat, SendHub
from taskmesh.core.specs import spec_number
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import Endpoints
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode, to_client, to_pool
from taskmesh.messages.runs import DoneRun, Failed, Run, Spec, Value
from taskmesh.pool.machine.membership import Membership
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.serialize.payload import dumps
from taskmesh.sockets import Context, Dealer, Pull, Push, Sub
from taskmesh.system.process import raise_file_limit

PAYLOAD = 200
LIGHT = Spec(b"", "light")
LIGHT_NUMBER = spec_number(LIGHT)
RUN = 1_000
"""Tasks of a Submit."""
WINDOW = 16
"""Submits of a client under way."""
LOOK_MS = 20
"""Milliseconds between two looks at what is due."""
TAKERS = 64
"""Slots of a pool that takes tasks."""
PIECES = 2
"""Tasks of a partition."""
NONE = dumps(None)
AFTER = 0.01
"""Seconds that a task of such a pool is said to have taken 64 of."""


class NoTable:
    """The table of a client that need not submit anything again.

    Attributes:
        left: tasks without an outcome.
    """

    left = 0

    def __bool__(self) -> bool:
        """Return True if there are any."""
        return self.left > 0

    def pending_runs(self) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Return nothing."""
        return [], []

    def specs_of(self, numbers: Sequence[int]) -> list[tuple[int, Spec]]:
        """Return nothing."""
        return []

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Return nothing."""
        return []

    def lose_early(self, unsent: Container[int]) -> list[Failed]:
        """Return nothing."""
        return []


class LightClient:
    """A client machine and its socket.

    Attributes:
        accepted: how many tasks were accepted. ended: how many have an outcome.
        on_end: called when some have got theirs.
        sockets: what it reads.
    """

    def __init__(self, context: Context, hub: Endpoints, number: int, now: float) -> None:
        self.accepted = self.ended = 0
        self.on_end: Callable[[], None] = lambda: None
        self._gateway = Dealer(context, profiles.TO_GATEWAY)
        self._gateway.connect(hub.gateway)
        self.sockets = [self._gateway.raw]
        self._table = NoTable()
        self._machine = ClientMachine(ClientSettings(number, name="light"), self._table, now)
        self._seqs = itertools.count(1)

    @property
    def joined(self) -> bool:
        """True while the hub has welcomed it."""
        return self._machine.open

    @property
    def deadline(self) -> float:
        """The time of its next turn."""
        return self._machine.deadline

    def turn(self, now: float) -> None:
        """Take in what has come, and do what is due."""
        for frames in self._gateway.recv_parts_many():
            self._tell(ev.FromHubToClient(to_client.decode(frames)), now)
        if now >= self._machine.deadline:
            self._tell(ev.Tick(), now)

    def submit(self, count: int, now: float) -> None:
        """Submit a run of tasks, and wait for their outcomes."""
        payloads = [random.randbytes(PAYLOAD) for _ in range(count)]
        seqs = list(itertools.islice(self._seqs, count))
        specs = [(LIGHT_NUMBER, LIGHT)] if seqs[0] == 1 else []
        self._table.left += count
        self._tell(ev.Queued(specs, [Run(LIGHT_NUMBER, 0, seqs, payloads)]), now)

    @property
    def under_way(self) -> int:
        """Submits that are not acknowledged."""
        return self._machine.under_way

    def _tell(self, event: object, now: float) -> None:
        ended = self.ended
        self._machine.take(event, now)
        for action in self._machine.act(now):
            if isinstance(action, Send):
                self._gateway.try_send_parts(encode(action.message))
            elif isinstance(action, Accept):
                self.accepted += len(action.seqs)
            elif isinstance(action, Resolve):
                self.ended += sum(len(run.seqs) for run in action.done) + len(action.failed)
        if self.ended > ended:
            self._table.left -= self.ended - ended
            self.on_end()


class LightPool:
    """A pool's membership and its sockets; every task is done when it comes."""

    def __init__(self, context: Context, hub: Endpoints, name: str, slots: int, queue: str) -> None:
        self._context, self._hub, self._slots = context, hub, slots
        self._config = PoolSettings(name, random.getrandbits(48), slots, queues=(queue,), hello=0.2)
        self._out: list[PoolAction] = []
        self._member = Membership(self._config, time.monotonic(), self._out)
        self._collector = Push(context, profiles.TO_COLLECTOR)
        self._beats = Push(context, profiles.BEATS)
        self._control = Sub(context, profiles.TO_CONTROL)
        for topic in (profiles.topic(name), profiles.ALL):
            self._control.subscribe(topic)
        self._control.connect(hub.control)
        for push in (self._collector, self._beats):
            push.connect(hub.collector)
        self._lane: Pull | None = None
        self.sockets = [self._control.raw]
        self.dialled: Callable[[zmq.Socket[bytes], LightPool], None] = lambda socket, pool: None
        self.hung_up: Callable[[zmq.Socket[bytes]], None] = lambda socket: None

    @property
    def joined(self) -> bool:
        """True while it has a session."""
        return bool(self._member.session)

    @property
    def deadline(self) -> float:
        """The time of its next turn."""
        return self._member.deadline

    def turn(self, now: float) -> None:
        """Take in what has come, answer tasks, and do what is due."""
        member, spool = self._member, self._member.spool
        for frames in self._control.recv_parts_many():
            message = to_pool.decode(frames[1:])
            if isinstance(message, m.Welcome):
                member.welcomed(message, now)
            elif isinstance(message, m.BeatReply):
                member.replied(message, now)
        for frames in self._lane.recv_parts_many() if self._lane is not None else ():
            tasks = to_pool.decode(frames)
            if isinstance(tasks, m.Tasks) and member.admits(tasks, now):
                spool.done += [self._done(run) for run in tasks.runs]
        if member.beat_is_due(now):
            member.beat([], "ready", self._slots, now)
        if not member.session and member.is_due(now):
            member.hello([], self._slots, now)
        member.report(0.0, now)
        self._perform()

    def _done(self, run: Any) -> DoneRun:
        count = len(run.seqs)
        took = count * AFTER / TAKERS
        return DoneRun(run.spec, run.client, run.attempt, self._config.pool, run.seqs, [NONE] * count, took)

    def _perform(self) -> None:
        for action in self._out:
            if isinstance(action, SendHub):
                self._collector.try_send_parts(encode(action.message))
            elif isinstance(action, SendBeat):
                self._beats.try_send_parts(encode(action.message))
            elif isinstance(action, DialLane):
                self._lane = Pull(self._context, profiles.TO_LANE)
                self._lane.connect(self._hub.lane(action.endpoint))
                self.dialled(self._lane.raw, self)
            elif isinstance(action, HangUp) and self._lane is not None:
                print("a light pool asks for another session", file=sys.stderr)
                self.hung_up(self._lane.raw)
                self._lane.close()
                self._lane = None
        self._out.clear()


class Loop:
    """Turns peers that have got something, and those for which something is due."""

    def __init__(self, peers: Sequence[LightClient] | Sequence[LightPool]) -> None:
        self._peers = peers
        self._poller = zmq.Poller()
        self._of: dict[object, LightClient | LightPool] = {}
        self._look_at = 0.0
        self.over = False
        self.told = False
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)
        for peer in peers:
            for socket in peer.sockets:
                self._watch(socket, peer)
            if isinstance(peer, LightPool):
                peer.dialled, peer.hung_up = self._watch, self._forget

    def _watch(self, socket: zmq.Socket[bytes], peer: LightClient | LightPool) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._of[socket] = peer

    def _forget(self, socket: zmq.Socket[bytes]) -> None:
        self._poller.unregister(socket)
        del self._of[socket]

    def until(self, is_over: Callable[[], bool]) -> float:
        """Turn until something is so, or standard input ends; return the time."""
        while not is_over() and not self.over:
            for source, _ in self._poller.poll(LOOK_MS):
                if source in self._of:
                    self._of[source].turn(time.monotonic())
                else:
                    self.told = bool(sys.stdin.readline())
                    self.over = not self.told
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + LOOK_MS / 1000
                for peer in self._peers:
                    if now >= peer.deadline:
                        peer.turn(now)
        return time.monotonic()

    def until_told(self) -> None:
        """Turn until a line has come on standard input."""
        self.told = False
        self.until(lambda: self.told)


def tell(what: str, seconds: float) -> None:
    """Print a line for the benchmark."""
    print(json.dumps({"what": what, "s": seconds}), flush=True)


def submit(loop: Loop, clients: Sequence[LightClient], count: int) -> None:
    """Submit tasks in turn when told, and tell when they are accepted, and when they have ended."""
    loop.until_told()
    begin, left = time.monotonic(), count
    for client in itertools.cycle(clients):
        if not left or loop.over:
            break
        loop.until(lambda client=client: client.under_way < WINDOW)  # type: ignore[misc]
        client.submit(min(RUN, left), time.monotonic())
        left -= min(RUN, left)
    accepted = loop.until(lambda: sum(client.accepted for client in clients) >= count)
    tell("accepted", accepted - begin)
    loop.until_told()
    begin = time.monotonic()
    tell("ended", loop.until(lambda: sum(client.ended for client in clients) >= count) - begin)


def work_through(loop: Loop, clients: Sequence[LightClient], partitions: int) -> None:
    """Work through partitions when told; tell when the first ones are accepted, and when all have ended."""
    loop.until_told()
    begin = time.monotonic()
    left = iter(range(partitions))

    def take(client: LightClient) -> None:
        if client.ended % PIECES == 0 and next(left, None) is not None:
            client.submit(PIECES, time.monotonic())

    for client in clients:
        client.on_end = functools.partial(take, client)
        take(client)
    first = PIECES * min(partitions, len(clients))
    accepted = loop.until(lambda: sum(client.accepted for client in clients) >= first)
    tell("accepted", accepted - begin)
    loop.until_told()
    begin = time.monotonic()
    tell("ended", loop.until(lambda: sum(client.ended for client in clients) >= PIECES * partitions) - begin)


def main() -> None:
    """Make the peers, and turn them until standard input ends."""
    address, kind, number, *more = sys.argv[1:]
    count, hub = int(number), Endpoints.of(address)
    raise_file_limit()
    with Context(max_sockets=5 * count + 64) as context:
        begin = time.monotonic()
        peers: list[Any]
        if kind in {"clients", "executors"}:
            first = random.getrandbits(40)
            peers = [LightClient(context, hub, first + place, begin) for place in range(count)]
        else:
            slots, queue = (TAKERS, "default") if kind == "takers" else (1, "crowd")
            name = f"{kind}-{random.getrandbits(24)}"
            peers = [LightPool(context, hub, f"{name}-{place}", slots, queue) for place in range(count)]
        loop = Loop(peers)
        tell("joined", loop.until(lambda: all(peer.joined for peer in peers)) - begin)
        if more:
            (work_through if kind == "executors" else submit)(loop, peers, int(more[0]))
        loop.until(lambda: math.isinf(0.0))
        os._exit(0)  # thousands of sockets would be closed one by one, each with a goodbye


if __name__ == "__main__":
    main()
