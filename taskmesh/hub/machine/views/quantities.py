"""Quantities as people read them: bytes with a unit, and times."""

from __future__ import annotations


class Bytes(int):
    """A number of bytes: a number in JSON, and for people with a unit."""

    def __str__(self) -> str:
        for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
            if self >= size:
                return f"{self / size:,.1f} {unit}"
        return f"{int(self)} bytes"


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
