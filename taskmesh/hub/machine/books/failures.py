"""Failures: their kinds, what people are shown of them and of the hub, and when a task is tried again."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from taskmesh.core.actions import LogEvent
from taskmesh.core.ids import SEQ_MASK
from taskmesh.hub.machine.books.states import TaskRecord
from taskmesh.hub.machine.figures.errors import TOLD_TEXT, TOLD_TRACE, Errors
from taskmesh.hub.machine.figures.functions import Functions
from taskmesh.messages.runs import WARNING, Failed, LogLine, Progress

CRASHES = frozenset({"crash", "oom"})
"""Kinds after which the slot is gone: they are counted against `hub.crash_limit`."""
REFUSALS = frozenset({"function", "signature"})
"""Kinds after which another pool may have more luck: the task has not begun."""
RETRIED = frozenset({"exception", "timeout", "hard_timeout"})
"""Kinds that the task's own retries are for."""
POOLS_DIED = (
    "pools died while they ran this task, the last one with nothing else. It probably needs more memory than "
    "a pool has, and the kernel then kills the whole pool. Give workers more memory, or raise "
    "hub.pool_loss_limit"
)
RECENT = 1_000
"""Bad ends that are kept for whoever asks why a task failed."""
EVENTS_KEPT = 1000
LINES_KEPT = 1_000
"""Lines that are kept of one task."""
LOG_BYTES = 32 << 20
"""Bytes that are kept of what all tasks have logged."""
CLIENT_BYTES = 8 << 20
"""Bytes of lines a second that one client is sent: what it does not read waits in the hub's memory."""


class RecentEnds:
    """The latest ends of tasks, as people see them.

    Attributes:
        by_task: bad ends, by task id; RECENT of them.
        successes: RECENT successes, the last of each report: name, queue, task id, attempt, worker.
    """

    def __init__(self) -> None:
        self.successes: deque[tuple[str, str, int, int, str]] = deque(maxlen=RECENT)
        self.by_task: OrderedDict[int, dict[str, object]] = OrderedDict()

    def remember(self, record: TaskRecord, told: Failed, tasks: Iterable[int], user: str) -> None:
        """Keep a bad end for whoever asks why, by the ids of all tasks that have ended with it.

        Args:
            record: the task.
            told: how it has ended.
            tasks: the ids.
            user: the user whose task it is.
        """
        where = f"attempt {told.attempt} on {told.worker or '?'}"
        end: dict[str, object] = {
            "name": record.spec.spec.name,
            "user": user,
            "state": record.state.name,
            "queue": record.spec.route[0],
            "attempt": told.attempt,
            "worker": told.worker,
            "history": told.history,
            "why": f"{where}: {told.kind} {in_words(told)}"[:TOLD_TEXT],
        }
        self.by_task.update(dict.fromkeys(tasks, end))
        while len(self.by_task) > RECENT:
            self.by_task.popitem(last=False)


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
            if len(self._left_out) > RECENT:
                del self._left_out[next(iter(self._left_out))]
            news.lines = []
        elif (count := self._left_out.pop(client, 0)) and news.lines:
            text = f"{count:,} lines before this one were dropped: this program did not read them in time"
            news.lines = [LogLine(wall, WARNING, __name__, text), *news.lines]


def _size(line: LogLine) -> int:
    return len(line.text) + len(line.logger) + len(line.path) + 300


class Diagnostics:
    """Facts that a hub keeps for people who ask, and decides nothing by.

    Attributes:
        duplicates: successes that came after the task was terminal. stale: failures of older attempts.
        strays: successes of attempts that their sender was never given.
        recent: the latest ends.
        lines: what tasks have logged last.
        functions: how long tasks of each function wait and run. errors: failed attempts, in groups.
        events: what was logged last: its number, the time, and what.
        refused: why pools were not let in, by name.
        journal: what was told of the journal last, empty without one.
        shortage: what the hub's process lacks and what to do; empty when it lacks nothing.
    """

    def __init__(self) -> None:
        self.duplicates = 0
        self.stale = 0
        self.strays = 0
        self.recent = RecentEnds()
        self.lines = LastLines()
        self.functions = Functions()
        self.errors = Errors()
        self.events: deque[tuple[int, float, LogEvent]] = deque(maxlen=EVENTS_KEPT)
        self.refused: dict[str, str] = {}
        self.journal: dict[str, object] = {}
        self.shortage = ""

    def keep(self, event: LogEvent, now: float) -> None:
        number = self.events[-1][0] + 1 if self.events else 1
        self.events.append((number, now, event))


def in_words(failure: Failed) -> str:
    return f"{failure.type_name}: {failure.text}" if failure.type_name else failure.text


def shown(failure: Failed, attempt: int) -> dict[str, object]:
    """Return a failure as people see it, whose attempt has this number for them."""
    return {
        "attempt": attempt,
        "worker": failure.worker,
        "kind": failure.kind,
        "type": failure.type_name,
        "text": failure.text[:TOLD_TEXT],
        "traceback": failure.traceback[-TOLD_TRACE:],
    }


def jitter_of(task: int, times: int) -> float:
    """A number in [0, 1) that depends on the task and the retry only (splitmix64)."""
    z = (task ^ (task >> 64) ^ (times * 0x9E3779B97F4A7C15)) & SEQ_MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & SEQ_MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & SEQ_MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)
