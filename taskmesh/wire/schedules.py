"""Schedules as they travel: the times of their firings, and the call that each firing runs."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from taskmesh.wire.runs import Name, Number, Spec

if TYPE_CHECKING:
    Payload = Any
else:
    Payload = bytes | msgspec.msgpack.Ext  # as in `wire.runs`

OVERLAPS = ("skip", "queue", "allow", "replace")
"""Values of `Timing.overlap`."""
CATCHUPS = ("latest", "all", "none")
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
        overlap: What to do if the last firing has not ended.
        catchup: Which missed firings to make up for.
        window: Seconds after its time in which a missed firing is made up for; 0 for any.
        jitter: Seconds by which a firing is put off at most, each by its own share.
        start: The earliest time of a firing, in seconds since the epoch; 0 for none.
        end: The latest time of a firing, in seconds since the epoch; 0 for none.
    """

    cron: Name = ""
    period: Number = 0.0
    tz: Name = "UTC"
    overlap: Name = "skip"
    catchup: Name = "latest"
    window: Number = 0.0
    jitter: Number = 0.0
    start: Number = 0.0
    end: Number = 0.0


class Declaration(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as a program or a pool declares it.

    Attributes:
        name: Its name, of which there is one in a mesh.
        timing: The times of its firings.
        spec: Spec of its tasks; the kind is FIRING.
        payload: The call, encoded.
        made: Time of the declaration, in seconds since the epoch: the newer of two counts.
        part: The key of its tasks' limits, as in `Run`.
        stays: It stays until it is removed. Otherwise it goes an hour after all who declare it.
    """

    name: Name
    timing: Timing
    spec: Spec
    payload: Payload
    made: Number = 0.0
    stays: bool = True
    part: Name = ""


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
