"""The number of a spec: a digest of its bytes, the same for every client, hub, pool and slot."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from taskmesh.wire.batches import Spec

_PACK = msgspec.msgpack.Encoder()
_LATER: Final = tuple(
    field.default for field in msgspec.structs.fields(Spec) if field.name in {"keep", "shared"}
)
"""Defaults of the fields at the end that the first versions did not have."""


def spec_bytes(spec: Spec) -> bytes:
    """What a spec's number and signatures are made of, the same in every version that can say as much."""
    values = list(msgspec.structs.astuple(spec))
    if tuple(values[-len(_LATER) :]) == _LATER:
        del values[-len(_LATER) :]
    return _PACK.encode(values)


def spec_number(spec: Spec) -> int:
    """63 bits that stand for the spec wherever it is known."""
    return int.from_bytes(blake2b(spec_bytes(spec), digest_size=8).digest(), "big") >> 1
