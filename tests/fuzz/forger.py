"""Messages that keep to the types and to nothing else: what a peer with a key and bad intentions can send."""

import math
import random
import types
import typing
from collections.abc import Sequence

import msgspec

from taskmesh.messages.runs import Payload

INTS = (0, 1, 2, 3, 5, 7, -1, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
FLOATS = (0.0, 0.01, 1.0, -1.0, 1e300, -1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", "default", "p", "q", "local", "x" * 300, "\x00", "ünï"),
    *("run", "cancel", "late", "early", "ready", "paused", "draining", "pause", "resume", "drain"),
    *("exception", "crash", "oom", "lost", "cancelled", "status", "tasks", "pools", "events"),
)
BYTES = (b"", b"x", b"y" * 100)
SHORT = (0, 1, 1, 2, 3)
PLAIN = {
    float: FLOATS,
    str: TEXTS,
    bytes: BYTES,
    bool: (True, False),
    object: (1, "x", None),
    type(None): (None,),
    typing.Any: BYTES[1:],
    Payload: BYTES[1:],
}


class Forger:
    """Makes values of any type that messages are made of.

    Args:
        chance: where they come from. likely: ints that mean something to the machine that is lied to.
    """

    def __init__(self, chance: random.Random, likely: Sequence[int] = (0, 1, 2, 3, 4, 5, 7)) -> None:
        self.chance = chance
        self.likely = list(likely)
        self._hints: dict[type, dict[str, object]] = {}

    def value(self, kind: typing.Any) -> typing.Any:
        """A value of this type; often one that makes no sense."""
        chance, origin, arguments = self.chance, typing.get_origin(kind), typing.get_args(kind)
        if kind is int:
            return chance.choice(self.likely if chance.random() < 0.7 else INTS)
        if kind in PLAIN:
            return chance.choice(PLAIN[kind])
        if origin is list:
            return [self.value(arguments[0]) for _ in range(chance.choice(SHORT))]
        if origin is tuple:
            if arguments[-1] is Ellipsis:
                return tuple(self.value(arguments[0]) for _ in range(chance.choice(SHORT)))
            return tuple(map(self.value, arguments))
        if origin in {typing.Union, types.UnionType}:
            return self.value(chance.choice(arguments))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(kind)
        raise TypeError(f"no forgery for {kind!r}")

    def struct(self, kind: type) -> typing.Any:
        """A struct of this class; its payloads are as many as its tasks, or every decoder would refuse it."""
        hints = self._hints.setdefault(kind, typing.get_type_hints(kind))
        given = {}
        for field in msgspec.structs.fields(kind):
            optional = (
                field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
            )
            if not optional or self.chance.random() < 0.6:
                given[field.name] = self.value(hints[field.name])
        if {"seqs", "payloads"} <= given.keys():
            given["seqs"] = sorted(set(given["seqs"]))
            given["payloads"] = [b"x"] * len(given["seqs"])
        return kind(**given)
