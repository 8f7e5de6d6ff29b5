"""Which of the hub's deliveries have arrived, and when it is told."""

from __future__ import annotations

import math

from taskmesh.core.link import ACK_DELAY, ReceiveWindow, size_of_delivery
from taskmesh.wire.messages import Deliver


class Receipts:
    """Numbers of deliveries, from 1 and mostly in order, and the acknowledgement owed for them.

    Attributes:
        due: when the hub is to be told at the latest; infinite when it need not be told of anything.
    """

    def __init__(self, credit: int) -> None:
        """Args: credit: bytes that the hub sends ahead; 0 if it asks for no acknowledgement."""
        self.due = math.inf
        self._credit = credit
        self._numbers = ReceiveWindow()
        self._size = 0

    def add(self, deliver: Deliver, now: float) -> bool:
        """Takes in a delivery; False if it had come before.

        Then the acknowledgement was lost, and goes again at once. So it does before the credit runs low.
        """
        new = self._numbers.take(deliver.number)
        if self._credit:
            self._size += size_of_delivery(deliver)
            urgent = not new or self._size >= self._credit // 8
            self.due = min(self.due, now if urgent else now + ACK_DELAY)
        return new

    def again(self, now: float) -> None:
        """The hub may have missed what it was told."""
        if self._credit:
            self.due = now

    def tell(self) -> int:
        """What the hub is now told: how many have arrived, or 0 for nothing."""
        self.due = math.inf
        self._size = 0
        return self._numbers.to if self._credit else 0

    def restart(self) -> None:
        """A new hub counts from 1."""
        self._numbers.restart()
        self.tell()
