"""Groups of a DataFrame whose functions run on the mesh: Spark's `applyInPandas` and `applyInArrow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskmesh.errors import ConfigError
from taskmesh.spark.jobs.offload import offloaded
from taskmesh.spark.jobs.settings import Settings


class MeshGroups:
    """Grouped rows; each call of a function gets one group.

    Small groups travel together; one group is never cut, and has to be smaller than `max_payload`.

    Args:
        settings: of the job.
        grouped: what `df.groupBy(...)` returned, or `cogroup` of two of them.
        rows: in groups that travel together, at most; 0 for the number that the sizer finds.
    """

    def __init__(self, settings: Settings, grouped: Any, rows: int = 0) -> None:
        self._settings = settings
        self._grouped = grouped
        self._rows = rows

    def apply_in_pandas(self, function: Callable[..., Any], schema: Any) -> Any:
        """A DataFrame of what `function` returns for each group, as `GroupedData.applyInPandas`.

        Raises:
            SerializationError: the function cannot travel.
        """
        return self._grouped.applyInPandas(offloaded(self._settings, function, self._rows), schema)

    def apply_in_arrow(self, function: Callable[..., Any], schema: Any) -> Any:
        """A DataFrame of what `function` returns for each group, as `GroupedData.applyInArrow`.

        Raises:
            SerializationError: the function cannot travel.
        """
        return self._grouped.applyInArrow(offloaded(self._settings, function, self._rows), schema)

    def cogroup(self, other: MeshGroups) -> MeshGroups:
        """Groups of two DataFrames by the same keys, for functions of both groups.

        Raises:
            ConfigError: the other one is not of `group()`.
        """
        if not isinstance(other, MeshGroups):
            raise ConfigError(f"cogroup() takes what group() returns, not a {type(other).__name__}")
        return MeshGroups(self._settings, self._grouped.cogroup(other._grouped), self._rows)
