"""UDFs on a mesh: columns travel as Arrow batches, and one column comes back, cut as the input was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from taskmesh.client.functions import function_name
from taskmesh.errors import ConfigError
from taskmesh.spark.jobs.partitions import ColumnPartition
from taskmesh.spark.jobs.remote_task import RemoteTask, function_bytes
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.step import Format, Step

UdfInput = Literal["arrow", "pandas", "scalar"]
_FORMS: Final[dict[str, Format]] = {"arrow": "arrays", "pandas": "series", "scalar": "values"}
_ASKED: Final = ("asNondeterministic", "deterministic", "evalType", "func", "returnType")
_ZONE: Final = "UTC"
"""The zone of a UDF's timestamps in PySpark, whatever the session's zone."""


class MeshUDF:
    """A function over columns that returns a column, computed on the mesh.

    Args:
        settings: of the job.
        task: the function.
        returns: the type of its column, as text or a DataType.
        takes: "arrow": called with a `pyarrow.Array` for each column; "pandas": with Series; "scalar": with
            the values of one row, for every row. Nulls are passed like any other value.
        rows: in a call, at most; 0 for the number that the sizer finds.
        deterministic: as for `MeshSpark.udf`.

    Raises:
        ConfigError: `takes` is unknown, errors="column", which has no place in one column, or `task` is no
            function.
    """

    def __init__(
        self,
        settings: Settings,
        task: Callable[..., Any],
        returns: str | DataType,
        takes: UdfInput,
        *,
        rows: int = 0,
        deterministic: bool = False,
    ) -> None:
        if takes not in _FORMS:
            raise ConfigError(f"input has to be arrow, pandas or scalar, not {takes!r}")
        if hasattr(task, "returnType"):
            raise ConfigError(
                "mesh.udf() takes a function, not the result of udf() or pandas_udf(). Pass it the function"
            )
        if settings.errors == "column":
            raise ConfigError(
                'errors="column" is for map_arrow and map_batches; a UDF has "raise" and "null"'
            )
        self._settings = settings
        self._task = task
        self._returns = returns
        self._form = _FORMS[takes]
        self._rows = rows
        self._deterministic = deterministic
        self._built: Any = None
        self.__name__ = function_name(task).rpartition(".")[2]
        self.__doc__ = task.__doc__

    def __call__(self, *columns: Any) -> Any:
        """Return the task's column for columns, or for their names.

        Raises:
            SerializationError: the task's function cannot travel.
            ConfigError: there is no column.
        """
        if not columns:
            raise ConfigError(f"the UDF {self.__name__} takes at least one column")
        return self._udf()(*columns)

    def __getattr__(self, name: str) -> Any:
        """Return the attributes that `spark.udf.register` reads from a UDF."""
        if name not in _ASKED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._udf(), name)

    def __getstate__(self) -> dict[str, Any]:
        """Without Spark's own UDF, which is bound to a session."""
        return {**self.__dict__, "_built": None}

    def register(self, spark: Any, name: str) -> Any:
        """Register it for this session's SQL; returns the result of `spark.udf.register`."""
        return spark.udf.register(name, self._udf())

    def _udf(self) -> Any:
        """Spark's own UDF around the task; made when a session is there to read the type."""
        if self._built is None:
            returns = self._returns
            struct = (
                StructType.fromDDL(f"value {returns}")
                if isinstance(returns, str)
                else StructType().add("value", returns)
            )
            schema = ipc.schema_bytes(to_arrow_schema(struct, timezone=_ZONE))
            errors = self._settings.errors
            step = Step(function_bytes(self._task), self._form, schema, errors)
            remote_task = RemoteTask.of(self._settings, self._task, step)
            partition = ColumnPartition(self._settings, remote_task, self._rows, schema)

            def offload(columns: Any) -> Any:
                return partition.run(columns)

            # PySpark reads the kind of UDF from these, and does not understand strings.
            offload.__annotations__ = {
                "columns": Iterator[tuple[pa.Array, ...]],
                "return": Iterator[pa.Array],
            }
            offload.__name__ = self.__name__
            udf: Any = arrow_udf(offload, struct.fields[0].dataType)
            self._built = udf if self._deterministic else udf.asNondeterministic()
        return self._built
