"""Spark's own functions, marked: Spark's Python workers send their rows to the mesh and evaluate nothing.

A marked function is called by nobody. Spark pickles it into its command as any other; a worker of
`taskmesh.spark.daemon` finds the mark there.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final, Self

import pyspark

from taskmesh.client.functions import function_name
from taskmesh.client.options import TaskOptions
from taskmesh.errors import ConfigError
from taskmesh.spark.evaluation.command import EXTENTS
from taskmesh.spark.jobs.remote_task import function_bytes, options_of
from taskmesh.spark.jobs.settings import PREFIX, Settings

SINCE: Final = (4, 3)
"""The version of PySpark from which on its worker reads commands as `command_reader` expects it."""
DAEMON: Final = "taskmesh.spark.daemon"
CONF: Final = "spark.python.daemon.module"
OFFLOAD: Final = f"{PREFIX}offload"
"""The setting with the names of functions that are evaluated on the mesh without a mark; "*" for all."""
MARK: Final = "__taskmesh_offloaded__"
"""The attribute of a table function's class that is marked; it holds an `Offloaded`."""
_CURE: Final = (
    f"Start Spark with --conf {CONF}={DAEMON} (in a program: "
    f"SparkSession.builder.config({CONF!r}, {DAEMON!r}) before there is a session; with Spark Connect: where "
    "the server starts)"
)


class Offloaded:
    """A function that is to be evaluated on the mesh, in place of itself.

    PySpark reads the forms of its input and output from its signature and annotations, on the driver. Only
    the attributes travel.

    Args:
        settings: of the job.
        function: its bytes, as `dump_function` gives them.
        name: of the function, for people.
        options: of its tasks.
        rows: in a call, at most; 0 for the number that the sizer finds.

    Attributes: as the arguments.
    """

    def __init__(
        self, settings: Settings, function: bytes, name: str, options: TaskOptions, rows: int = 0
    ) -> None:
        self.settings = settings
        self.function = function
        self.name = name
        self.options = options
        self.rows = rows
        self.__name__ = name.rpartition(".")[2]

    @classmethod
    def of(cls, settings: Settings, function: Callable[..., Any], rows: int) -> Self:
        """The mark for a function.

        Raises:
            ConfigError: it is a task with a key.
            SerializationError: it cannot travel.
        """
        own = options_of(function)
        name = own.name or function_name(function)
        made = cls(settings, function_bytes(function), name, own, rows)
        plain = inspect.unwrap(function)
        if not isinstance(plain, type):
            made.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
        made.__doc__ = function.__doc__
        with contextlib.suppress(NameError, TypeError):
            made.__annotations__ = typing.get_type_hints(plain)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Only what a worker needs: annotations may name what it does not have."""
        return type(self), (self.settings, self.function, self.name, self.options, self.rows)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tell the caller, one of PySpark's own workers, that it is the wrong one.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self.name} is to run on a mesh, and the Python workers of this Spark run functions "
            f"themselves. {_CURE}"
        )


def offloaded(settings: Settings, function: Any, rows: int = 0) -> Any:
    """A marked copy of a function, of a UDF or of a table function.

    Raises:
        ConfigError: it is none of these, or the settings ask for what only the bridge's own forms have.
        SerializationError: the function cannot travel.
    """
    check_settings(settings)
    if not is_supported():
        raise ConfigError(
            "Spark's own functions run on a mesh with PySpark 4.3 or newer, and this is "
            f"{pyspark.__version__}. map_arrow, map_batches, udf() and rdd() do with 4.1"
        )
    own = getattr(function, "_unwrapped", function)  # of udf() and the like: a function around the UDF
    if type(own).__name__ == "UserDefinedFunction":
        check_kind(own.evalType, own._name)
        return _copied(own, Offloaded.of(settings, own.func, rows))._wrapped()
    if type(function).__name__ == "UserDefinedTableFunction":
        mark = Offloaded.of(settings, function.func, rows)
        return _copied(function, type(function.func.__name__, (function.func,), {MARK: mark}))
    if isinstance(function, type) or not callable(function):
        raise ConfigError(
            "offload() takes a function, or the result of udf(), pandas_udf(), arrow_udf(), udtf() or "
            f"arrow_udtf(), not {function!r:.200}"
        )
    return Offloaded.of(settings, function, rows)


def is_supported() -> bool:
    """Return True if PySpark here is new enough."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= SINCE


def check_settings(settings: Settings) -> None:
    """Check that nothing is asked for that only the bridge's own forms have.

    Raises:
        ConfigError: something is.
    """
    if settings.errors != "raise":
        raise ConfigError(
            f"errors={settings.errors!r} is for map_arrow, map_batches and udf(); Spark's own functions have "
            '"raise" only'
        )
    if settings.dedupe != "none":
        raise ConfigError('dedupe="result" is for map_arrow, map_batches, udf() and rdd()')


def check_kind(kind: int, name: str) -> None:
    """Check that functions of a kind can run on a mesh.

    Raises:
        ConfigError: they cannot.
    """
    if kind not in EXTENTS:
        raise ConfigError(
            f"{name} keeps its state in Spark's state store (transformWithState, applyInPandasWithState), "
            "which only Spark's own workers reach. Do the heavy step before it, in map_arrow or a UDF"
        )


def check_barrier(settings: Settings, is_barrier: bool) -> None:
    """Check that a function is not of a barrier stage.

    Raises:
        ConfigError: it is.
    """
    if is_barrier and settings.engine != "local":
        raise ConfigError(
            "barrier=True starts all tasks of a stage together, and pools start them as slots come free; a "
            "BarrierTaskContext tells of executors, where the function does not run. Leave barrier= out, or "
            "do not offload the function"
        )


def check_daemon(spark: Any) -> None:
    """Check that Spark's workers know the mark, as far as a session can tell.

    Raises:
        ConfigError: they do not.
    """
    if spark.conf.get(CONF, "") != DAEMON:
        raise ConfigError(f"Spark's own functions cannot run on the mesh in this session. {_CURE}")


def _copied(function: Any, marked: Any) -> Any:
    """A copy of Spark's object around a function, around another one."""
    made = copy.copy(function)
    made.func = marked
    for cache in ("_judf_placeholder", "_judtf_placeholder"):
        if hasattr(made, cache):
            setattr(made, cache, None)
    if getattr(made, "transpiled", None):
        made.transpiled = []  # it is not to become an expression of Spark's
    return made


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
