"""Why a hub does not let us in: handshakes that failed, as a socket's monitor reports them."""

from __future__ import annotations

from collections.abc import Callable

from taskmesh.net.credentials import Credentials, Way
from taskmesh.net.loop import Loop
from taskmesh.sockets import EventKind, Monitor, Socket

SILENT_FAILURES = 3
"""Handshakes cut off without a word that are taken for a wrong key; a hub that is ending cuts off one."""
FAILURES = (
    EventKind.HANDSHAKE_FAILED_AUTH,
    EventKind.HANDSHAKE_FAILED_PROTOCOL,
    EventKind.HANDSHAKE_FAILED_NO_DETAIL,
)

NO_KEYS = "it uses no keys, but this program does: start the hub with --keys DIR too"


class Refusals:
    """Watches the handshakes of one dialling socket after the other.

    Args:
        ways: how many ways to a hub there are; all must have failed before the verdict falls.
        failed: called after each failure.

    Attributes:
        verdict: "" or why nobody lets us in; falls once, and is taken back by a handshake that succeeds.
    """

    def __init__(
        self, loop: Loop, credentials: Credentials | None, ways: int, failed: Callable[[], None]
    ) -> None:
        self.verdict = ""
        self._loop = loop
        self._credentials = credentials
        self._ways = ways
        self._failed = failed
        self._reasons: dict[Way, str] = {}
        self._silent: dict[Way, int] = {}
        self._way: Way | None = None
        self._monitor: Monitor | None = None

    def watch(self, socket: Socket, way: Way) -> None:
        """Watches this socket, before it is connected, in place of the former one."""
        self.unwatch()
        self._way = way
        self._monitor = socket.monitor()
        self._loop.watch(self._monitor.raw, self._look)

    def unwatch(self) -> None:
        """Stops watching; before the socket is closed."""
        if self._monitor is not None:
            self._loop.unwatch(self._monitor.raw)
            self._monitor.close()
            self._monitor = None

    def _look(self) -> None:
        monitor = self._monitor
        for event in monitor.recv_many() if monitor is not None else ():
            if event.kind is EventKind.HANDSHAKE_SUCCEEDED:
                self.verdict = ""
                self._reasons.clear()
                self._silent.clear()
            elif event.kind in FAILURES and self._way is not None and monitor is self._monitor:
                self._note(self._way, event.kind)
                self._failed()

    def _note(self, way: Way, kind: EventKind) -> None:
        if kind is EventKind.HANDSHAKE_FAILED_NO_DETAIL:
            self._silent[way] = self._silent.get(way, 0) + 1
            if self._silent[way] < SILENT_FAILURES:
                return
        self._reasons[way] = self._reason(kind)
        if len(self._reasons) == self._ways:
            self.verdict = "; ".join(dict.fromkeys(self._reasons.values()))

    def _reason(self, kind: EventKind) -> str:
        own = self._credentials
        if own is None:  # which end notices first that only one has keys is chance
            return (
                "it asks for keys (or is no hub of taskmesh): give this program's directory of them with "
                "--keys DIR, TASKMESH_KEYS or Mesh(..., keys=DIR); `taskmesh keys new` makes it"
            )
        if kind is EventKind.HANDSHAKE_FAILED_AUTH:
            return (
                f"it does not know this key in the role {own.role}, or not any more: on its machine "
                f"`taskmesh keys authorize {own.role} NAME {own.role}.public --keys DIR` lets it in "
                f"(public key {own.pair.public.decode()})"
            )
        if kind is EventKind.HANDSHAKE_FAILED_PROTOCOL:
            return NO_KEYS
        return f"its key is not the one in hub.public: copy that file anew from the hub's keys. Or {NO_KEYS}"
