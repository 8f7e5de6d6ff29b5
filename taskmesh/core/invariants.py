"""A demand on a machine's books; those of hub and pool are in their rooms."""

from __future__ import annotations


class BrokenInvariant(AssertionError):
    """A machine's books do not agree."""


def require(holds: bool, what: str, *facts: object) -> None:
    """Raises BrokenInvariant with the facts unless it holds."""
    if not holds:
        raise BrokenInvariant(f"{what}: {', '.join(map(repr, facts))}")
