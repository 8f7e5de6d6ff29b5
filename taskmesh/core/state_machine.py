"""The base of machines with tables of transitions, and the checks of their books."""

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
        table: Maps a state and a cause to the next state.
        state: The present state.
    """

    table: ClassVar[Mapping[tuple[Any, Any], Any]]
    state: StateT

    def move(self, cause: CauseT) -> None:
        """Make one transition.

        Raises:
            InvalidTransition: The table does not have it, which is a bug.
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
    """Check an invariant.

    Args:
        holds: True if it holds.
        what: What is wrong if it does not.
        facts: Values to be told then.

    Raises:
        BrokenInvariant: It does not hold.
    """
    if not holds:
        raise BrokenInvariant(f"{what}: {', '.join(map(repr, facts))}")
