"""Which specs a client has sent, so that each travels once."""

from __future__ import annotations

SPECS_REMEMBERED = 10_000
"""Beyond so many all are sent once more: a hub, which keeps far fewer, passes over those that it knows."""


class SpecsSent:
    """Numbers of specs; a program that makes its functions in a loop has no end of them."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Whether a spec has to be sent, which it is now."""
        if number in self._numbers:
            return False
        if len(self._numbers) >= SPECS_REMEMBERED:
            self._numbers.clear()
        self._numbers.add(number)
        return True
