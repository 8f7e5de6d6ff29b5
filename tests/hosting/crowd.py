"""Many pools in one process: sessions, lanes and beats over sockets of their own, and no slots.

python -m tests.hosting.crowd ADDRESS KEYS PREFIX COUNT hold|answer: prints "made", dials when a line comes on
standard input, prints "joined SECONDS", and ends with the next line. Tasks are kept, or answered with None.
"""

from __future__ import annotations

import select
import sys
import time
from dataclasses import replace

from taskmesh.hub.file_limit import raise_file_limit
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.link.socket_profiles import ALL, topic
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode, to_pool
from taskmesh.messages.runs import DoneRun
from taskmesh.security.keys import Credentials, credentials_of
from taskmesh.serialize.payload import dumps
from taskmesh.sockets import Context, Pull, Push, Socket, Sub, new_key_pair, raw_key

BEAT = 1.0
HELLO = 0.5
TICK = 0.02
NONE = dumps(None)


class LightPool:
    """One pool, driven by `step`: it says hello until it is welcome, dials its lane, beats, takes tasks."""

    def __init__(
        self, context: Context, way: Target, credentials: Credentials, name: str, *, answers: bool
    ) -> None:
        self.name = name
        self.answers = answers
        self.session = self.epoch = self.received = self.results = 0
        self.lane: Pull | None = None
        self.kept: list[m.Tasks] = []
        self._context = context
        self._way = way
        self._token = name.encode().ljust(16, b".")[-16:]
        self._number = 1
        self._pair = new_key_pair()
        self._hello_at = self._beat_at = 0.0
        self._collector = Push(context, way.options(profiles.TO_COLLECTOR, credentials.pair))
        self._control = Sub(context, way.options(profiles.TO_CONTROL, credentials.pair))
        self._control.subscribe(topic(name))
        self._control.subscribe(ALL)

    def dial(self) -> None:
        self._control.connect(self._way.hub.control)
        self._collector.connect(self._way.hub.collector)

    def say(self, message: m.PoolMessage) -> None:
        self._collector.try_send_parts([self._token, *encode(message)])

    def step(self, now: float) -> None:
        for frames in self._control.recv_parts_many():
            self._heard(to_pool.decode(frames[1:]))
        if self.lane is not None:
            for frames in self.lane.recv_parts_many():
                self._take(to_pool.decode(frames))
        if not self.session and now >= self._hello_at:
            self._hello_at = now + HELLO
            key = raw_key(self._pair.public)
            self.say(m.Hello(self.name, 1, self._number, 1, ["default"], [], 0, 0, [], key=key))
        elif self.session and now >= self._beat_at:
            self._beat_at = now + BEAT
            beat = m.Beat(self.epoch, self.session, self.name, self.received, 0, self.results, [])
            self.say(beat)

    def _heard(self, message: m.ToPool) -> None:
        if isinstance(message, m.Welcome) and not self.session and message.number == self._number:
            self.session, self.epoch, self.received, self.results = message.session, message.epoch, 0, 0
            options = self._way.options(profiles.TO_LANE, self._pair)
            self.lane = Pull(self._context, replace(options, linger_ms=0))
            self.lane.connect(self._way.hub.lane(message.lane))
        elif isinstance(message, m.BeatReply) and not message.session and message.about == self.session:
            self.hang_up()

    def hang_up(self) -> None:
        if self.lane is not None:
            self.lane.close()
        self.lane, self.session = None, 0
        self._number += 1
        self._pair = new_key_pair()

    def _take(self, message: m.ToPool) -> None:
        assert isinstance(message, m.Tasks)
        self.received = message.lane_seq
        if not self.answers:
            self.kept.append(message)
            return
        done = [
            DoneRun(
                run.spec, run.client, run.attempt, f"{self.name}/0", run.seqs, [NONE] * len(run.seqs), 0.01
            )
            for run in message.runs
        ]
        self.results += 1
        self.say(m.Results(self.epoch, self.session, self.results, done, [], []))

    def close(self) -> None:
        sockets: list[Socket] = [self._collector, self._control]
        for socket in sockets:
            socket.close()
        if self.lane is not None:
            self.lane.close()


def main() -> None:
    address, keys, prefix, count, what = sys.argv[1:]
    raise_file_limit()
    credentials = credentials_of(keys, "worker")
    assert credentials is not None
    way = Target(Endpoints.of(address), credentials.hub_keys[0])
    with Context(max_sockets=8 * int(count) + 64) as context:
        pools = [
            LightPool(context, way, credentials, f"{prefix}-{number}", answers=what == "answer")
            for number in range(int(count))
        ]
        print("made", flush=True)  # noqa: T201
        sys.stdin.readline()
        began = time.monotonic()
        for pool in pools:
            pool.dial()
        told = False
        while not select.select([sys.stdin], [], [], TICK)[0]:
            now = time.monotonic()
            for pool in pools:
                pool.step(now)
            if not told and all(pool.session for pool in pools):
                told = True
                print(f"joined {time.monotonic() - began:.2f}", flush=True)  # noqa: T201
        for pool in pools:
            pool.close()


if __name__ == "__main__":
    main()
