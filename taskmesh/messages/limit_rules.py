"""Limits in words: `50/s` is a rate, `2` a number of tasks at a time; and `api:50/s` names its limit."""

from __future__ import annotations

import re
from typing import Final

from taskmesh.messages.runs import LONGEST_NAME, LimitRule

SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of the units that a rate may have."""
MOST: Final = (1 << 53) - 1
"""The largest count."""
EXAMPLES: Final = "a rate such as 50/s, 600/m, 10000/h or 5/d, or a number of tasks at a time such as 2"
_RATE: Final = re.compile(r"(\d+)(?:/([smhd]))?", re.ASCII)


class LimitError(Exception):
    """Internal: a text states no limit; the message says what would."""


def read_limit(name: str, text: str) -> LimitRule:
    """Return the limit that a text states.

    Raises:
        LimitError: it states none, or its name cannot be used.
    """
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise LimitError(
            f"{name!r:.200} is no name of a limit: that has 1 to {LONGEST_NAME} printable characters"
        )
    found = _RATE.fullmatch(text.strip())
    count = int(found[1]) if found is not None and len(found[1]) < 20 else 0
    if found is None or not 1 <= count <= MOST:
        raise LimitError(f"{text!r:.200} is no limit: it has to be {EXAMPLES}")
    return LimitRule(name, count, SECONDS[found[2]] if found[2] else 0.0)


def read_named(text: str) -> LimitRule:
    """Return the limit that NAME:RATE or NAME:COUNT states.

    Raises:
        LimitError: it states none.
    """
    name, colon, rate = text.rpartition(":")
    if not colon:
        raise LimitError(f"{text!r:.200} is no limit: write its name, a colon and {EXAMPLES}")
    return read_limit(name.strip(), rate)


def text_of(rule: LimitRule) -> str:
    """Return a limit without its name, as `read_limit` takes it."""
    if not rule.window:
        return str(rule.count)
    unit = next((unit for unit, seconds in SECONDS.items() if seconds == rule.window), f"{rule.window:g}s")
    return f"{rule.count}/{unit}"
