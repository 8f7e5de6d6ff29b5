"""Authorization of messages: by the sender's role, and by the token of a pool.

Whose the things are that a message names, the hub's machine says (`hub.machine.owners`).
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from taskmesh.errors import RemoteProtocolError
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import TOKEN
from taskmesh.security.keys import CLIENT, OPERATOR, WORKER
from taskmesh.security.zap import ZapHandler
from taskmesh.sockets import Part

SESSION = frozenset({m.ClientHello, m.ClientBeat, m.ClientBye})
TASKS = frozenset({m.Submit, m.CancelTasks, m.ResultAck})
RIGHTS: dict[str, frozenset[type]] = {
    CLIENT: SESSION | TASKS | {m.SinkReport, m.Query, m.Fulfil, m.PutSchedule, m.DropSchedule},
    OPERATOR: SESSION | {m.Query, m.Command},
    WORKER: SESSION | TASKS | {m.SinkReport},
}
"""Messages of each role at the gateway. The collector admits no other key than a worker's.

Tasks that submit tasks show a worker's key at the gateway; `hub.machine.submission` decides which of these
are accepted.
"""
KEY = 32
APPLICANTS = 10_000
"""Lane keys of Hellos that are remembered."""
FORMER = 10_000
"""Ended pool sessions whose token is still checked."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a pool's messages.

    Attributes:
        user: the name under which its key is authorized.
        token: random bytes that its messages carry.
    """

    user: str
    token: bytes


class NotAllowed(RemoteProtocolError):
    """A peer sent a message that its key does not entitle it to."""


class Authorization:
    """The hub's record of pool sessions and their senders.

    Args:
        zap_handler: knows the keys that are authorized.
    """

    def __init__(self, zap_handler: ZapHandler) -> None:
        self._zap_handler = zap_handler
        self._applicants: OrderedDict[bytes, Sender] = OrderedDict()
        self._passes: dict[int, Sender] = {}
        self._sessions: dict[Sender, int] = {}
        self._former: OrderedDict[int, Sender] = OrderedDict()

    # --- clients --------------------------------------------------------------------------------------------

    def check_client(self, user: str, message: m.ClientMessage) -> None:
        """Check that a user may send this to the gateway.

        Raises:
            NotAllowed: its role may not, or its key was revoked.
        """
        role = user.partition(":")[0]
        if not self._zap_handler.knows(user):
            raise NotAllowed("its key has been revoked")
        if type(message) not in RIGHTS.get(role, ()):
            raise NotAllowed(f"the key of {user} does not entitle it to a {type(message).__name__}")

    # --- pools ----------------------------------------------------------------------------------------------

    def read_pool(self, user: str, frames: Sequence[Part]) -> tuple[Sender, Sequence[Part]]:
        """Take the token off a message to the collector; return its sender and the other frames.

        Raises:
            NotAllowed: there is none, or the key has been revoked.
        """
        if len(frames) < 2 or len(frames[0]) != TOKEN:
            raise NotAllowed("a message without its token")
        if not self._zap_handler.knows(user):
            raise NotAllowed("its key has been revoked")
        return Sender(user, bytes(frames[0])), frames[1:]

    def session_of(self, user: str, frames: Sequence[Part]) -> int:
        """Return the pool session whose token a message to the collector carries, 0 if there is none."""
        return self._sessions.get(Sender(user, bytes(frames[0])), 0) if len(frames[0]) == TOKEN else 0

    def check_pool(self, sender: Sender, message: m.PoolMessage) -> bool:
        """Return True if a message is to be passed on: not results of a session that this hub never opened.

        A pool that had such a session with the hub before repeats them in its next one.

        Raises:
            NotAllowed: the session is not the sender's, or a Hello names no key for its lane.
        """
        if isinstance(message, m.Hello):
            if len(message.key) != KEY:
                raise NotAllowed("a Hello without a key for the lane")
            if self._applicants.setdefault(message.key, sender) != sender:
                raise NotAllowed("a lane key that another pool has sent")
            if len(self._applicants) > APPLICANTS:
                self._applicants.popitem(last=False)
            return True
        if isinstance(message, m.Misrouted):
            return True
        known = self._passes.get(message.session) or self._former.get(message.session)
        if known is None:
            if not message.session:
                raise NotAllowed("a message of no session")
            return not isinstance(message, m.Results)  # the hub answers a beat that a Hello is due
        if known.user != sender.user or not hmac.compare_digest(known.token, sender.token):
            raise NotAllowed(f"{sender.user} sends for a session that is not its own")
        return True

    def opened(self, session: int, key: bytes) -> bool:
        """Bind a new session to the pool that sent this lane key; return False when none did."""
        found = self._applicants.get(key)
        if found is None:
            return False
        self._passes[session] = found
        self._sessions[found] = session
        return True

    def closed(self, session: int) -> None:
        known = self._passes.pop(session, None)
        if known is not None:
            if self._sessions.get(known) == session:
                del self._sessions[known]
            self._former[session] = known
            if len(self._former) > FORMER:
                self._former.popitem(last=False)

    def sessions_of(self, users: frozenset[str]) -> list[int]:
        return [session for session, known in self._passes.items() if known.user in users]
