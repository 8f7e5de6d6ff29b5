"""One reliable link: what both of its ends keep of numbered messages, and the figures that they count by.

A sender keeps each message until it is acknowledged, and repeats it after a time that grows with the bytes
under way and with each repetition. A receiver drops duplicates, acknowledges cumulatively, and does so with
something that it sends anyway, if that comes soon. Submits, Deliveries and Results travel so; "Numbers" in
docs/explanation/architecture.md tells in what they differ.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from taskmesh.messages.runs import DoneRun, Failed

SLOWEST = 100_000
"""Bytes a second that a link moves at least, not quite 1 Mbit/s: a large message under way is not lost."""

DOUBLINGS = 5
"""Cap of the exponential back-off for resends. A slow link may take a minute for 8 MiB and carry nothing else
until then; small messages are resent soon."""

ACK_DELAY = 0.005
"""Seconds that an acknowledgement waits for something to go with: a message of its own wakes four threads."""

MessageT = TypeVar("MessageT")


class SendWindow(Generic[MessageT]):
    """Numbered messages of one sender that have not been acknowledged.

    Attributes:
        kept: The messages by number, without a gap, oldest first.
        first: Number of the oldest of them; `next` if there is none.
        next: Number of the message that is appended next.
        sent: Number of the newest that has been sent, or sent again, over the present link.
        size: Bytes of all that are kept.
        in_flight: Bytes of those that have been sent.
        repeats: Repetitions since the last acknowledgement, at most DOUBLINGS.
        moved: Time of the last progress: an acknowledgement, a repetition, a first message.
    """

    __slots__ = ("_sizes", "first", "in_flight", "kept", "moved", "next", "repeats", "sent", "size")

    def __init__(self) -> None:
        self.kept: dict[int, MessageT] = {}
        self.moved = 0.0
        self._sizes: dict[int, int] = {}
        self.restart(1)

    def restart(self, number: int) -> None:
        """Forget all messages; the next one has this number."""
        if self.kept:
            self.kept.clear()
            self._sizes.clear()
        self.first = self.next = number
        self.sent = number - 1
        self.size = self.in_flight = self.repeats = 0

    def append(self, message: MessageT, size: int, now: float, *, sent: bool = False) -> None:
        """Keep a message that has the number `next`.

        Args:
            message: The message.
            size: Its bytes.
            now: The time.
            sent: True if it is sent now, like all before it; otherwise `send` returns it.
        """
        number = self.next
        if number == self.first:
            self.moved = now
        self.kept[number] = message
        self._sizes[number] = size
        self.size += size
        self.next = number + 1
        if sent:
            self.in_flight += size
            self.sent = number

    def send(self, limit: float = math.inf) -> list[MessageT]:
        """Return the messages to send now: those that follow, until `limit` bytes are in flight."""
        messages = []
        number = self.sent + 1
        while number < self.next and self.in_flight < limit:
            self.in_flight += self._sizes[number]
            messages.append(self.kept[number])
            number += 1
        self.sent = number - 1
        return messages

    def acknowledge(self, number: int, now: float) -> list[MessageT]:
        """Take off and return all messages up to a number: the receiver has them."""
        messages = []
        while self.first <= number and self.first < self.next:
            first = self.first
            messages.append(self.kept.pop(first))
            size = self._sizes.pop(first)
            self.size -= size
            if first <= self.sent:
                self.in_flight -= size
            else:
                self.sent = first  # it was sent over an earlier link
            self.first = first + 1
            self.moved, self.repeats = now, 0
        return messages

    def rewind(self, number: int, now: float) -> None:
        """Messages from a number on count as not sent: `send` returns them again."""
        first = max(number, self.first)
        for known in range(first, self.sent + 1):
            self.in_flight -= self._sizes[known]
        self.sent = min(self.sent, first - 1)
        self.moved = now

    def size_of(self, number: int) -> int:
        """Return the bytes of a message that is kept."""
        return self._sizes[number]

    def deadline(self, patience: float) -> float:
        """Return when the messages in flight are taken for lost; infinite if there are none.

        That is `patience` seconds after the last progress, and later by the time that their bytes take on the
        slowest link, twice as long after each repetition: copies of what is on its way would fill the link.
        """
        if self.sent < self.first:
            return math.inf
        return self.moved + patience + self.in_flight / SLOWEST * (1 << self.repeats)

    def repeat(self, now: float) -> None:
        """Has all messages sent again, since the deadline has passed or their link has ended."""
        if self.sent >= self.first:
            self.repeats = min(self.repeats + 1, DOUBLINGS)
        self.rewind(self.first, now)


class ReceiveWindow:
    """Numbers of messages that have arrived, from 1 on and mostly in order, and the acknowledgement owed.

    Args:
        most_early: Messages beyond a missing one that are taken in; the sender repeats the others.
        credit: Bytes that the sender has in flight at most; 0 if it asks for no acknowledgement of its own.

    Attributes:
        to: Every message up to this number has arrived.
        early: Numbers beyond a missing one.
        due: When the sender has to hear `to` at the latest; infinite if nothing is owed.
    """

    __slots__ = ("_credit", "_most_early", "_size", "due", "early", "to")

    def __init__(self, most_early: float = math.inf, credit: int = 0) -> None:
        self.to = 0
        self.early: set[int] = set()
        self.due = math.inf
        self._most_early = most_early
        self._credit = credit
        self._size = 0

    def take(self, number: int) -> bool:
        """Take in a number; return False if its message is a duplicate, or too early to be kept."""
        if number == self.to + 1:
            self.to = number
            while self.early and self.to + 1 in self.early:
                self.to += 1
                self.early.remove(self.to)
            return True
        if number <= self.to or number in self.early or len(self.early) >= self._most_early:
            return False
        self.early.add(number)
        return True

    def owe(self, size: int, now: float, *, at_once: bool) -> None:
        """A message of so many bytes is to be acknowledged within ACK_DELAY.

        Args:
            size: Bytes that it takes of the credit; at once if an eighth of that is used up.
            at_once: The sender waits, or has missed the acknowledgement before.
        """
        if self._credit:
            self._size += size
            soon = at_once or self._size >= self._credit // 8
            self.due = min(self.due, now if soon else now + ACK_DELAY)

    def acknowledged(self) -> int:
        """Return the number up to which the sender now hears that all has arrived; 0 if it need not hear."""
        self.due = math.inf
        self._size = 0
        return self.to if self._credit else 0

    def restart(self) -> None:
        """The sender counts from 1 again."""
        self.to = 0
        self.early.clear()
        self.acknowledged()


def size_of(run: DoneRun) -> int:
    """Return the bytes that a run of successes is counted for."""
    return sum(map(len, run.payloads)) + 32 * len(run.seqs)


def size_of_failure(failure: Failed) -> int:
    """Return the bytes that a bad end is counted for."""
    return len(failure.pickled) + len(failure.traceback) + len(failure.output) + 200


def size_of_outcomes(done: list[DoneRun], failed: list[Failed]) -> int:
    """Return the bytes that a message with these outcomes is counted for."""
    size = 0
    for run in done:
        size += size_of(run)
    for failure in failed:
        size += size_of_failure(failure)
    return size
