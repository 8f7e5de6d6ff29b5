"""Handshakes of a link that is dialled, as the socket's monitor reports them: success, rejection, back-off.

Networks cut handshakes off and spoil bytes, too. So a hub that has let this program in once counts as
rejecting it only when it says so explicitly; of another hub several failures are needed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from taskmesh.link.endpoints import Target
from taskmesh.security.keys import Credentials
from taskmesh.sockets import EventKind, Monitor, Socket
from taskmesh.system.loop import Loop

FEW_FAILURES = 3
"""Handshakes that fail without a reason before the key counts as wrong; a hub that ends cuts off one."""
FAILURES = (
    EventKind.HANDSHAKE_FAILED_AUTH,
    EventKind.HANDSHAKE_FAILED_PROTOCOL,
    EventKind.HANDSHAKE_FAILED_NO_DETAIL,
)

SHORTEST_BACKOFF, LONGEST_BACKOFF = 1.0, 30.0
"""Seconds between two attempts, once FEW_FAILURES have happened at each target."""
BACKOFF_SHARE = 1 / 30
"""Back-off as a share of the time without success: a hub that was away for a minute is back at once."""
JITTER = 0.25
"""Share by which a back-off is randomly longer or shorter: peers that were cut off together come apart."""

NO_KEYS = "it uses no keys, but this program does: start the hub with --keys DIR too"


class Handshakes:
    """Watches the handshakes of one dialling socket after the other.

    Args:
        targets: number of targets; a rejection needs the failure of all of them.
        failed: called when another target should be dialled; with True when libzmq gives this link up.
        cut: called when a link that was up has been closed; libzmq dials it again.

    Attributes:
        rejection: why every target rejects this program, or ""; a successful handshake clears it.
        backoff: seconds to wait before the next attempt; libzmq would go on at its shortest interval.
        is_up: True while the watched socket has a link.
        refused_since: when the first of the last connections, none of which came about, was refused; infinite
            if that is not so.
    """

    def __init__(
        self,
        loop: Loop,
        credentials: Credentials | None,
        targets: int,
        failed: Callable[[bool], None],
        cut: Callable[[], None],
    ) -> None:
        self.rejection = ""
        self.backoff = 0.0
        self.is_up = False
        self.refused_since = math.inf
        self._loop = loop
        self._credentials = credentials
        self._targets = targets
        self._failed = failed
        self._cut = cut
        self._failed_in_a_row = 0
        self._since = 0.0
        self._reasons: dict[Target, str] = {}
        self._failures: dict[Target, int] = {}
        self._known: set[Target] = set()
        self._target: Target | None = None
        self._monitor: Monitor | None = None

    def watch(self, socket: Socket, target: Target) -> None:
        """Watch this socket, which is not connected yet, instead of the former one."""
        self.unwatch()
        self._target = target
        self._monitor = socket.monitor()
        self._loop.watch(self._monitor.raw, self._read_events)

    def unwatch(self) -> None:
        """Stop watching; to be called before the socket is closed."""
        self.is_up = False
        if self._monitor is not None:
            self._loop.unwatch(self._monitor.raw)
            self._monitor.close()
            self._monitor = None

    def _read_events(self) -> None:
        monitor, target = self._monitor, self._target
        for event in monitor.recv_many() if monitor is not None else ():
            if target is None or monitor is not self._monitor:
                return
            if event.kind is EventKind.CONNECTED:
                self.refused_since = math.inf
            elif event.kind is EventKind.CONNECT_RETRIED:
                self.refused_since = min(self.refused_since, time.monotonic())
            elif event.kind is EventKind.HANDSHAKE_SUCCEEDED:
                self._on_success(target)
            elif event.kind in FAILURES:
                self._on_failure(target, event.kind)
            elif event.kind is EventKind.DISCONNECTED and self.is_up:
                self.is_up = False
                self._cut()

    def _on_success(self, target: Target) -> None:
        self.rejection = ""
        self.backoff, self._failed_in_a_row = 0.0, 0
        self.is_up = True
        self._known.add(target)
        self._reasons.clear()
        self._failures.clear()

    def _on_failure(self, target: Target, kind: EventKind) -> None:
        dead = kind is EventKind.HANDSHAKE_FAILED_PROTOCOL  # libzmq does not dial again after one
        if self.is_up and dead:  # bytes were spoilt on their way
            self.is_up = False
            self._failed(True)
            return
        count = self._failures[target] = self._failures.get(target, 0) + 1
        self._back_off(time.monotonic())
        if kind is EventKind.HANDSHAKE_FAILED_AUTH or (count >= FEW_FAILURES and target not in self._known):
            self._reasons[target] = self._reason(kind)
            if len(self._reasons) == self._targets:
                self.rejection = "; ".join(dict.fromkeys(self._reasons.values()))
        elif target in self._known and count % FEW_FAILURES and not self.backoff:
            return  # unanswered Hellos have it dialled anew, and less often
        self._failed(dead)

    def _back_off(self, now: float) -> None:
        """Count a failure; from FEW_FAILURES at each target on, set the back-off."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row == 1:
            self._since = now
        if self._failed_in_a_row >= FEW_FAILURES * self._targets:
            backoff = min(LONGEST_BACKOFF, max(SHORTEST_BACKOFF, BACKOFF_SHARE * (now - self._since)))
            self.backoff = backoff * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  no secret

    def _reason(self, kind: EventKind) -> str:
        own = self._credentials
        if own is None:  # which end notices first that only one has keys is chance
            return (
                "it asks for keys (or is no hub of taskmesh): give this program its directory of keys with "
                "--keys DIR, TASKMESH_KEYS or Mesh(..., keys=DIR); `taskmesh keys new` makes one"
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
