"""The number of a spec: a digest of its bytes, the same for every client, hub, pool and slot."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from taskmesh.wire.batches import Spec

_PACK = msgspec.msgpack.Encoder()


def spec_number(spec: Spec) -> int:
    """63 bits that stand for the spec wherever it is known."""
    return int.from_bytes(blake2b(_PACK.encode(spec), digest_size=8).digest(), "big") >> 1
