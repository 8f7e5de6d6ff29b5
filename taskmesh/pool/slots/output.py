"""A slot's output: its pipes, with the last lines kept, and the way to our own stdout and stderr.

Passing on is a thread's work, since our stdout may be a pipe that nobody reads. While it cannot keep up,
slots' output is left in their pipes, and a slot that prints waits as it would at a slow terminal.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from taskmesh.messages.runs import PRINTED, LogLine
from taskmesh.pool.slots.task_log import LONGEST, LineBudget
from taskmesh.system.selector import CallbackSelector

_STREAMS: Final = ("stdout", "stderr")
_READ: Final = 64 << 10
_FULL: Final = 1 << 20
"""Bytes of a pipe that has been made as large as it may be."""
_LINES: Final = 100
_LINE: Final = 4096
_HIGH: Final = 1 << 20
_LOW: Final = 256 << 10


class TaskPrints:
    """The lines that a slot prints while it runs one task, on their way into the task's log.

    Args:
        serial: of the task.
    """

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self._rests = ["", ""]
        self._lines: list[LogLine] = []
        self._budget = LineBudget(lambda _, line: self._lines.append(line))

    def add(self, stream: int, text: str) -> None:
        """Take what has come from stdout (0) or stderr (1)."""
        *lines, rest = (self._rests[stream] + text).split("\n")
        if len(rest) > LONGEST:
            lines.append(rest)
            rest = ""
        self._rests[stream] = rest
        for line in lines:
            self._add_line(stream, line)

    def take(self) -> list[LogLine]:
        """Return the lines that have come since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def end(self) -> None:
        """Take what has no line end, and say how many lines were dropped."""
        for stream, rest in enumerate(self._rests):
            if rest:
                self._add_line(stream, rest)
        self._budget.tell_dropped()

    def _add_line(self, stream: int, text: str) -> None:
        self._budget.add(self.serial, LogLine(time.time(), PRINTED, _STREAMS[stream], text))


class OutputTail:
    """The pipes of one slot's stdout and stderr, and its last 100 lines of both together.

    Attributes:
        pipes: our ends, stdout's and stderr's.
        slot_ends: the slot's ends, until `close_slot_ends`.
        prints: takes what is read, while a task runs that wants it.
    """

    prints: TaskPrints | None = None

    def __init__(self) -> None:
        stdout = os.pipe()
        try:
            stderr = os.pipe()
        except OSError:
            for fd in stdout:
                os.close(fd)
            raise
        self.pipes = (stdout[0], stderr[0])
        self.slot_ends = [stdout[1], stderr[1]]
        for fd in self.pipes:
            os.set_blocking(fd, False)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {fd: decoder("replace") for fd in self.pipes}
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._partial = dict.fromkeys(self.pipes, "")

    def close_slot_ends(self) -> None:
        while self.slot_ends:
            os.close(self.slot_ends.pop())

    def read(self, fd: int) -> str | None:
        """Return what one of the pipes has, at most 64 KiB; None at its end, "" if there is nothing."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return ""
        if not data:
            return None
        text = self._decoders[fd].decode(data)
        *lines, rest = (self._partial[fd] + text).split("\n")
        self._lines.extend(line[-_LINE:] for line in lines[-_LINES:])
        self._partial[fd] = rest[-_LINE:]
        return text

    def text(self) -> str:
        lines = [*self._lines, *filter(None, self._partial.values())]
        return "\n".join(lines[-_LINES:])

    def close(self) -> None:
        self.close_slot_ends()
        for fd in self.pipes:
            os.close(fd)


class Tee:
    """Passes slots' output on to `sys.stdout` and `sys.stderr`, from a thread that starts when there is any.

    Args:
        relieved: called in that thread when so much has gone after `full` that more may be read.
    """

    def __init__(self, relieved: Callable[[], None]) -> None:
        self._relieved = relieved
        self._queue: deque[tuple[int, str] | None] = deque()
        self._wake = threading.Condition()
        self._held = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        """True if so much waits that no more should be read."""
        return self._held > _HIGH

    def put(self, stream: int, text: str) -> None:
        """Queue output for stdout (0) or stderr (1)."""
        with self._wake:
            self._queue.append((stream, text))
            self._held += len(text)
            self._wake.notify()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        """Start the thread; where none can be had now, the next output tries again.

        So it must not fill up meanwhile, or there would be no next: what is too much then is lost.
        """
        thread = threading.Thread(target=self._run, name="taskmesh-output", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a shortage, or the interpreter is ending
            if self.full:
                self._queue.clear()
                self._held = 0
        else:
            self._thread = thread

    def close(self, timeout: float) -> None:
        """Write what is queued and end the thread; give up after `timeout` seconds."""
        if self._thread is not None:
            with self._wake:
                self._closed = True
                self._queue.append(None)
                self._wake.notify()
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self._wake.wait()
                item = self._queue.popleft()
            if item is None:
                return
            stream, text = item
            _write(sys.stderr if stream else sys.stdout, text)
            with self._wake:
                before = self._held
                self._held -= len(text)
                if before >= _LOW > self._held and not self._closed:
                    self._relieved()


class Console:
    """Read slots' output and passes it on; stops reading while it cannot be passed on fast enough.

    What is a task's log goes nowhere else, and is read all the time.

    Args:
        selector: polls the pipes.
        tee: pass output on; False to read it only, and keep its tail.
    """

    def __init__(self, selector: CallbackSelector, *, tee: bool) -> None:
        self._selector = selector
        selector.on_wakeup = self.relieve
        self._tee = Tee(selector.wakeup.set) if tee else None
        self._held = False
        self._tails: set[OutputTail] = set()

    def add(self, tail: OutputTail) -> None:
        """Begin to read a slot's output."""
        self._tails.add(tail)
        if not self._held:
            self._listen([tail])

    def remove(self, tail: OutputTail) -> None:
        """Read what a dead slot has left, and then no more."""
        for fd in tail.pipes:
            self._pass_on(tail, fd, at_most=64)
        self._tails.discard(tail)
        self._selector.remove(*tail.pipes)

    def catch_up(self, tail: OutputTail) -> None:
        """Read what a slot has printed until now, unless that has to wait."""
        if tail.prints is not None or not self._held:
            self._read_all(tail)

    def begin_task(self, tail: OutputTail, prints: TaskPrints) -> None:
        """Have what a slot prints from now on be the log of a task."""
        self._read_all(tail)
        tail.prints = prints
        self._listen([tail])

    def end_task(self, tail: OutputTail) -> None:
        """Have what a slot prints from now on be nobody's log."""
        self._read_all(tail)
        tail.prints = None
        if self._held:
            self._selector.remove(*tail.pipes)

    def relieve(self) -> None:
        """Read on, if it had been stopped and there is room again."""
        if self._held and self._tee is not None and not self._tee.full:
            self._held = False
            self._listen(self._tails)

    def close(self, timeout: float) -> None:
        """Pass on what was read; give up after `timeout` seconds."""
        if self._tee is not None:
            self._tee.close(timeout)

    def _read_all(self, tail: OutputTail) -> None:
        for fd in tail.pipes:
            self._pass_on(tail, fd, at_most=_FULL // _READ)

    def _listen(self, tails: Iterable[OutputTail]) -> None:
        for tail in tails:
            for fd in tail.pipes:
                self._selector.add(fd, partial(self._pass_on, tail, fd))

    def _pass_on(self, tail: OutputTail, fd: int, at_most: int = 1) -> None:
        for _ in range(at_most):
            text = tail.read(fd)
            if text is None:
                self._selector.remove(fd)
                return
            if not text:
                return
            if tail.prints is not None:
                tail.prints.add(tail.pipes.index(fd), text)
            elif self._tee is not None:
                self._tee.put(tail.pipes.index(fd), text)
                if self._tee.full and not self._held:
                    self._held = True
                    for held in self._tails:
                        if held.prints is None:
                            self._selector.remove(*held.pipes)


def _write(stream: object, text: str) -> None:
    """Write to a text stream that may be closed, replaced by anything, or None; what it lacks is escaped."""
    try:
        try:
            stream.write(text)  # type: ignore[attr-defined]
        except UnicodeEncodeError as error:  # LC_ALL=C, say; slots write UTF-8
            encoded = text.encode(error.encoding, "backslashreplace")
            stream.write(encoded.decode(error.encoding))  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  the user's stream may fail as it likes
        return
