"""Kept outcomes as bytes for a store, and back. What comes back may have been edited: it is never trusted.

The bytes: "TMK", a byte of version, the CRC-32 of all that follows the head, the number of frames (4 bytes
each); the size of each frame (8 bytes); the frames, msgpack and then the parts of a large payload, as
`framing.frames` makes them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from hashlib import blake2b

from taskmesh.errors import RemoteProtocolError
from taskmesh.framing.frames import Decoder, encode
from taskmesh.shm.files import Buffer
from taskmesh.wire.runs import Kept

VERSION = 1
"""Of these bytes and of the shapes in them; a hub reads no other."""

_MAGIC = b"TMK"
_HEAD = struct.Struct(">3sBII")
_FRAMES: Decoder[Kept] = Decoder(Kept)


def place(kept: Kept) -> str:
    """Return the store's key for the name and key of a task: 40 hexadecimal digits."""
    name = kept.name.encode()
    made = blake2b(struct.pack(">I", len(name)) + name + kept.key.encode(), digest_size=20)
    return made.hexdigest()


def to_bytes(kept: Kept) -> bytes:
    """The bytes of an outcome.

    Raises:
        LocalProtocolError: something in it cannot travel.
    """
    frames = encode(kept)
    rest = [struct.pack(f">{len(frames)}Q", *map(len, frames)), *frames]
    return b"".join((_HEAD.pack(_MAGIC, VERSION, _crc(rest), len(frames)), *rest))


def from_bytes(data: bytes) -> Kept:
    """The outcome in these bytes; large payloads go on using them.

    Raises:
        RemoteProtocolError: they hold none, or one of another version.
    """
    if len(data) < _HEAD.size or data[:3] != _MAGIC:
        raise RemoteProtocolError("it is no outcome of a task")
    _, version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise RemoteProtocolError(f"it has version {version}, and this hub reads version {VERSION}")
    start = _HEAD.size + 8 * count
    if not count or start > len(data):
        raise RemoteProtocolError("it has been cut short")
    sizes = struct.unpack_from(f">{count}Q", data, _HEAD.size)
    if start + sum(sizes) != len(data):
        raise RemoteProtocolError(f"it has {len(data)} bytes where {start + sum(sizes)} belong")
    view = memoryview(data)
    if _crc([view[_HEAD.size :]]) != crc:
        raise RemoteProtocolError("its checksum is wrong")
    frames: list[memoryview] = []
    for size in sizes:
        frames.append(view[start : start + size])
        start += size
    kept = _FRAMES.decode(frames)
    if len(kept.done) + len(kept.failed) != 1 or any(len(run.seqs) != 1 for run in kept.done):
        raise RemoteProtocolError("it is not the outcome of one task")
    if not kept.key or kept.keep <= 0:
        raise RemoteProtocolError("it is of a task whose outcome nobody keeps")
    return kept


def _crc(parts: Iterable[Buffer]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc
