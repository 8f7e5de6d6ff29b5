"""Whatever the bytes, a decoder returns a message or raises RemoteProtocolError (abuse list A6-A8)."""

import os
import random
import tracemalloc
import typing
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmesh.errors import RemoteProtocolError
from taskmesh.messages.frames import Decoder, encode
from tests.messages.samples import DIRECTIONS, messages

CASES = int(os.environ.get("FUZZ_WIRE", "200000"))
A_SEED = 500
"""Cases that are made of one seed: hypothesis takes longer to think of a seed than a decoder to refuse."""
NASTY = (
    *(None, True, -1, 0, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63), 0.0, float("nan"), float("inf")),
    *("", "x" * 10_000, "\x00", b"", b"\xff" * 100, [], {}, [[]], [[[[[[[[]]]]]]]], {"type": 41}, [0] * 1000),
)
WIRES = [name for name in DIRECTIONS if name not in {"to_slot", "from_slot"}]

Frames = list[bytes]


def samples(direction: str) -> tuple[Decoder[typing.Any], list[Frames]]:
    pairs = list(messages(direction))
    return pairs[0][0], [[bytes(frame) for frame in encode(message)] for _, message in pairs]


class Mutation:
    """Small changes to the frames of real messages."""

    def __init__(self, seed: int, corpus: list[Frames]) -> None:
        self.chance = random.Random(seed)
        self.corpus = corpus

    def cases(self, count: int) -> Iterator[Frames]:
        ways = (self._value, self._value, self._value, self._bytes, self._cut, self._frames, self._splice)
        for _ in range(count):
            yield self.chance.choice(ways)(list(self.chance.choice(self.corpus)))

    def _value(self, frames: Frames) -> Frames:
        """Another value somewhere in the message."""
        tree = msgspec.msgpack.decode(frames[0])
        for _ in range(self.chance.randrange(1, 4)):
            tree = self._changed(tree, depth=0)
        return [msgspec.msgpack.encode(tree), *frames[1:]]

    def _changed(self, node: typing.Any, depth: int) -> typing.Any:
        chance = self.chance
        if not node or not isinstance(node, list | dict) or depth > 6 or chance.random() < 0.1:
            return chance.choice(NASTY)
        where = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        copy = node.copy()
        if chance.random() < 0.2:
            del copy[where]
        elif isinstance(copy, list) and chance.random() < 0.2:
            copy.insert(where, chance.choice(NASTY))
        else:
            copy[where] = self._changed(node[where], depth + 1)
        return copy

    def _bytes(self, frames: Frames) -> Frames:
        """Other bytes."""
        header = bytearray(frames[0])
        for _ in range(self.chance.randrange(1, 5)):
            header[self.chance.randrange(len(header))] = self.chance.randrange(256)
        return [bytes(header), *frames[1:]]

    def _cut(self, frames: Frames) -> Frames:
        """A frame that ends too early or too late."""
        which = self.chance.randrange(len(frames))
        frame = frames[which]
        frames[which] = frame[: self.chance.randrange(len(frame) + 1)] + self.chance.randbytes(
            self.chance.randrange(3)
        )
        return frames

    def _frames(self, frames: Frames) -> Frames:
        """More, fewer or other frames."""
        count = self.chance.choice((0, 1, 2, 1000))
        return self.chance.choice((frames[:-1], frames + [b"x"] * count, [b""] * count, frames[::-1]))

    def _splice(self, frames: Frames) -> Frames:
        """Half of one message and half of another."""
        other = self.chance.choice(self.corpus)[0]
        at = self.chance.randrange(len(frames[0]))
        return [frames[0][:at] + other[at:], *frames[1:]]


@pytest.mark.parametrize("direction", WIRES)
def test_no_mutation_raises_anything_else(direction):
    decoder, corpus = samples(direction)
    seen = {True: 0, False: 0}

    @given(st.integers(0, 2**64))
    @settings(
        max_examples=max(1, CASES // A_SEED // len(WIRES)),
        deadline=None,
        derandomize="FUZZ_WIRE" not in os.environ,
    )
    def fuzz(seed: int) -> None:
        for frames in Mutation(seed, corpus).cases(A_SEED):
            try:
                received = decoder.decode(frames)
            except RemoteProtocolError:
                seen[False] += 1
            else:
                encode(received)  # what was accepted can be passed on
                seen[True] += 1

    fuzz()
    assert sum(seen.values()) >= CASES // len(WIRES)
    assert min(seen.values()) > 0, "both kinds of cases are needed, or this shows nothing"


@pytest.mark.parametrize("direction", WIRES)
def test_a_small_frame_makes_no_large_allocation(direction):
    """A length that is announced and not there costs nothing; nor does what no message has, deep or wide."""
    decoder, corpus = samples(direction)
    bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000]
    bombs.append(b"\xdd" + (100_000).to_bytes(4) + b"\x90" * 100_000)
    bombs += [
        frames[0][:at] + bomb for frames in corpus for at in range(1, len(frames[0]), 7) for bomb in bombs
    ]
    tracemalloc.start()
    try:
        for bomb in bombs[:400]:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(RemoteProtocolError):  # a few make a key's name longer, and are well-formed
                decoder.decode([bomb])
            assert tracemalloc.get_traced_memory()[1] - before < 4 * len(bomb) + 65_536
    finally:
        tracemalloc.stop()
