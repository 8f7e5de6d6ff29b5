"""A wait in stretches: an endless or very long one is more milliseconds than poll() takes."""

from __future__ import annotations

import math

LONGEST = 3600.0
"""Seconds of one stretch; who waits looks at the clock after it, and waits on."""


def stretch(seconds: float) -> int:
    """Milliseconds to wait for, when so many seconds are left."""
    return math.ceil(min(max(seconds, 0.0), LONGEST) * 1000)
