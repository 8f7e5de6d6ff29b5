"""What machines are told. Every `handle(event, now)` gets the time as an argument, in seconds, monotonic."""

from __future__ import annotations

from dataclasses import dataclass

from taskmesh.wire import messages as m

# --- hub --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FromClient:
    """A client's message, in order per client session."""

    client: int
    message: m.ClientMessage


@dataclass(slots=True)
class ClientGone:
    """The link says that nobody is there any more (an embedded client that closed, an unroutable peer)."""

    client: int


@dataclass(slots=True)
class FromPool:
    """A pool's message, off the collector."""

    message: m.PoolMessage


@dataclass(slots=True)
class LaneOpened:
    """The shell has bound the lane of a session; pools reach it at `endpoint`."""

    session: int
    endpoint: str


@dataclass(slots=True)
class LaneLost:
    """The lane's link is closed. Not a death sentence: the pool has a second to say Hello."""

    session: int


@dataclass(slots=True)
class LinksLost:
    """Every link of the pool is closed: its process is gone, or its network."""

    pool: str


# --- pool -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FromHub:
    """A message off lane or control."""

    message: m.ToPool


@dataclass(slots=True)
class HubLaneLost:
    """The pool's end of the lane is closed."""


@dataclass(slots=True)
class SlotReady:
    """A slot's process is up and waits for tasks."""

    slot: int
    pid: int


@dataclass(slots=True)
class SlotFinished:
    """Results off a slot's socket, or peeked from its outbox."""

    slot: int
    results: m.SlotResults


@dataclass(slots=True)
class SlotReported:
    """Progress of the task that a slot runs."""

    slot: int
    progress: m.SlotProgress


@dataclass(slots=True)
class SlotRecalled:
    """The `count` tasks handed over last have been taken back by their tickets: they will not start."""

    slot: int
    count: int


@dataclass(slots=True)
class SlotExited:
    """A slot's process is gone; everything that it had sent has been handled before.

    Attributes:
        unstarted: tickets left in its pipe: the tasks handed over last that never started.
        status: exit code, or minus the signal's number.
        oom: the kernel killed it for memory.
        ready: False when it never came up (fork or start failed).
        log: its last lines of output.
    """

    slot: int
    unstarted: int
    status: int
    oom: bool = False
    ready: bool = True
    log: str = ""


@dataclass(slots=True)
class DrainRequested:
    """SIGTERM or an operator: no new work, unstarted tasks go back, running ones have `grace` seconds."""

    grace: float


# --- client -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FromHubToClient:
    """A message off the gateway."""

    message: m.ToClient


@dataclass(slots=True)
class LinkLost:
    """The gateway's link is closed (or the hub was silent too long)."""


# --- all --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tick:
    """The deadline that the machine had asked for has come (or any other time: harmless)."""
