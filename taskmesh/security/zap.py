"""The ZAP handler of a hub: it decides which keys are let in, in the hub's own loop.

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
"""The roles that each socket admits. A lane admits one key alone."""
CHECK = 0.5
"""Seconds between two checks of the authorized keys."""
CHECKS = 20
"""Further checks between two of these, for an unknown key: it may have been authorized just now."""


class ZapHandler:
    """A timer of the hub's loop that also answers libzmq's requests.

    Args:
        context: makes the socket.
        loop: watches it.
        keys: the hub's directory.
        record: logs changes of keys.
        peer_errors: logs handshakes that were refused.

    Attributes:
        revoked: called with the users whose keys were revoked.
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
        self._check_at = time.monotonic() + CHECK
        self._checks = CHECKS
        self._socket = Router(context, SocketOptions(router_mandatory=True))
        self._socket.bind(ZAP)
        loop.watch(self._socket.raw, self._answer)

    def curve(self, domain: str) -> CurveServer:
        return CurveServer(self._pair.secret, domain)

    def open_lane(self, session: int, key: bytes) -> CurveServer:
        """Admit the holder of `key`, and nobody else, at the lane of a session; return its CURVE options."""
        domain = f"{LANE}{session}"
        self._lanes[domain] = key
        return self.curve(domain)

    def close_lane(self, session: int) -> None:
        """Admit nobody at the lane of a session any more."""
        self._lanes.pop(f"{LANE}{session}", None)

    def knows(self, user: str) -> bool:
        return user in self._users

    # --- timer of the loop ----------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        return self._check_at

    def turn(self, now: float) -> None:
        self._check_at = now + CHECK
        self._checks = CHECKS
        self._check()

    def _check(self) -> None:
        problems: list[str] = []
        try:
            seen = self._keys.signature()
            if seen == self._seen:
                return
            found = self._keys.admissions(problems)
        except KeysUnusable as error:  # the keys that are known stay valid
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

    def _answer(self) -> None:
        for peer, empty, *request in self._socket.recv_parts_many():
            version, number, domain, address, _, mechanism, *credentials = map(bytes, request)
            user = ""
            if version == b"1.0" and mechanism == b"CURVE" and len(credentials) == 1:
                user = self._user(domain.decode(), credentials[0])
            if not user:
                self._deny(domain, address)
            answer = [b"200", b"OK"] if user else [b"400", b"not authorized"]
            try:
                self._socket.try_send_parts([peer, empty, b"1.0", number, *answer, user.encode(), b""])
            except PeerUnreachable:  # the socket that asked was closed meanwhile
                continue

    def _user(self, domain: str, key: bytes) -> str:
        """Return the name under which a key is admitted at a socket, "" if it is not."""
        if domain.startswith(LANE):
            return domain if self._lanes.get(domain) == key else ""
        if key not in self._admissions and self._checks:
            self._checks -= 1
            self._check()
        who: Admission | None = self._admissions.get(key)
        return who.user if who is not None and who.role in DOMAINS.get(domain, ()) else ""

    def _deny(self, domain: bytes, address: bytes) -> None:
        fields: dict[str, object] = {"at": domain.decode(), "from": address.decode(errors="replace")}
        self._peer_errors.add("keys.denied", fields)

    def close(self) -> None:
        self._loop.unwatch(self._socket.raw)
        self._socket.close()
