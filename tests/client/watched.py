"""Results that tests watch by weak references: who keeps one that has been given, and for how long."""

from __future__ import annotations

import weakref


class Box:
    """Something that a weak reference can watch."""

    def __init__(self, number: int) -> None:
        self.number = number


def is_gone(watched: weakref.ref[Box]) -> bool:
    """Whether nobody holds it any more."""
    return watched() is None
