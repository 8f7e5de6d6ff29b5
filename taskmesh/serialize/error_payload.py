"""A payload that raises an error when it is decoded: it replaces one that cannot be passed on."""

from __future__ import annotations

from typing import NoReturn

from taskmesh.errors import SerializationError


def refused(text: str) -> bytes:
    """The payload for a reason. A pickle by hand: supervisors, who make it, do not load what pickles."""
    reason = text.encode()
    call = f"c{__name__}\n{refuse.__name__}\n".encode()
    return b"\x80\x05" + call + b"X" + len(reason).to_bytes(4, "little") + reason + b"\x85R."


def refuse(text: str) -> NoReturn:
    """Called by the one who rebuilds it.

    Raises:
        SerializationError: always.
    """
    raise SerializationError(text)
