"""The socket roles, which way each one carries messages, and which two may be connected.

The list of pairs is what libzmq 4.3.5 enforces in its handshake over tcp and ipc. Over inproc libzmq enforces
nothing, so `Context` uses this list there.
"""

from __future__ import annotations

from enum import Enum

import zmq


class Role(Enum):
    """One socket type; the value is libzmq's name for it."""

    PUSH = "PUSH"
    PULL = "PULL"
    SCATTER = "SCATTER"
    GATHER = "GATHER"
    PUB = "PUB"
    SUB = "SUB"
    XPUB = "XPUB"
    XSUB = "XSUB"
    REQ = "REQ"
    REP = "REP"
    DEALER = "DEALER"
    ROUTER = "ROUTER"
    PAIR = "PAIR"

    @property
    def zmq_type(self) -> int:
        """The number that libzmq has for the type."""
        return int(getattr(zmq, self.value))

    @property
    def peers(self) -> frozenset[Role]:
        """The roles this one may be connected to, whichever of the two binds."""
        return PEERS[self]

    def accepts(self, other: Role) -> bool:
        """Return whether a socket of this role may be connected to one of the other role."""
        return other in PEERS[self]


COMBINATIONS: tuple[tuple[Role, Role], ...] = (
    (Role.PUSH, Role.PULL),
    (Role.SCATTER, Role.GATHER),
    (Role.PUB, Role.SUB),
    (Role.PUB, Role.XSUB),
    (Role.XPUB, Role.SUB),
    (Role.XPUB, Role.XSUB),
    (Role.REQ, Role.REP),
    (Role.REQ, Role.ROUTER),
    (Role.DEALER, Role.REP),
    (Role.DEALER, Role.DEALER),
    (Role.DEALER, Role.ROUTER),
    (Role.ROUTER, Role.ROUTER),
    (Role.PAIR, Role.PAIR),
)
"""Every pair that may be connected; either side may bind."""

PEERS: dict[Role, frozenset[Role]] = {
    role: frozenset(b if a is role else a for a, b in COMBINATIONS if role in (a, b)) for role in Role
}
