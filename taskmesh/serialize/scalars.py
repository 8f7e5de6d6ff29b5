"""Scalars: numbers, texts, True, False and None. They travel as MessagePack, at an eighth of a pickle's cost.

They cannot change, name no class and run no code. Exact types only: a subclass has more to it than its value.
They stand in an array, and no pickle begins like one: a payload says itself what it is. Results that may be
nothing but plain data travel so, too.

    a call      [argument, ...]
    a result    [value]

Nor does a pickle, or MessagePack, begin as the bytes do that a function with a codec of its own has encoded:
they are never unpickled, whoever claims that they are a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from taskmesh.shm.files import Buffer

SCALARS: Final = frozenset({int, float, str, bool, type(None)})
"""The exact types."""

PROTO: Final = 0x80
"""The first byte of every pickle (of protocol 2 and above)."""

ENCODED: Final = b"\xc1"
"""The byte before a payload that its maker has encoded; MessagePack never uses it."""

BEYOND: Final = (OverflowError, UnicodeError)
"""Errors of `encode_scalars` for scalars that MessagePack cannot say: large integers, lone surrogates."""

MALFORMED: Final = (msgspec.DecodeError, ValueError, IndexError, RecursionError)
"""Errors of a search for scalars in other bytes; a signal's TaskTimeout is none of these."""

encode_scalars: Final[Callable[[tuple[Any, ...]], bytes]] = msgspec.msgpack.Encoder().encode
"""The bytes of scalars."""

decode_scalars: Final[Callable[[Buffer], tuple[Any, ...]]] = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
"""The scalars again; raises MALFORMED when the bytes are something else."""
