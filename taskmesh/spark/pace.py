"""How many rows go into a piece: as many as take about a twentieth of a second, measured as the job runs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

START: Final = 256
TARGET_S: Final = 0.05
_GROWTH: Final = 8
_KEPT: Final = 64


class Pace:
    """Rows per piece for one function.

    Why a twentieth of a second: a piece is what is lost with a worker, what a cancellation waits for, and
    what the partitions' ends are balanced with; and it is long beside the milliseconds of its way.

    Args:
        fixed: a number to stay at. start: what to begin with.
        most_bytes: fewer rows than fit the time, if they have more bytes than this; 0 for no limit.
    """

    def __init__(self, fixed: int = 0, start: int = START, most_bytes: int = 0) -> None:
        self.rows = fixed or start
        self.fixed = bool(fixed)
        self._most_bytes = most_bytes

    def learn(self, rows: int, seconds: float, size: int = 0) -> None:
        """A piece of so many rows and bytes took so long."""
        if self.fixed or seconds <= 0 or (rows < self.rows // 2 and seconds < TARGET_S):
            return  # a batch's last rows tell little
        fitting = int(rows * TARGET_S / seconds)
        if self._most_bytes and size:
            fitting = min(fitting, rows * self._most_bytes // size)
        self.rows = max(1, self.rows // 2, min(fitting, rows * _GROWTH))


_paces: OrderedDict[int, Pace] = OrderedDict()


def pace_of(function: bytes, start: int = START, most_bytes: int = 0) -> Pace:
    """What this process has learnt about a function, in this Spark task or earlier ones.

    Its bytes are not kept: they may have a whole model in them, and there may be another one in each job.
    """
    key = hash(function)
    pace = _paces.setdefault(key, Pace(0, start, most_bytes))
    _paces.move_to_end(key)
    while len(_paces) > _KEPT:
        _paces.popitem(last=False)
    return pace
