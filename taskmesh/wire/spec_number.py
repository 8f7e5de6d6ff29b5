"""The number of a spec: a digest of its bytes, the same for every client, hub, pool and slot."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from taskmesh.wire.batches import Spec

_PACK = msgspec.msgpack.Encoder()
_FIRST = 18
"""Fields of protocol 1's first specs."""
_DEFAULTS = [field.default for field in msgspec.structs.fields(Spec)]


def spec_number(spec: Spec) -> int:
    """63 bits that stand for the spec wherever it is known.

    Fields that later versions added count where they are used: earlier versions, which do not know them, come
    to the same number for all other specs.
    """
    values = msgspec.structs.astuple(spec)
    count = len(values)
    while count > _FIRST and values[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    return int.from_bytes(blake2b(_PACK.encode(values[:count]), digest_size=8).digest(), "big") >> 1
