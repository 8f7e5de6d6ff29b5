"""A partition's way through an engine: pieces submitted ahead within a window, results in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from taskmesh.client.futures.outcome import Success
from taskmesh.spark.jobs.batch_size import BatchSizer
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import Engine
from taskmesh.spark.jobs.settings import Settings


class RowBatch(NamedTuple):
    """A part of the partition that is under way.

    Attributes:
        task: the future that the engine returned.
        number: from 1 on.
        first: its first row's number in the partition; negative if nobody has counted so far.
        rows: their number; 0 if that is not known before the result.
        size: in bytes; 0 where nothing travels.
    """

    task: Any
    number: int
    first: int
    rows: int
    size: int

    @property
    def where(self) -> str:
        """For error texts."""
        if self.first < 0 or not self.rows:
            return f"piece {self.number} of the partition"
        return f"rows {self.first} to {self.first + self.rows - 1} of the partition"


class Stream:
    """One execution of a Spark task.

    It reads ahead until the window is full, and gives results as soon as they may be given. It never holds
    anything back from other streams, so two of them in one Spark stage cannot wait for each other.

    Args:
        open_engine: called when there is a first piece: an empty partition needs no mesh.
        sizer: learns from every piece. While it does not know how long pieces take, one is under way at a
            time: it is a probe, and the next one is cut when it has been measured.
        tally: where the stream counts.
        ordered: results in the order of their input; else as they come.
        rows_of: tells from a result how many rows its piece had.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        settings: Settings,
        sizer: BatchSizer,
        tally: Tally,
        *,
        ordered: bool = True,
        rows_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._open_engine = open_engine
        self._settings = settings
        self._sizer = sizer
        self._tally = tally
        self._ordered = ordered
        self._rows_of = rows_of
        self._under_way: deque[RowBatch] = deque()
        self._bytes = 0
        self._rows = 0
        self._pieces = 0

    def run(self, pieces: Iterator[tuple[Any, int, int]]) -> Iterator[Any]:
        """The results of pieces, given as (data, rows, bytes); bytes may be 0, and are then looked up.

        Closed early, or left by an error, it gives up what is under way.
        """
        try:
            for data, rows, size in pieces:
                while self._is_full(size):
                    yield self._next()
                self._submit(data, rows, size)
                while self._done() or (self._under_way and not self._sizer.is_known):
                    yield self._next()
            while self._under_way:
                yield self._next()
        finally:
            if self._under_way:
                self._engine.cancel([piece.task for piece in self._under_way])
                self._under_way.clear()

    @cached_property
    def _engine(self) -> Engine:
        return self._open_engine()

    def _submit(self, data: Any, rows: int, size: int) -> None:
        engine = self._engine
        sent = engine.sent
        task = engine.submit(data)
        piece = RowBatch(task, self._pieces + 1, self._rows, rows, size or engine.sent - sent)
        self._under_way.append(piece)
        self._pieces += 1
        self._rows = self._rows + rows if rows and self._rows >= 0 else -1
        self._bytes += piece.size

    def _is_full(self, size: int) -> bool:
        under_way = self._under_way
        return len(under_way) >= self._settings.window or (
            bool(under_way) and self._bytes + size > self._settings.window_bytes
        )

    def _done(self) -> RowBatch | None:
        """The piece whose result is the next one, if it is there."""
        pieces = self._under_way
        if self._ordered:
            return pieces[0] if pieces and pieces[0].task.done() else None
        return next((piece for piece in pieces if piece.task.done()), None)

    def _next(self) -> Any:
        pieces = self._under_way
        piece = self._done()
        if piece is None:
            began = time.perf_counter()
            self._engine.wait([piece.task for piece in ([pieces[0]] if self._ordered else pieces)])
            self._tally.waited += time.perf_counter() - began
            piece = self._done() or pieces[0]
        result, success = self._engine.outcome(piece.task, piece.where)
        pieces.remove(piece)
        self._bytes -= piece.size
        rows = piece.rows if self._rows_of is None else self._rows_of(result)
        self._sizer.learn(rows, success.seconds, piece.size, self._engine.slots)
        self._count(piece, rows, success)
        return result

    def _count(self, piece: RowBatch, rows: int, success: Success) -> None:
        tally = self._tally
        tally.pieces += 1
        tally.rows_in += rows
        tally.bytes_in += piece.size
        tally.again += success.attempt > 1
        tally.worked += success.seconds
