"""Messages between a supervisor and its slots, over a socketpair; they never leave the machine."""

from __future__ import annotations

import msgspec

from taskmesh.messages.runs import Amount, LaneRun, LogLine, Number, Payload, Spec


class SlotTasks(msgspec.Struct, tag=80, omit_defaults=True):
    """Tasks for one slot, with serials from `first` on; `generation` is the byte that their tickets carry.

    None in a spec's place: no task that the slot has needs it any more, and it is to be forgotten.
    `prints`: it is one task, and what the slot prints until its result is the task's log.
    """

    first: int
    generation: int
    specs: list[tuple[int, Spec | None]]
    runs: list[LaneRun]
    prints: bool = False


class SlotSegment(msgspec.Struct, array_like=True, gc=False):
    """Consecutive serials of one spec that succeeded, from `first` on; `elapsed` seconds for all."""

    first: int
    payloads: list[Payload]
    elapsed: Number


class SlotFailure(msgspec.Struct, array_like=True):
    """One serial that did not succeed; the fields are `Failed`'s."""

    serial: int
    kind: str
    type_name: str = ""
    text: str = ""
    traceback: str = ""
    pickled: bytes = b""
    retryable: bool = False
    retry_after: Number = -1.0
    elapsed: Number = 0.0
    output: str = ""


class SlotResults(msgspec.Struct, tag=81):
    """Results of a slot since its last flush. `sent` is CLOCK_MONOTONIC; `idle`: seconds it had waited."""

    done: list[SlotSegment]
    failed: list[SlotFailure]
    sent: Number
    idle: Number = 0.0


class SlotProgress(msgspec.Struct, tag=82):
    """current_task().progress(done, total) of the running serial."""

    serial: int
    done: Amount
    total: Amount


class SlotLogs(msgspec.Struct, tag=83):
    """Lines that the task with this serial has logged."""

    serial: int
    lines: list[LogLine]


SlotNews = SlotProgress | SlotLogs
"""News of a task that runs."""
FromSlot = SlotResults | SlotNews
