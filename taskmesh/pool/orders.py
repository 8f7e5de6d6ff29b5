"""What supervisor, fork server and slots tell each other: frame kinds, and the fork server's messages.

A frame is [u32 length of the body][u8 kind][u16 descriptors that come along][body, msgpack], little-endian.
Bodies of TASKS, RESULTS and PROGRESS are the structs of `taskmesh.wire.messages`.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct("<IBH")

# supervisor -> slot
TASKS: Final = 1
STOP: Final = 2
ANSWER: Final = 3
# slot -> supervisor
READY: Final = 10
RESULTS: Final = 11
PROGRESS: Final = 12
ASK: Final = 13
# supervisor -> fork server
FORK: Final = 20
KILL: Final = 21
END: Final = 22
# fork server -> supervisor
UP: Final = 30
FORKED: Final = 31
REFUSED: Final = 32
EXITED: Final = 33

TICKET: Final = struct.Struct("<H")
"""A ticket is the low 16 bits of its generation. One byte would do for the order of things, but a slot's
socket can hold more than 256 recalled messages while a task runs, and the 257th generation must not look like
the first."""

OUTBOX_SIZE: Final = 2 << 20
"""Bytes of a slot's outbox: tables and records, see `taskmesh.pool.outbox`."""


PROCESS_LIMITS: Final = "(see `ulimit -u` and `-v`, and the container's limits of pids and memory)"
"""What may be in the way of a process."""


class Fork(msgspec.Struct, array_like=True):
    """FORK: a slot is wanted. Its descriptors come along: socket, tickets, stdout, stderr, outbox.

    `token` is new for every start, so that a slot's restart is not taken for its predecessor.
    """

    token: int
    slot: int


class Kill(msgspec.Struct, array_like=True):
    """KILL: this slot's process group is to be killed."""

    token: int


class Forked(msgspec.Struct, array_like=True):
    """FORKED: the slot's process. Its pidfd comes along where the system has such a thing (`handle`)."""

    token: int
    pid: int
    handle: bool


class ForkRefused(msgspec.Struct, array_like=True):
    """REFUSED: no process could be had, for the reason given."""

    token: int
    reason: str


class Exited(msgspec.Struct, array_like=True):
    """EXITED: the slot's process was reaped. `status` is the exit code, or minus the signal's number."""

    token: int
    status: int
    oom: bool


class Ask(msgspec.Struct, array_like=True):
    """ASK: the task with this serial, which runs, wants to submit tasks of its own."""

    serial: int


class Answer(msgspec.Struct, array_like=True):
    """ANSWER: whether another slot has the asking one's place now, and where the hub is.

    `keys` is the directory of the pool's keys, `slot` the pool's name with the asking process's id. Without
    addresses `trouble` says why there is no way to it.
    """

    granted: bool
    addresses: list[str]
    keys: str = ""
    trouble: str = ""
    slot: str = ""


class Ready(msgspec.Struct, array_like=True):
    """READY: the slot's process waits for tasks."""

    pid: int
