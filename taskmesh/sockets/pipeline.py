"""Push and Pull: 30/PIPELINE, one way from ventilators to workers to collectors."""

from __future__ import annotations

from taskmesh.sockets.roles import Role
from taskmesh.sockets.traffic import ReceiveOnly, ReceivingParts, SendingParts, SendOnly


class Push(SendOnly, SendingParts):
    """Sends to its Pull peers in turn, skipping those whose queue is full (PIPE-12, PIPE-13).

    With no peer available it waits or raises NoPeerWithinTimeout; it never drops what it cannot queue
    (PIPE-14 to PIPE-16). A message that was queued is lost when its peer dies: that needs a ledger.
    """

    __slots__ = ()
    role = Role.PUSH


class Pull(ReceiveOnly, ReceivingParts):
    """Receives from its Push peers by fair queueing (PIPE-27).

    What arrived before a peer left is still delivered: libzmq differs from PIPE-24 and PIPE-25 here.
    """

    __slots__ = ()
    role = Role.PULL
