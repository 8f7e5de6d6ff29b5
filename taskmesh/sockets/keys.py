"""CURVE key pairs: made here, because nothing above this layer knows libzmq."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from taskmesh.sockets.errors import InvalidOption

TEXT_LENGTH = 40
"""Characters of a key in Z85, the form that files hold."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret one, both as 40 bytes of Z85 text."""

    public: bytes
    secret: bytes = field(repr=False)


def new_key_pair() -> KeyPair:
    """A fresh pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public, secret)


def pair_of(secret: bytes) -> KeyPair:
    """The pair that a secret key belongs to.

    Raises:
        InvalidOption: it is no key.
    """
    raw_key(secret)
    return KeyPair(zmq.curve_public(secret), secret)


def raw_key(text: bytes) -> bytes:
    """The 32 bytes of a key, as ZAP requests carry them.

    Raises:
        InvalidOption: it is not 40 bytes of Z85 text. The message does not repeat it: it may be secret.
    """
    try:
        raw = z85.decode(text) if len(text) == TEXT_LENGTH else b""
    except (KeyError, ValueError, struct.error):
        raw = b""
    if len(raw) != 32:
        raise InvalidOption("a key is 40 characters of Z85 text, as `taskmesh keys new` writes them")
    return raw


def key_text(raw: bytes) -> bytes:
    """The Z85 text of a key's 32 bytes.

    Raises:
        InvalidOption: it is not 32 bytes long.
    """
    if len(raw) != 32:
        raise InvalidOption("a key has 32 bytes")
    return bytes(z85.encode(raw))
