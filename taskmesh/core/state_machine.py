"""The base of machines with tables of transitions, and the demands on their books."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from taskmesh.errors import InvalidTransition

StateT = TypeVar("StateT", bound=enum.Enum)

CauseT = TypeVar("CauseT", bound=enum.Enum)


class StateMachine(Generic[StateT, CauseT]):
    """Base class of lanes and slots: their state changes by a table of transitions.

    Attributes:
        table: maps a state and a cause to the next state.
        state: the present one.
    """

    table: ClassVar[Mapping[tuple[Any, Any], Any]]
    state: StateT

    def move(self, cause: CauseT) -> None:
        """One transition.

        Raises:
            InvalidTransition: the table does not have it: a bug.
        """
        after = self.table.get((self.state, cause))
        if after is None:
            raise InvalidTransition(
                f"a {type(self).__name__.lower()} is {self.state.name}: {cause.name} is not possible"
            )
        self.state = after


class BrokenInvariant(AssertionError):
    """A machine's books do not agree."""


def require(holds: bool, what: str, *facts: object) -> None:
    """Raises BrokenInvariant with the facts unless it holds."""
    if not holds:
        raise BrokenInvariant(f"{what}: {', '.join(map(repr, facts))}")
