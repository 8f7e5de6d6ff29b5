"""Lines that tasks have logged: the last ones, and how many of them a client may be sent."""

from __future__ import annotations

from collections import OrderedDict, deque

from taskmesh.messages.runs import WARNING, LogLine, Progress

LINES_KEPT = 1_000
"""Lines that are kept of one task."""
LOG_BYTES = 32 << 20
"""Bytes that are kept of what all tasks have logged."""
CLIENT_BYTES = 8 << 20
"""Bytes of lines a second that one client is sent: what it does not read waits in the hub's memory."""
MOST_CLIENTS = 1_000
"""Clients whose lines that were left out are counted."""


class LastLines:
    """The last lines that tasks have logged, also after their end, for whoever asks.

    Attributes:
        by_task: lines by task id, each with its number from 1 on, its attempt and worker, and their user; the
            task that has logged last is last.
    """

    def __init__(self, most_bytes: int = LOG_BYTES) -> None:
        self.by_task: OrderedDict[int, tuple[str, deque[tuple[int, int, str, LogLine]]]] = OrderedDict()
        self._most_bytes = most_bytes
        self._size = 0
        self._second = 0.0
        self._sent: dict[int, int] = {}
        self._left_out: dict[int, int] = {}

    def add(self, task: int, news: Progress, user: str) -> None:
        """Keep lines of a task; those go first whose task has logged nothing for longest."""
        _, lines = self.by_task.setdefault(task, (user, deque()))
        self.by_task.move_to_end(task)
        number = lines[-1][0] if lines else 0
        for line in news.lines:
            number += 1
            lines.append((number, news.attempt, news.worker, line))
            self._size += _size(line)
            if len(lines) > LINES_KEPT:
                self._size -= _size(lines.popleft()[3])
        while self._size > self._most_bytes:
            _, gone = self.by_task.popitem(last=False)[1]
            self._size -= sum(_size(line) for *_, line in gone)

    def to_client(self, client: int, news: Progress, now: float, wall: float, *, silent: bool) -> None:
        """Leave out lines that a client may not be sent; the next that it is sent says how many those were.

        Args:
            client: the client.
            news: of one of its tasks.
            now: the time.
            wall: the time on the wall.
            silent: nothing has been heard of it for some beats.
        """
        if now - self._second >= 1.0:
            self._second = now
            self._sent.clear()
        sent = self._sent[client] = self._sent.get(client, 0) + sum(map(_size, news.lines))
        if silent or sent > CLIENT_BYTES:
            self._left_out[client] = self._left_out.pop(client, 0) + len(news.lines)
            if len(self._left_out) > MOST_CLIENTS:
                del self._left_out[next(iter(self._left_out))]
            news.lines = []
        elif (count := self._left_out.pop(client, 0)) and news.lines:
            text = f"{count:,} lines before this one were dropped: this program did not read them in time"
            news.lines = [LogLine(wall, WARNING, __name__, text), *news.lines]


def _size(line: LogLine) -> int:
    return len(line.text) + len(line.logger) + len(line.path) + 300
