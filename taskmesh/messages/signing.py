"""Signatures of payloads: HMAC-SHA256 with a key that clients and pools have, and the hub has not.

A signed payload begins with MAGIC and the signature. What is signed is the payload together with its context:
whose task it is, and what is to be done with it. So a hub can neither change a payload nor hand it out as
another's. The context's length is signed too: else a hub could call the beginning of a payload the end of its
context, and have the rest unpickled.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Any, NoReturn

from taskmesh.errors import BadSignature
from taskmesh.messages.runs import KEYED, MAGIC
from taskmesh.shm.blob import Blob
from taskmesh.shm.files import Buffer

LENGTH = len(MAGIC) + 32
_LENGTH = struct.Struct(">I")
NO_SIGNATURE = (
    "it is not signed, but others here have a mesh key: copy the file mesh.secret from a worker's keys"
)
WRONG = "its signature is wrong: it was changed on its way, or signed with another mesh.secret"
NO_KEY = "it is signed, and this program has no mesh key: copy the file mesh.secret from a worker's keys"


def refuse(reason: str) -> NoReturn:
    """Run in a slot in place of a task that is not to be trusted.

    Raises:
        BadSignature: always.
    """
    raise BadSignature(f"this task was not run: {reason}")


class Signer:
    """Signs with the first key, accepts any; two are there while the mesh key is being rotated."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"<Signer with {len(self._keys)} keys>"

    def sign(self, context: bytes, payload: Any) -> Any:
        """The payload, signed; a Blob's buffers are not copied."""
        if not isinstance(payload, Blob):
            return b"".join((MAGIC, _of_bytes(self._keys[0], context, payload), payload))
        return payload.with_head(b"".join((MAGIC, _of_blob(self._keys[0], context, payload), payload.head)))

    def verified(self, context: bytes, payload: Any) -> Any:
        """The payload without its signature.

        Raises:
            BadSignature: it has none, or a wrong one.
        """
        if not is_signed(payload):
            raise BadSignature(NO_SIGNATURE)
        if not isinstance(payload, Blob):
            body = bytes(payload[LENGTH:])
            found = bytes(payload[len(MAGIC) : LENGTH])
            good = [_of_bytes(key, context, body) for key in self._keys]
        else:
            head = memoryview(payload.head)
            found = bytes(head[len(MAGIC) : LENGTH])
            blob = payload.with_head(bytes(head[LENGTH:]))
            good = [_of_blob(key, context, blob) for key in self._keys]
        if not any(hmac.compare_digest(found, each) for each in good):
            raise BadSignature(WRONG)
        return blob if isinstance(payload, Blob) else body


def is_signed(payload: Any) -> bool:
    """Return True if a payload claims to be signed."""
    head = _head(payload)
    return len(head) >= LENGTH and bytes(head[: len(MAGIC)]) in (MAGIC, KEYED)


def unsigned(payload: Any) -> Any:
    """A signed payload without its signature, which is not verified."""
    return _beheaded(payload, bytes(_head(payload)[LENGTH:]))


def with_key(key: bytes, payload: Any) -> Any:
    """A signed payload that states the key which is in the context of its signature."""
    head = b"".join((KEYED, _LENGTH.pack(len(key)), key, _head(payload)))
    return _beheaded(payload, head)


def split_key(payload: Any) -> tuple[bytes, Any]:
    """The key that a payload states, empty if it states none, and the payload without it."""
    head = memoryview(_head(payload))
    start = len(KEYED) + _LENGTH.size
    if len(head) < start or bytes(head[: len(KEYED)]) != KEYED:
        return b"", payload
    (length,) = _LENGTH.unpack(head[len(KEYED) : start])
    return bytes(head[start : start + length]), _beheaded(payload, bytes(head[start + length :]))


def _head(payload: Any) -> Any:
    return payload.head if isinstance(payload, Blob) else payload


def _beheaded(payload: Any, head: bytes) -> Any:
    return payload.with_head(head) if isinstance(payload, Blob) else head


def _of_bytes(key: bytes, context: bytes, body: Buffer) -> bytes:
    return hmac.digest(key, b"".join((b"b", _LENGTH.pack(len(context)), context, body)), "sha256")


def _of_blob(key: bytes, context: bytes, blob: Blob) -> bytes:
    sizes = struct.pack(f">{len(blob.layout)}Q", *(size for _, size, _ in blob.layout))
    head = (b"p", _LENGTH.pack(len(context)), context, struct.pack(">Q", len(blob.layout)), sizes)
    made = hmac.new(key, b"".join(head), "sha256")
    for part in blob.pieces:
        for piece in part:
            made.update(piece)
    return made.digest()
