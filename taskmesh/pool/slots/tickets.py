"""Tickets: the pipe that decides whether a queued task still starts, or has been taken back.

The supervisor writes one ticket for each task that it hands over, the slot reads one before it starts a task,
and the supervisor takes tasks back by reading tickets itself. The kernel gives each ticket to one of them.
"""

from __future__ import annotations

import os
import select
from typing import Final

from taskmesh.pool.slots.messages import TICKET

_AT_ONCE: Final = select.PIPE_BUF // TICKET.size  # a write of that many is atomic: all of them or none
_READ: Final = 64 << 10


def ticket(generation: int) -> bytes:
    """The ticket of tasks that were handed over with this generation."""
    return TICKET.pack(generation & 0xFFFF)


class TicketPipe:
    """The supervisor's side: both ends, for the slot gets a duplicate of the reading one."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def write(self, count: int, generation: int) -> int:
        """Write `count` tickets, or as many of them as the pipe has room for; returns how many."""
        one = ticket(generation)
        done = 0
        while done < count:
            some = min(count - done, _AT_ONCE)
            try:
                os.write(self._writer, one * some)
            except BlockingIOError:
                break
            done += some
        return done

    def take_back(self) -> int:
        """Read every ticket that is left and returns how many there were."""
        size = 0
        try:
            while data := os.read(self.reader, _READ):
                size += len(data)
        except BlockingIOError:
            pass
        return size // TICKET.size

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)
