"""The version of the libzmq that is loaded, and the longest wait that it is asked for."""

from __future__ import annotations

import math

import zmq

from taskmesh.sockets.errors import UnsupportedLibrary

OLDEST_LIBZMQ = (4, 3, 5)


def check_library(version: tuple[int, int, int] | None = None) -> None:
    """Refuse a libzmq that is too old.

    Args:
        version: the version to judge; the loaded one when None.

    Raises:
        UnsupportedLibrary: it is older than OLDEST_LIBZMQ.
    """
    loaded = zmq.zmq_version_info() if version is None else version
    if loaded < OLDEST_LIBZMQ:
        raise UnsupportedLibrary(
            f"taskmesh needs libzmq >= {text(OLDEST_LIBZMQ)}, but pyzmq {zmq.__version__} has {text(loaded)};"
            " install pyzmq 27 from its wheel"
        )


def text(version: tuple[int, int, int]) -> str:
    """4.3.5 for (4, 3, 5)."""
    return ".".join(str(number) for number in version)


LONGEST = 3600.0
"""Seconds of one stretch of a longer wait; between two of them the clock is read."""


def stretch(seconds: float) -> int:
    """Milliseconds to wait for, when so many seconds are left."""
    return math.ceil(min(max(seconds, 0.0), LONGEST) * 1000)
