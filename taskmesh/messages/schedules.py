"""Schedules as they travel: the times of their firings, and the call that each firing runs."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from taskmesh.messages.runs import Name, Number, Spec

if TYPE_CHECKING:
    Payload = Any
else:
    Payload = bytes | msgspec.msgpack.Ext  # as in `messages.runs`

OVERLAPS = ("skip", "allow")
"""Values of `Timing.overlap`."""
CATCHUPS = ("latest", "none")
"""Values of `Timing.catchup`."""
SHORTEST_PERIOD, LONGEST_PERIOD = 0.01, 1e10
"""Seconds between two firings of a schedule with a period."""
TICK = struct.Struct(">d")
"""The time of a firing, in seconds since the epoch: it stands before the call in the payload of its task."""


class Timing(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The times at which a schedule fires, and its rules for firings that overlap or were missed.

    Attributes:
        cron: A cron line; empty if there is a period.
        period: Seconds from one firing to the next: the epoch plus a multiple of it.
        tz: Time zone of the cron line.
        overlap: Whether to "skip" a firing if the last one has not ended, or to "allow" it.
        catchup: Whether to make up for the "latest" missed firing, or for "none".
    """

    cron: Name = ""
    period: Number = 0.0
    tz: Name = "UTC"
    overlap: Name = "skip"
    catchup: Name = "latest"


class Declaration(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as a program declares it.

    Attributes:
        name: Its name, of which there is one in a mesh.
        timing: The times of its firings.
        spec: Spec of its tasks; the kind is FIRING.
        payload: The call, encoded.
        part: The key of its tasks' limits, as in `Run`.
        in_code: `@task(schedule=...)` declares it: its client tells each new hub of it again.
    """

    name: Name
    timing: Timing
    spec: Spec
    payload: Payload
    part: Name = ""
    in_code: bool = False


def with_tick(tick: float, payload: Any) -> Any:
    """Return a call with the time of its firing before it; a Blob's buffers are not copied."""
    head = TICK.pack(tick)
    return head + payload if isinstance(payload, bytes) else payload.with_head(head + bytes(payload.head))


def split_tick(payload: Any) -> tuple[float, Any]:
    """Return the time of a firing, and its call."""
    head = payload if isinstance(payload, bytes | bytearray | memoryview) else payload.head
    (tick,) = TICK.unpack_from(head)
    rest = bytes(head[TICK.size :])
    return tick, rest if head is payload else payload.with_head(rest)
