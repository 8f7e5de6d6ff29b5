"""Where slots come from: one fork server after the other, should one die."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from taskmesh.pool.link import Births, ForkServerLink
from taskmesh.pool.orders import PROCESS_LIMITS
from taskmesh.system.clock import monotonic
from taskmesh.system.services import System
from taskmesh.system.watch import Watch

_BACK_OFF: Final = (0.1, 5.0)


class Nursery:
    """Keeps a fork server running while slots are wanted; a new one is started when the next slot is.

    The first one is started at once, since it takes longest: it comes up while its supervisor does.

    Args:
        sys_path: where slots find modules. name: the pool's, for people.
        preload: modules that every slot imports before it is ready.
        only: modules whose functions alone slots may run; empty for any.
    """

    def __init__(
        self,
        system: System,
        sys_path: Sequence[str],
        name: str,
        preload: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> None:
        self._system = system
        self._sys_path = sys_path
        self._preload = preload
        self._only = only
        self._name = name
        self._births: Births | None = None
        self._lost: Callable[[str], None] | None = None
        self._watch: Watch | None = None
        self._link: ForkServerLink | None = None
        self._failures = 0  # fork servers in a row that never came up
        self._retry_at = 0.0
        self.trouble = ""
        self._spawn()

    def watched_by(self, watch: Watch, births: Births, lost: Callable[[str], None]) -> None:
        """Begins to listen to the fork server.

        Args:
            births: told of what the fork server tells.
            lost: called with a reason when the fork server has died, and every process of its session with
                it. It is empty when it had worked.
        """
        self._watch, self._births, self._lost = watch, births, lost
        self._listen()

    @property
    def is_empty(self) -> bool:
        """Whether no fork server runs."""
        return self._link is None

    def fork(self, token: int, slot: int, fds: Sequence[int], sent: object) -> bool:
        """Orders a slot; False when there is no fork server and it is too soon for another: see `trouble`."""
        if self._link is None and monotonic() >= self._retry_at:
            self._spawn()
            self._listen()
        if self._link is None:
            return False
        self._link.fork(token, slot, fds, sent)
        self._watch_writes(self._link)
        return True

    def kill(self, token: int) -> None:
        """Orders a slot's death."""
        if self._link is not None:
            self._link.kill(token)
            self._watch_writes(self._link)

    def end(self) -> None:
        """Orders the fork server to end, with every slot."""
        if self._link is not None:
            self._link.end()
            self._watch_writes(self._link)

    def _spawn(self) -> None:
        try:
            self._link = ForkServerLink(self._system, self._sys_path, self._name, self._preload, self._only)
        except OSError as error:
            self._failed(f"the fork server could not be started {PROCESS_LIMITS}: {error}")

    def _failed(self, trouble: str) -> None:
        """Counts a fork server that never came up, so that the next one is not tried too soon."""
        first, most = _BACK_OFF
        self._retry_at = monotonic() + min(most, first * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self.trouble = trouble

    def _listen(self) -> None:
        if self._link is not None and self._watch is not None:
            self._link.births = self._births
            self._watch.add(self._link.sock.fileno(), self._hear)
            if self._link.handle is not None:
                self._watch.add(self._link.handle, self.bury)

    def _watch_writes(self, link: ForkServerLink) -> None:
        if self._watch is not None:
            self._watch.writing(link.sock.fileno(), link.wants_write)

    def _hear(self) -> None:
        link = self._link
        if link is not None:
            link.write()
            if link.read():
                self._watch_writes(link)
            else:
                self.bury()

    def bury(self) -> None:
        """Ends the fork server, if it has not ended yet, and everything that it had started."""
        link = self._link
        if link is None:
            return
        link.read()
        self._link = None
        if self._watch is not None:
            self._watch.remove(link.sock.fileno(), link.handle)
        status = link.end_all()
        link.close()
        if link.up:
            self._failures = 0
        else:
            self._failed(
                f"the fork server ({sys.executable}) ended with status {status} before it was up: see stderr"
            )
        if self._lost is not None:
            self._lost("" if link.up else self.trouble)

    def forsake(self) -> None:
        """In a forked child of the supervisor's process: closes the descriptors, minds no process."""
        if self._link is not None:
            self._link.forsake()
