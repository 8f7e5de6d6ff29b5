"""The clock by which a program's mesh waits and keeps its deadlines, and the clock on the wall."""

from __future__ import annotations

import time
from functools import partial

monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""The value of `time.monotonic()`, also in a test that has frozen `time` (freezegun).

A mesh whose time stands still would neither open nor notice that a worker is gone."""

wall = partial(time.clock_gettime, time.CLOCK_REALTIME)
"""Seconds since the epoch, likewise."""
