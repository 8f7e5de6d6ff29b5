"""Who is let in: the ZAP handler of a hub, in the hub's own loop, always there when keys are in use.

ZAP 1.0 (27/ZAP): libzmq asks at inproc://zeromq.zap.01 before a CURVE handshake ends. The answer names the
peer, and libzmq attaches that name to every message of the connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from taskmesh.errors import KeysUnusable
from taskmesh.security.keys import CLIENT, HUB, OPERATOR, WORKER, Admission, KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.security.peer_errors import PeerErrors, Record
from taskmesh.sockets import Context, CurveServer, PeerUnreachable, Router, SocketOptions
from taskmesh.system.loop import Loop

ZAP = "inproc://zeromq.zap.01"
GATEWAY, COLLECTOR, CONTROL, LANE = "gateway", "collector", "control", "lane."
DOMAINS = {
    GATEWAY: frozenset({CLIENT, OPERATOR, WORKER}),
    COLLECTOR: frozenset({WORKER}),
    CONTROL: frozenset({WORKER}),
}
"""Which roles each socket is for. A lane is for one key alone."""
LOOK = 0.5
"""Seconds between looks at who is authorized."""
LOOKS = 20
"""Further looks between two of these, for a key that is not known: it may have been authorized just now."""


class ZapHandler:
    """A part of the hub's loop.

    Args:
        keys: the hub's directory. peer_errors: told of handshakes that were refused.

    Attributes:
        revoked: called with the users that are not let in any more.
        signer: verifies tasks and signs results of a pool in the hub's own process.

    Raises:
        KeysUnusable: a key is missing, or open to others.
    """

    def __init__(
        self, context: Context, loop: Loop, keys: KeyFolder, record: Record, peer_errors: PeerErrors
    ) -> None:
        self.revoked: Callable[[frozenset[str]], None] = lambda users: None
        self._keys = keys
        self._loop = loop
        self._record = record
        self._peer_errors = peer_errors
        self._pair = keys.own(HUB)
        self.signer = PayloadSigner(keys.mesh_keys())
        self._seen = keys.signature()
        self._admissions = keys.admissions()
        self._users = frozenset(admission.user for admission in self._admissions.values())
        self._lanes: dict[str, bytes] = {}
        self._look_at = time.monotonic() + LOOK
        self._looks = LOOKS
        self._socket = Router(context, SocketOptions(router_mandatory=True))
        self._socket.bind(ZAP)
        loop.watch(self._socket.raw, self._asked)

    def curve(self, domain: str) -> CurveServer:
        """The server's side of a socket of the hub."""
        return CurveServer(self._pair.secret, domain)

    def open_lane(self, session: int, key: bytes) -> CurveServer:
        """Lets the holder of `key`, and nobody else, in at the lane of a session."""
        domain = f"{LANE}{session}"
        self._lanes[domain] = key
        return self.curve(domain)

    def close_lane(self, session: int) -> None:
        """Lets nobody in any more."""
        self._lanes.pop(f"{LANE}{session}", None)

    def knows(self, user: str) -> bool:
        """Return whether a user may still come in."""
        return user in self._users

    # --- timer of the loop ----------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When to look at who is authorized."""
        return self._look_at

    def turn(self, now: float) -> None:
        """Learns who was authorized or revoked."""
        self._look_at = now + LOOK
        self._looks = LOOKS
        self._look()

    def _look(self) -> None:
        problems: list[str] = []
        try:
            seen = self._keys.signature()
            if seen == self._seen:
                return
            found = self._keys.admissions(problems)
        except KeysUnusable as error:  # what is known goes on to hold
            self._peer_errors.add("keys.unreadable", {"error": str(error)})
            return
        self._seen = seen
        former, self._admissions = self._admissions, found
        self._users = frozenset(admission.user for admission in self._admissions.values())
        for problem in problems:
            self._record("keys.unusable", {"error": problem})
        gone = {who.user for key, who in former.items() if self._admissions.get(key) != who}
        if gone:
            self._record("keys.revoked", {"users": sorted(gone)})
            self.revoked(frozenset(gone))

    # --- ZAP ------------------------------------------------------------------------------------------------

    def _asked(self) -> None:
        for peer, empty, *request in self._socket.recv_parts_many():
            version, number, domain, address, _, mechanism, *credentials = map(bytes, request)
            user = ""
            if version == b"1.0" and mechanism == b"CURVE" and len(credentials) == 1:
                user = self._user(domain.decode(), credentials[0])
            if not user:
                self._deny(domain, address)
            verdict = [b"200", b"OK"] if user else [b"400", b"not authorized"]
            try:
                self._socket.try_send_parts([peer, empty, b"1.0", number, *verdict, user.encode(), b""])
            except PeerUnreachable:  # the socket that asked was closed meanwhile
                continue

    def _user(self, domain: str, key: bytes) -> str:
        """Under which name a key is let in at a socket, "" if it is not."""
        if domain.startswith(LANE):
            return domain if self._lanes.get(domain) == key else ""
        if key not in self._admissions and self._looks:
            self._looks -= 1
            self._look()
        who: Admission | None = self._admissions.get(key)
        return who.user if who is not None and who.role in DOMAINS.get(domain, ()) else ""

    def _deny(self, domain: bytes, address: bytes) -> None:
        fields: dict[str, object] = {"at": domain.decode(), "from": address.decode(errors="replace")}
        self._peer_errors.add("keys.denied", fields)

    def close(self) -> None:
        """Answers no more."""
        self._loop.unwatch(self._socket.raw)
        self._socket.close()
