"""Progress of maps and of futures: counted where they end, told ten times a second at most."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Final, TypeAlias

from taskmesh.system.clock import monotonic

PAUSE_S: Final = 0.1
RATED: Final = 300
"""Times of telling over which the rate is measured: the last half minute or more."""
_log = logging.getLogger("taskmesh.client")


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a map, or of futures that somebody waits for.

    Attributes:
        done: items, or futures, that have ended.
        failed: those of them that are known to have ended with an error.
        total: how many there are; None while that is unknown.
        rate: how many have lately ended in a second.
        eta: seconds that the rest takes at this rate; None while that is unknown.
    """

    done: int
    failed: int
    total: int | None
    rate: float
    eta: float | None

    @property
    def counts(self) -> str:
        """The number of those that have ended, in words."""
        return f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"

    @property
    def failures(self) -> str:
        """The number of those that have failed, in words; empty if none has."""
        return f"{self.failed:,} failed" if self.failed else ""

    @property
    def pace(self) -> str:
        """The rate, and the time that is left, in words."""
        left = f", {timedelta(seconds=ceil(self.eta))} left" if self.eta else ""
        return f"{self.rate:,.3g}/s{left}" if self.rate else ""


ProgressOption: TypeAlias = bool | str | Callable[[Progress], object]
"""True or a label for bars, or a function that is told; False for nothing."""
Show: TypeAlias = Callable[[Progress, bool], object]
"""Shows progress; the second argument is True for the last time."""


class ProgressCounter:
    """Counts what ends, in any thread, and has it shown.

    Args:
        total: how many there are; None if that is unknown.
        show: shows it, in one thread at a time.
        later: has jobs done by another thread; without it one thread counts, and `add` shows it there.
    """

    def __init__(
        self,
        total: int | None,
        show: Show,
        later: Callable[[Iterable[Callable[[], None]]], object] | None = None,
    ) -> None:
        self._show = show
        self._later = later
        self._done = self._failed = 0
        self._total = total
        self._counting = threading.Lock()
        # meanwhile an iterator may be finalized, which shows its own
        self._showing = threading.RLock()
        self._again = 0.0
        self._over = False
        self._moments = deque([(monotonic(), 0)], maxlen=RATED)

    def add(self, done: int = 1, failed: int = 0, expected: int = 0) -> None:
        """Count what has ended, and what is expected from now on."""
        if self._later is None:
            if self._count(done, failed, expected):
                self._tell()
            return
        with self._counting:
            is_due = self._count(done, failed, expected)
        if is_due:
            self._later((self._tell,))

    def _count(self, done: int, failed: int, expected: int) -> bool:
        """Count; return True if it is time to tell somebody."""
        self._done += done
        self._failed += failed
        if self._total is not None:
            self._total += expected
        now = monotonic()
        if now < self._again or self._over:
            return False
        self._again = now + PAUSE_S
        return True

    def end(self) -> None:
        """Show it a last time: nothing more is counted."""
        self._tell(last=True)

    def _tell(self, *, last: bool = False) -> None:
        with self._showing:
            if self._over:
                return
            self._over = last
            try:
                self._show(self._progress(last=last), last)
            except Exception:  # noqa: BLE001  the user's function, or a terminal that is gone: tasks go on
                self._over = True
                _log.exception("progress cannot be shown, and is not any more")

    def _progress(self, *, last: bool) -> Progress:
        done, failed, total, now = self._done, self._failed, self._total, monotonic()
        if last and total is None:
            total = done
        since, before = self._moments[0]
        self._moments.append((now, done))
        rate = (done - before) / (now - since) if now > since else 0.0
        return Progress(
            done, failed, total, rate, (total - done) / rate if rate and total is not None else None
        )
