"""Why a hub does not let us in: handshakes that failed, as a socket's monitor reports them.

Networks cut handshakes off and spoil bytes, too. So a hub that has let us in once is believed to refuse us
only when it says so in so many words; of others, several failures are wanted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from taskmesh.net.ways import Way
from taskmesh.security.keys import Credentials
from taskmesh.sockets import EventKind, Monitor, Socket
from taskmesh.system.loop import Loop

FEW_FAILURES = 3
"""Handshakes cut off or spoilt that are taken for a wrong key; a hub that is ending cuts off one."""
FAILURES = (
    EventKind.HANDSHAKE_FAILED_AUTH,
    EventKind.HANDSHAKE_FAILED_PROTOCOL,
    EventKind.HANDSHAKE_FAILED_NO_DETAIL,
)

SHORTEST_REST, LONGEST_REST = 1.0, 30.0
"""Seconds between two attempts, once FEW_FAILURES of each way have come to nothing."""
RESTED = 1 / 30
"""Share of the time without success that a rest is: a hub that was away for a minute is back at once."""
SPREAD = 0.25
"""How much shorter or longer a rest is by chance: those who were cut off together come apart."""

NO_KEYS = "it uses no keys, but this program does: start the hub with --keys DIR too"


class Refusals:
    """Watches the handshakes of one dialling socket after the other.

    Args:
        ways: how many ways to a hub there are; all must have failed before the verdict falls.
        failed: called when another way should be tried; with True when libzmq dials this one no more.
        cut: called when a link that was made has been closed; libzmq dials it again.

    Attributes:
        verdict: "" or why nobody lets us in; falls once, and is taken back by a handshake that succeeds.
        rest: seconds to wait before the next attempt; libzmq itself would go on at its shortest interval.
        is_up: whether the socket that is watched now has a link.
    """

    def __init__(
        self,
        loop: Loop,
        credentials: Credentials | None,
        ways: int,
        failed: Callable[[bool], None],
        cut: Callable[[], None],
    ) -> None:
        self.verdict = ""
        self.rest = 0.0
        self._in_vain = 0
        self._since = 0.0
        self._loop = loop
        self._credentials = credentials
        self._ways = ways
        self._failed = failed
        self._cut = cut
        self._reasons: dict[Way, str] = {}
        self._failures: dict[Way, int] = {}
        self._known: set[Way] = set()
        self.is_up = False
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
        self.is_up = False
        if self._monitor is not None:
            self._loop.unwatch(self._monitor.raw)
            self._monitor.close()
            self._monitor = None

    def _look(self) -> None:
        monitor, way = self._monitor, self._way
        for event in monitor.recv_many() if monitor is not None else ():
            if way is None or monitor is not self._monitor:
                return
            if event.kind is EventKind.HANDSHAKE_SUCCEEDED:
                self._succeeded(way)
            elif event.kind in FAILURES:
                self._fell_through(way, event.kind)
            elif event.kind is EventKind.DISCONNECTED and self.is_up:
                self.is_up = False
                self._cut()

    def _succeeded(self, way: Way) -> None:
        self.verdict = ""
        self.rest, self._in_vain = 0.0, 0
        self.is_up = True
        self._known.add(way)
        self._reasons.clear()
        self._failures.clear()

    def _fell_through(self, way: Way, kind: EventKind) -> None:
        dead = kind is EventKind.HANDSHAKE_FAILED_PROTOCOL  # libzmq does not dial again after one
        if self.is_up and dead:  # what came was spoilt on its way
            self.is_up = False
            self._failed(True)
            return
        count = self._failures[way] = self._failures.get(way, 0) + 1
        self._tire(time.monotonic())
        if kind is EventKind.HANDSHAKE_FAILED_AUTH or (count >= FEW_FAILURES and way not in self._known):
            self._reasons[way] = self._reason(kind)
            if len(self._reasons) == self._ways:
                self.verdict = "; ".join(dict.fromkeys(self._reasons.values()))
        elif way in self._known and count % FEW_FAILURES and not self.rest:
            return  # its Hellos stay unanswered: that is cure enough, and makes no storm
        self._failed(dead)

    def _tire(self, now: float) -> None:
        """One more handshake in vain."""
        self._in_vain += 1
        if self._in_vain == 1:
            self._since = now
        if self._in_vain >= FEW_FAILURES * self._ways:
            rest = min(LONGEST_REST, max(SHORTEST_REST, RESTED * (now - self._since)))
            self.rest = rest * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311  no secret

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
