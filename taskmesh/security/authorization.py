"""What a peer may say: by its role, by whose client session it is, by the token of its pool's session."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from taskmesh.errors import RemoteProtocolError
from taskmesh.security.keys import CLIENT, OPERATOR, WORKER
from taskmesh.security.zap import ZapHandler
from taskmesh.sockets import Part
from taskmesh.wire import messages as m
from taskmesh.wire.runs import TOKEN

SESSION = frozenset({m.ClientHello, m.ClientBeat, m.ClientBye})
TASKS = frozenset({m.Submit, m.CancelTasks, m.ResultAck})
RIGHTS: dict[str, frozenset[type]] = {
    CLIENT: SESSION | TASKS | {m.Query},
    OPERATOR: SESSION | {m.Query, m.Command},
    WORKER: SESSION | TASKS,
}
"""Messages of each role at the gateway. The collector admits no other key than a worker's.

A worker's is shown at the gateway by tasks that submit tasks: `Submissions` says which of these it takes in.
"""
KEY = 32
REMEMBERED = 100_000
"""Client sessions whose owner is remembered; their ids are random, so a forgotten one is hard to guess."""
APPLICANTS = 10_000
FORMER = 10_000
"""Pool sessions that are over whose token is still asked for."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pool showed with its Hello: who it is, and the token that its messages will carry."""

    user: str
    token: bytes


class NotAllowed(RemoteProtocolError):
    """A peer said what its key does not entitle it to."""


class Authorization:
    """The hub's book of who may say what."""

    def __init__(self, zap_handler: ZapHandler) -> None:
        self._zap_handler = zap_handler
        self._owners: OrderedDict[int, str] = OrderedDict()
        self._applicants: OrderedDict[bytes, Pass] = OrderedDict()
        self._passes: dict[int, Pass] = {}
        self._sessions: dict[Pass, int] = {}
        self._former: OrderedDict[int, Pass] = OrderedDict()

    # --- clients --------------------------------------------------------------------------------------------

    def check_client(self, user: str, message: m.ClientMessage) -> None:
        """Whether a user may send this to the gateway.

        Raises:
            NotAllowed: its role may not, or the session is somebody else's.
        """
        role = user.partition(":")[0]
        if not self._zap_handler.knows(user):
            raise NotAllowed("its key has been revoked")
        if type(message) not in RIGHTS.get(role, ()):
            raise NotAllowed(f"the key of {user} does not entitle it to a {type(message).__name__}")
        if isinstance(message, m.ClientHello):
            if self._owners.setdefault(message.client, user) != user:
                raise NotAllowed("this client session belongs to another key")
            self._owners.move_to_end(message.client)
            if len(self._owners) > REMEMBERED:
                self._owners.popitem(last=False)

    def clients_of(self, users: frozenset[str]) -> list[int]:
        """The client sessions of these users."""
        return [client for client, user in self._owners.items() if user in users]

    # --- pools ----------------------------------------------------------------------------------------------

    def read_pool(self, user: str, frames: Sequence[Part]) -> tuple[Pass, Sequence[Part]]:
        """Takes the token off a message to the collector.

        Raises:
            NotAllowed: there is none, or the key has been revoked.
        """
        if len(frames) < 2 or len(frames[0]) != TOKEN:
            raise NotAllowed("a message without its token")
        if not self._zap_handler.knows(user):
            raise NotAllowed("its key has been revoked")
        return Pass(user, bytes(frames[0])), frames[1:]

    def session_of(self, user: str, frames: Sequence[Part]) -> int:
        """The session of the pool that shows the token of a message to the collector, 0 if there is none."""
        return self._sessions.get(Pass(user, bytes(frames[0])), 0) if len(frames[0]) == TOKEN else 0

    def check_pool(self, shown: Pass, message: m.PoolMessage) -> bool:
        """Return whether to pass a message on: not results of a session that this hub never opened.

        A pool that had it with the hub before gives them again in its next session.

        Raises:
            NotAllowed: the session is not the sender's, or a Hello names no key for its lane.
        """
        if isinstance(message, m.Hello):
            if len(message.key) != KEY:
                raise NotAllowed("a Hello without a key for the lane")
            if self._applicants.setdefault(message.key, shown) != shown:
                raise NotAllowed("a lane key that another pool has shown")
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
        if known.user != shown.user or not hmac.compare_digest(known.token, shown.token):
            raise NotAllowed(f"{shown.user} speaks for a session that is not its own")
        return True

    def opened(self, session: int, key: bytes) -> bool:
        """Binds a new session to the pool that showed this lane key; False when nobody did."""
        found = self._applicants.get(key)
        if found is None:
            return False
        self._passes[session] = found
        self._sessions[found] = session
        return True

    def closed(self, session: int) -> None:
        """A session is over."""
        known = self._passes.pop(session, None)
        if known is not None:
            if self._sessions.get(known) == session:
                del self._sessions[known]
            self._former[session] = known
            if len(self._former) > FORMER:
                self._former.popitem(last=False)

    def sessions_of(self, users: frozenset[str]) -> list[int]:
        """The pool sessions of these users."""
        return [session for session, known in self._passes.items() if known.user in users]
