"""Bounds of the credit model that the hub's lanes and the pool's scheduler share."""

from __future__ import annotations

LONG = 1.0
"""Seconds from which on a task is never handed out ahead of need."""

ONE_AHEAD = 0.6
"""Most that a shorter task counts for, in horizons: so a slot always has one in hand and one ahead."""
