"""Messages between supervisor, fork server and slots: frame kinds, and the fork server's messages.

A frame is [u32 length of the body][u8 kind][u16 number of descriptors that come along][body, msgpack],
little-endian. Bodies of TASKS, RESULTS, PROGRESS and LOGS are structs of `messages.slot_messages`.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct("<IBH")

# supervisor -> slot
TASKS: Final = 1
STOP: Final = 2
PERMIT_REPLY: Final = 3
PROGRAM: Final = 4
# slot -> supervisor
READY: Final = 10
RESULTS: Final = 11
PROGRESS: Final = 12
PERMIT_REQUEST: Final = 13
LOGS: Final = 14
# supervisor -> a process whose slots are threads, and back
SLOT: Final = 15
CANCEL: Final = 16
STACK: Final = 17
NEWS: Final = 18
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
"""A ticket is the low 16 bits of its generation.

One byte would be enough to keep generations in order. But a slot's socket can hold more than 256 recalled
messages while a task runs, and the 257th generation must not look like the first.
"""

PROCESS_LIMITS: Final = "(see `ulimit -u` and `-v`, and the container's limits of pids and memory)"
"""A hint at the limits that may refuse a process."""


class Fork(msgspec.Struct, array_like=True):
    """FORK: start a process with a slot. Descriptors come along: socket, tickets, outbox, stdout, stderr.

    A sixth is that of the process's control, if its slots are threads.

    Attributes:
        token: new for every process, so that a later one is not taken for its predecessor.
        slot: the slot's number.
    """

    token: int
    slot: int


class Kill(msgspec.Struct, array_like=True):
    """KILL: kill this slot's process group."""

    token: int


class Forked(msgspec.Struct, array_like=True):
    """FORKED: the slot has a process. Its pidfd comes along, if there is one.

    Attributes:
        token: see `Fork`.
        pid: the process's id.
    """

    token: int
    pid: int


class ForkRefused(msgspec.Struct, array_like=True):
    """REFUSED: no process could be had, for the reason given."""

    token: int
    reason: str


class Exited(msgspec.Struct, array_like=True):
    """EXITED: the slot's process was reaped.

    Attributes:
        token: see `Fork`.
        status: the exit code, or minus the signal's number.
        oom: the kernel killed it for memory.
    """

    token: int
    status: int
    oom: bool


class ProcessNews(msgspec.Struct, array_like=True):
    """NEWS: of a process whose slots are threads.

    Attributes:
        slot: the slot that it is about.
        kind: "ended": the slot has ended, as it was told. Else the kind of an event for the log.
        text: the event's.
        is_worn: the process is to be replaced, when its tasks have ended.
    """

    slot: int
    kind: str
    text: str = ""
    is_worn: bool = False


class PermitRequest(msgspec.Struct, array_like=True):
    """PERMIT_REQUEST: the running task, with this serial, wants to submit tasks of its own.

    Attributes:
        lends: another slot shall have its permit meanwhile.
    """

    serial: int
    lends: bool = True


class PermitReply(msgspec.Struct, array_like=True):
    """PERMIT_REPLY: the way to the hub, and whether the task may wait there for its children.

    Attributes:
        granted: another slot has the asking one's permit now.
        address: the hub's gateway; empty if there is no way to it.
        keys: the directory of the pool's keys; empty for none.
        role: whose key is shown; "hub" in the hub's own process, whose private gateway asks for none.
        trouble: why there is no address.
        slot: the pool's name with the asking process's id and its task's client, as a Hello says them.
    """

    granted: bool
    address: str
    keys: str = ""
    trouble: str = ""
    slot: str = ""
    role: str = "worker"


class Program(msgspec.Struct, array_like=True):
    """PROGRAM: what the next tasks find as it is in the pool's process, which is an embedded mesh's program.

    Attributes:
        path: its sys.path, to which it may have added since the slot began; a name may be no valid text.
        authkey: that of its multiprocessing, by which proxies of a Manager connect; empty if it has none.
    """

    path: list[bytes]
    authkey: bytes = b""


class Ready(msgspec.Struct, array_like=True):
    """READY: the slot's process waits for tasks."""

    pid: int
