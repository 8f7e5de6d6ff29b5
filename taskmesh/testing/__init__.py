"""Tests of users: pytest's fixtures (`taskmesh.testing.plugin`), and programs under faults (`explore`).

pytest imports this folder in programs whose tests have no tasks: what it offers is loaded when it is used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing `typing` would be for nothing
if TYPE_CHECKING:
    from taskmesh.testing.exploration import SeedFailed, explore

__all__ = ["SeedFailed", "explore"]


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("taskmesh.testing.exploration"), name)
