"""The number of rows in a piece, measured as the job runs, by a model of a call's cost."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

START: Final = 32
FIXED: Final = 2000
"""Rows in a piece where their number must not depend on the speed of the mesh."""
TARGET_S: Final = 0.05
"""Seconds that a piece takes, where the hub bears as many."""
BORNE: Final = 2000
"""Pieces a second that one hub passes on with ease: about half of what it can."""
OVERHEAD: Final = 1 / 8
"""The fixed cost of a call, at most, as a share of the cost of its rows."""

_GROWTH: Final = 8
_SURE_GROWTH: Final = 64
_EXPLORED_S: Final = 1.0
_CHECKED: Final = 16
_NOISE: Final = 1.25
_CHANGED: Final = 3.0
_DOUBT: Final = 0.2
_SIZES: Final = 4
_KEPT: Final = 64


class BatchSizer:
    """Rows per piece for one function.

    A piece of `rows` takes a + b x rows seconds: a for the call (a request, a kernel launch, a commit), b for
    each row. Both are fitted to the times of pieces of different sizes. A piece has as many rows as fit into
    a twentieth of a second: that much is lost with a worker, a cancellation waits for that long, and the ends
    of partitions are even. But it never has so few that the call costs more than an eighth of its rows:
    smaller pieces would mean fewer rows a second. And where so many slots are busy that the hub would have
    more of them than it bears, each takes longer.

    Args:
        fixed: a constant number of rows; 0 to measure.
        start: the first number, if it is measured.
        most_bytes: of a piece; 0 for no limit.
        by_item: the function is called for each item, so a is zero.

    Attributes:
        rows: of the next piece.
    """

    def __init__(
        self, fixed: int = 0, start: int = START, most_bytes: int = 0, *, by_item: bool = False
    ) -> None:
        self.rows = fixed or start
        self._target = TARGET_S
        self.fixed = bool(fixed)
        self._most_bytes = most_bytes
        self._by_item = by_item
        self._sizes: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._calls = 0

    @property
    def is_known(self) -> bool:
        """True if enough has been measured to have many pieces under way."""
        return self.fixed or self._by_item or len(self._sizes) > 1

    def learn(self, rows: int, seconds: float, size: int = 0, slots: int = 0) -> None:
        """Take note of a piece that was computed.

        Args:
            rows: how many it had.
            seconds: how long it took.
            size: its bytes; 0 if that is not known.
            slots: how many may be busy with such pieces; 0 if that is not known.
        """
        if self.fixed or seconds <= 0 or rows <= 0:
            return
        self._target = max(TARGET_S, slots / BORNE)
        if self._by_item:
            self._sizes.clear()
        self._note(rows, seconds)
        if rows < self.rows // 2 and seconds < self._target:
            return  # a batch's last rows say little about larger pieces
        fitting = self._fitting()
        if self._most_bytes and size:
            fitting = min(fitting, rows * self._most_bytes // size)
        self.rows = max(1, self.rows // 2, int(fitting))

    def _note(self, rows: int, seconds: float) -> None:
        """Update the time of pieces of about this size: the newest counts for half."""
        number = rows.bit_length()
        if len(self._sizes) > 1:
            call, row = self._model()
            if not 1 / _CHANGED < seconds / (call + row * rows) < _CHANGED:
                self._sizes.clear()  # the function's or the machine's speed has changed
        if number in self._sizes:
            seconds = (seconds + self._sizes[number][1]) / 2
        self._sizes[number] = rows, seconds
        self._sizes.move_to_end(number)
        # More rows take longer. A time that contradicts this is old, or includes a start or a pause.
        for other in [other for other, (_, its) in self._sizes.items() if other != number]:
            its = self._sizes[other][1]
            if its > seconds * _NOISE if other < number else its < seconds / _NOISE:
                del self._sizes[other]
        if len(self._sizes) > _SIZES:
            self._sizes.popitem(last=False)

    def _fitting(self) -> float:
        """Return the number of rows that the model gives."""
        if len(self._sizes) == 1:
            ((rows, seconds),) = self._sizes.values()
            if self._by_item:
                return rows * min(_GROWTH, self._target / seconds)
            # a and b take two sizes; the next one takes a second at most, as far as one size can tell.
            return rows * min(_GROWTH, _EXPLORED_S / seconds) if seconds < _EXPLORED_S / 2 else rows / 4
        call, row = self._model()
        largest, seconds = max(self._sizes.values())
        most = largest * (_SURE_GROWTH if seconds < _EXPLORED_S / 5 else _GROWTH)
        sure = call - _DOUBT * min(seconds for _, seconds in self._sizes.values())
        in_time, at_cost = (self._target - call) / row, sure / row / OVERHEAD
        self._calls += 1
        if at_cost > in_time and self._calls % _CHECKED == 0:
            return min(most, at_cost) / 4  # a check that the call still costs so much
        return min(most, max(in_time, at_cost))

    def _model(self) -> tuple[float, float]:
        """Seconds for a call and for a row: least squares of relative errors, neither below zero."""
        points = list(self._sizes.values())
        w = sum(1 / seconds**2 for _, seconds in points)
        wr = sum(rows / seconds**2 for rows, seconds in points)
        wrr = sum((rows / seconds) ** 2 for rows, seconds in points)
        wt = sum(1 / seconds for _, seconds in points)
        wrt = sum(rows / seconds for rows, seconds in points)
        row = (w * wrt - wr * wt) / (w * wrr - wr * wr)
        call = (wt - row * wr) / w
        if call < 0:
            return 0.0, wrt / wrr
        return (call, row) if row > 0 else (wt / w, 1e-12)


_sizers: OrderedDict[int, BatchSizer] = OrderedDict()


def sizer_of(
    function: bytes, start: int = START, most_bytes: int = 0, *, by_item: bool = False
) -> BatchSizer:
    """Return the sizer of a function, which keeps what this process has learnt in earlier Spark tasks.

    It is found by a hash: the function's bytes may hold a whole model, and another one in each job.
    """
    key = hash(function)
    sizer = _sizers.setdefault(key, BatchSizer(0, start, most_bytes, by_item=by_item))
    _sizers.move_to_end(key)
    while len(_sizers) > _KEPT:
        _sizers.popitem(last=False)
    return sizer
