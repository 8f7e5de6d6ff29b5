"""The hub's end of one lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from taskmesh.sockets import Push, Sendable


class LaneLink:
    """One lane: a bound PUSH whose only peer is the pool's PULL; holds messages until that has dialled."""

    def __init__(self, socket: Push, pool: str) -> None:
        self.socket = socket
        self.pool = pool
        self.waiting: deque[Sequence[Sendable]] = deque()
        self.linked = False
        self.lost = False

    def push(self, frames: Sequence[Sendable]) -> bool:
        """Sends, or keeps when nobody is there; False when it was kept."""
        if not self.waiting and self.socket.try_send_parts(frames):
            return True
        self.waiting.append(frames)
        return False

    def flush(self) -> bool:
        """Sends what was kept; True when nothing is left."""
        self.linked = True
        while self.waiting:
            if not self.socket.try_send_parts(self.waiting[0]):
                return False
            self.waiting.popleft()
        return True
