"""Messages to ZeroMQ frames and back. Imports no pickle: the hub uses it.

A message is one frame; when payloads are Blobs their parts follow as further frames, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taskmesh.errors import RemoteProtocolError
from taskmesh.wire import messages as m
from taskmesh.wire.blob import Blob, Buffer

Message = m.ClientMessage | m.ToClient | m.PoolMessage | m.ToPool

_BLOB = 1
_PACK = msgspec.msgpack.Encoder()
_LAYOUT = msgspec.msgpack.Decoder(list[tuple[int, int]])


class _HasBlob(Exception):
    """Internal: the message has a Blob, so one frame is not enough."""


def _refuse(obj: object) -> object:
    if isinstance(obj, Blob):
        raise _HasBlob
    raise TypeError(f"{type(obj).__name__} cannot be part of a message")


_PLAIN = msgspec.msgpack.Encoder(enc_hook=_refuse)


def _encode(message: Any) -> tuple[bytes, list[Blob]]:
    try:
        return _PLAIN.encode(message), []
    except _HasBlob:
        pass
    blobs: list[Blob] = []

    def placeholder(obj: object) -> object:
        if not isinstance(obj, Blob):
            return _refuse(obj)
        blobs.append(obj)
        return msgspec.msgpack.Ext(_BLOB, _PACK.encode([(size, flag) for _, size, flag in obj.layout]))

    return msgspec.msgpack.Encoder(enc_hook=placeholder).encode(message), blobs


def encode(message: Message) -> list[Buffer]:
    """A message as frames: [header], or [header, *parts of its Blobs]."""
    header, blobs = _encode(message)
    return [header, *(part for blob in blobs for part in blob.parts)] if blobs else [header]


def encode_local(message: m.SlotTasks | m.FromSlot) -> tuple[bytes, list[Blob]]:
    """A message between supervisor and slot: its body, and the Blobs whose descriptors (`to_fd()`) go along in order."""
    return _encode(message)


class Decoder:
    """Frames to messages of one direction."""

    def __init__(self, union: Any) -> None:
        self._union = union
        self._plain = msgspec.msgpack.Decoder(union)

    def decode(self, frames: Sequence[Any]) -> Any:
        """The message in these frames (anything with a buffer).

        Raises:
            RemoteProtocolError: they are not a message of this direction.
        """
        try:
            if len(frames) == 1:
                return self._plain.decode(frames[0])
            rest = iter(frames[1:])

            def blob(code: int, data: memoryview) -> Blob:
                pairs = _LAYOUT.decode(data)
                return Blob.from_parts([memoryview(next(rest)) for _ in pairs], [flag for _, flag in pairs[1:]])

            return msgspec.msgpack.Decoder(self._union, ext_hook=blob).decode(frames[0])
        except Exception as error:
            raise RemoteProtocolError(f"malformed message: {error}") from error

    def decode_local(self, body: Buffer, fds: Sequence[int]) -> Any:
        """The message in a slot socket's frame; takes over the descriptors that came with it."""
        rest = iter(fds)

        def blob(code: int, data: memoryview) -> Blob:
            pairs = _LAYOUT.decode(data)
            from taskmesh.wire.blob import layout_of
            return Blob.from_fd(next(rest), layout_of([p[0] for p in pairs], [p[1] for p in pairs]))

        return msgspec.msgpack.Decoder(self._union, ext_hook=blob).decode(body)


from_client = Decoder(m.ClientMessage)
to_client = Decoder(m.ToClient)
from_pool = Decoder(m.PoolMessage)
to_pool = Decoder(m.ToPool)
to_slot = Decoder(m.SlotTasks)
from_slot = Decoder(m.FromSlot)
