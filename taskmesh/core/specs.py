"""Specs: their numbers, the same for every client, hub, pool and slot, and the eviction of old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from taskmesh.messages.runs import Spec

_PACK = msgspec.msgpack.Encoder()
_LATER: Final = tuple(
    field.default
    for field in msgspec.structs.fields(Spec)
    if field.name
    in {
        "keep",
        "shared",
        "limits",
        "durable",
        "detach",
        "ignore_result",
        "sink",
        "headers",
        "log_level",
        "stream_logs",
        "source",
    }
)
"""Defaults of the fields at the end that the first versions did not have."""


def spec_bytes(spec: Spec) -> bytes:
    """Return the bytes that a spec's number is made of.

    They are the same in every version that has the spec's fields.
    """
    values = list(msgspec.structs.astuple(spec))
    if tuple(values[-len(_LATER) :]) == _LATER:
        del values[-len(_LATER) :]
    return _PACK.encode(values)


def signed_bytes(spec: Spec) -> bytes:
    """Return the bytes of a spec that signatures are made of: what its caller wants to hear may differ.

    Programs that share the outcome of a key have log levels and paths of their own.
    """
    return spec_bytes(msgspec.structs.replace(spec, log_level=0, stream_logs=False, source=""))


def spec_number(spec: Spec) -> int:
    """Return the 63 bits that stand for a spec wherever it is known."""
    return int.from_bytes(blake2b(spec_bytes(spec), digest_size=8).digest(), "big") >> 1


def evicted(
    sizes: Mapping[int, int], is_needed: Callable[[int], object], *, most: int, most_bytes: int
) -> list[int]:
    """Return the specs to evict: the oldest beyond the bounds. Needed ones stay, even if too many do.

    Args:
        sizes: Bytes by spec number, oldest first.
        is_needed: Returns True if a task of a spec is here.
        most: Number of specs that may stay.
        most_bytes: Bytes that they may have together.
    """
    count, size = len(sizes), sum(sizes.values())
    gone: list[int] = []
    for number, own in sizes.items():
        if count <= most and size <= most_bytes:
            break
        if not is_needed(number):
            gone.append(number)
            count -= 1
            size -= own
    return gone
