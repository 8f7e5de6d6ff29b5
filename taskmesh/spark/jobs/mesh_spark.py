"""MeshSpark, the object that a Spark program holds. Nothing is opened before Spark runs a partition."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Self

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from taskmesh.client.options import Chunksize, fixed_chunksize
from taskmesh.errors import ConfigError
from taskmesh.settings.setting import suggestion
from taskmesh.spark.jobs.counts import Counts
from taskmesh.spark.jobs.driver_mesh import driver_mesh
from taskmesh.spark.jobs.offload import OFFLOAD, MeshGroups, check_barrier, check_daemon, offloaded
from taskmesh.spark.jobs.partitions import ArrowPartition, SinkPartition
from taskmesh.spark.jobs.rdds import MeshRDD
from taskmesh.spark.jobs.remote_task import RemoteTask, function_bytes
from taskmesh.spark.jobs.settings import FIELDS, PREFIX, Settings
from taskmesh.spark.jobs.udfs import MeshUDF, UdfInput
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.step import ERROR_COLUMN, Format, Step


@dataclasses.dataclass(frozen=True)
class MeshSpark(Settings):
    """Runs steps of Spark jobs on a mesh: `MeshSpark("tcp://hub:5550", queue="gpu")`.

    A frozen, picklable value. Spark runs a step at least once for each partition, and more often where it
    tries again or evaluates a plan twice: cache or write right after a mesh step.

    Raises:
        ConfigError: a setting cannot be used.
    """

    @classmethod
    def from_conf(cls, spark: Any, **overrides: Any) -> Self:
        """Read `spark.taskmesh.address`, `spark.taskmesh.window` ... of the session; arguments override them.

        Raises:
            ConfigError: a setting is unknown, or its value cannot be used.
        """
        names = [name for name in spark.conf.getAll if name.startswith(PREFIX) and name != OFFLOAD]
        found = {name.removeprefix(PREFIX): spark.conf.get(name) for name in names}
        for name in found:
            if name not in FIELDS:
                raise ConfigError(f"unknown setting {PREFIX}{name}{suggestion(name, FIELDS, PREFIX)}")
        return cls(**{**found, **overrides})

    @classmethod
    @contextlib.contextmanager
    def serve(
        cls, spark: Any, *, bind: str, advertise: str = "", hub_keys: str = "", **overrides: Any
    ) -> Iterator[Self]:
        """Hold a mesh in this program for the time of a `with` block; workers and executors dial it.

        It is the program's current mesh, too, and its end is the mesh's: jobs that still run lose it.

        Args:
            spark: the session.
            bind: the address at which the mesh listens, such as "tcp://0.0.0.0:5550".
            advertise: the host that executors dial. Without it they dial that of `bind`, or, where it stands
                for every interface, `spark.driver.host`.
            hub_keys: a directory on this host with the keys of a hub: beyond loopback there have to be some.
            overrides: settings, as for `from_conf`; `keys` is a directory on the executors.

        Yields:
            The bridge; `address` is what workers dial.

        Raises:
            ConfigError: a setting cannot be used, or nothing says at which host executors reach the mesh.
            InsecureBind: `bind` is beyond loopback, and there are no keys.
            EndpointError: the address is taken.
        """
        with driver_mesh(spark, bind, advertise, hub_keys) as address:
            yield cls.from_conf(spark, **overrides, address=address)

    def local(self) -> Self:
        """The same with tasks in Spark's own Python workers, and all the checks: for tests."""
        return dataclasses.replace(self, engine="local")

    def map_arrow(
        self,
        df: Any,
        task: Callable[..., Any],
        schema: str | StructType,
        *,
        chunksize: Chunksize = "auto",
        ordered: bool = True,
    ) -> Any:
        """A DataFrame of what `task` returns for record batches of `df`.

        Args:
            df: classic or Connect, a batch or a stream.
            task: takes a `pyarrow.RecordBatch`; returns one, a table, or several, of any number of rows.
            schema: of the result. Columns are taken by name, and cast where nothing is lost.
            chunksize: rows in a call; "auto" measures how many take a twentieth of a second, or more where
                a call costs much itself. With dedupe="result" it is 2000, so that equal rows make equal
                batches.
            ordered: keeps the partition's order; False gives batches as they are done.

        Raises:
            SerializationError: the function cannot travel; names the part that cannot.
            ConfigError: an option or the schema cannot be used.
        """
        return self._mapped(df, task, schema, "arrow", chunksize, ordered=ordered)

    def map_batches(
        self,
        df: Any,
        task: Callable[..., Any],
        schema: str | StructType,
        format: Literal["arrow", "pandas", "rows"] = "arrow",  # noqa: A002  pandas' and Spark's word
        *,
        chunksize: Chunksize = "auto",
        ordered: bool = True,
    ) -> Any:
        """Like `map_arrow`, for tasks over pandas DataFrames ("pandas") or lists of dicts ("rows").

        Raises:
            ConfigError: the format is unknown; else as `map_arrow`.
        """
        if format not in {"arrow", "pandas", "rows"}:
            raise ConfigError(f"format has to be arrow, pandas or rows, not {format!r}")
        return self._mapped(df, task, schema, format, chunksize, ordered=ordered)

    def _mapped(
        self,
        df: Any,
        task: Callable[..., Any],
        schema: str | StructType,
        form: Format,
        chunksize: Chunksize,
        *,
        ordered: bool,
    ) -> Any:
        if not hasattr(df, "mapInArrow"):
            raise ConfigError(
                f"it takes a Spark DataFrame, not a {type(df).__name__}; for RDDs there is rdd()"
            )
        rows = fixed_chunksize(chunksize)
        declared = struct_of(schema)
        if self.errors != "raise":
            _check_nullable(declared, df.schema)
        if self.errors == "column" and ERROR_COLUMN in declared.names:
            raise ConfigError(
                f'errors="column" adds {ERROR_COLUMN!r}, which the schema has already. '
                "Rename or drop the one of the step before"
            )
        conf = df.sparkSession.conf
        arrow = to_arrow_schema(
            declared,
            timezone=conf.get("spark.sql.session.timeZone"),
            prefers_large_types=conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true",
        )
        step = Step(function_bytes(task), form, ipc.schema_bytes(arrow), self.errors)
        returned = declared
        if self.errors == "column":
            returned = StructType([*declared.fields]).add(ERROR_COLUMN, StringType())
            arrow = arrow.append(pa.field(ERROR_COLUMN, pa.string()))
        remote_task = RemoteTask.of(self, task, step)
        partition = ArrowPartition(self, remote_task, rows, ipc.schema_bytes(arrow), ordered)
        return df.mapInArrow(partition.run, returned)

    def udf(
        self,
        returnType: str | DataType = "string",  # noqa: N803  Spark's word
        *,
        input: UdfInput = "arrow",  # noqa: A002  short, and keyword-only
        queue: str = "",
        tags: Iterable[str] = (),
        chunksize: Chunksize = "auto",
        deterministic: bool = False,
    ) -> Callable[[Callable[..., Any]], MeshUDF]:
        """Make a UDF of a function: `@mesh.udf("double", input="pandas")`.

        Args:
            returnType: of the column that the function returns.
            input: form of the arguments: "arrow" arrays, "pandas" Series, or "scalar" values row by row.
            queue: of the pools; empty for the bridge's.
            tags: of the pools; empty for the bridge's.
            chunksize: rows in a call, at most, as for `map_arrow`.
            deterministic: True if the same rows always give the same result. Spark's optimiser may then call
                the function twice for a row; else it filters after it, so that a table is read whole.

        Raises:
            ConfigError: the input is unknown, the bridge has errors="column", or the decorator was used
                without parentheses.
        """
        if not isinstance(returnType, str | DataType):
            name = getattr(returnType, "__name__", type(returnType).__name__)
            raise ConfigError(
                f"udf() takes the type of what the function returns, not {name}. "
                "Write @mesh.udf('double'), or @mesh.udf() for strings: with parentheses"
            )
        rows = fixed_chunksize(chunksize)
        settings = self._to(queue, tags)

        def make(task: Callable[..., Any]) -> MeshUDF:
            return MeshUDF(settings, task, returnType, input, rows=rows, deterministic=deterministic)

        return make

    def offload(
        self, function: Any, *, queue: str = "", tags: Iterable[str] = (), chunksize: Chunksize = "auto"
    ) -> Any:
        """The same UDF, table function or function, evaluated on the mesh by PySpark's own code.

        It takes the result of `udf`, `pandas_udf`, `arrow_udf`, `udtf` or `arrow_udtf`, or the function that
        `mapInPandas`, `applyInArrow` and the like are given, and returns one of the same kind. Its body sees
        what it sees in Spark. Spark has to be started with spark.python.daemon.module=taskmesh.spark.daemon,
        and pools need PySpark of the same minor version (`pyspark-client` is enough).

        Args:
            function: the UDF, table function or function.
            queue: of the pools; empty for the bridge's.
            tags: of the pools; empty for the bridge's.
            chunksize: rows that travel together, at most, as for `map_arrow`.

        Raises:
            ConfigError: it is none of these, or of a kind that needs Spark's state store; or the bridge has
                an `errors=` or `dedupe=` that Spark's own functions do not have.
            SerializationError: the function cannot travel.
        """
        return offloaded(self._to(queue, tags), function, fixed_chunksize(chunksize))

    def map_in_arrow(self, df: Any, function: Callable[..., Any], schema: Any, **options: Any) -> Any:
        """As `df.mapInArrow(function, schema)`: one call for a partition, with an iterator of its batches.

        Args:
            df: classic or Connect, a batch or a stream.
            function: takes an iterator of `pyarrow.RecordBatch`, and gives one. It may keep state between
                batches; a pool that dies takes it along, and Spark tries the partition again.
            schema: of the result, as for Spark.
            options: `profile=`, as for Spark.

        Raises:
            ConfigError: Spark's workers do not know the mesh; see `offload`. Or barrier=True is among the
                options.
            SerializationError: the function cannot travel.
        """
        check_daemon(df.sparkSession)
        check_barrier(self, options.get("barrier", False))
        return df.mapInArrow(offloaded(self, function), schema, **options)

    def map_in_pandas(self, df: Any, function: Callable[..., Any], schema: Any, **options: Any) -> Any:
        """As `df.mapInPandas(function, schema)`; else as `map_in_arrow`."""
        check_daemon(df.sparkSession)
        check_barrier(self, options.get("barrier", False))
        return df.mapInPandas(offloaded(self, function), schema, **options)

    def group(self, df: Any, *keys: Any, chunksize: Chunksize = "auto") -> MeshGroups:
        """Groups of a DataFrame by columns or their names, whose functions run on the mesh.

        Args:
            df: classic or Connect.
            keys: as for `df.groupBy`; none for one group of all rows.
            chunksize: rows of groups that travel together, at most; a larger group travels alone.

        Raises:
            ConfigError: Spark's workers do not know the mesh; see `offload`.
        """
        check_daemon(df.sparkSession)
        return MeshGroups(self, df.groupBy(*keys), fixed_chunksize(chunksize))

    def _to(self, queue: str, tags: Iterable[str]) -> Self:
        """The same for other pools."""
        return dataclasses.replace(self, queue=queue or self.queue, tags=tuple(tags) or self.tags)

    def foreach_batch(
        self, task: Callable[..., object], *, query: str = "", chunksize: Chunksize = "auto"
    ) -> Callable[[Any, int], None]:
        """A function for `DataStreamWriter.foreachBatch` that hands every micro-batch to `task`, as a sink.

        Args:
            task: called as `task(batch, delivery)` with a `pyarrow.RecordBatch` and a
                `taskmesh.spark.Delivery`; its result is ignored. It is called at least once for each row:
                `delivery` and a key of the rows' own let it recognise repetitions.
            query: name of the stream in deliveries; empty for the id that Spark gave the stream, which is
                unknown on Connect.
            chunksize: as for `map_arrow`.

        Raises:
            ConfigError: errors= is not "raise": rows that a sink refused would be lost. On Connect a stream
                ends with it if `query` is empty.
        """
        if self.errors != "raise":
            raise ConfigError(f'errors={self.errors!r} would lose rows: foreach_batch() has "raise" only')
        schema = ipc.schema_bytes(pa.schema([("nothing", pa.int64())]))
        remote_task = RemoteTask.of(self, task, Step(function_bytes(task), "sink", schema, "raise"))
        rows = fixed_chunksize(chunksize)
        settings = self

        def sink(df: Any, batch: int) -> None:
            if not query and type(df).__module__.startswith("pyspark.sql.connect"):
                raise ConfigError(
                    "Spark Connect does not tell which stream a batch is of: deliveries of all streams would "
                    "look alike. Write foreach_batch(f, query='orders')"
                )
            partition = SinkPartition(settings, remote_task, rows, schema, query=query, batch=batch)
            df.mapInArrow(partition.run, "nothing long").write.format("noop").mode("overwrite").save()

        return sink

    def counting(self, spark: Any) -> Self:
        """The same with `counts`, which sums up what is sent and returned; classic Spark only.

        Raises:
            ConfigError: the session is of Spark Connect.
        """
        return dataclasses.replace(self, counts=Counts(spark))

    def rdd(self, rdd: Any) -> MeshRDD:
        """An RDD whose `map`, `flat_map`, `map_partitions` and `foreach` run on the mesh; not on Connect.

        Raises:
            ConfigError: it is no RDD of classic Spark.
        """
        return MeshRDD(self, rdd)


def struct_of(schema: str | StructType) -> StructType:
    """A schema as Spark's type; text is read as DDL by the session.

    Raises:
        ConfigError: it does not consist of columns, or has two of one name.
    """
    struct = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, StructType):
        raise ConfigError(
            f"schema has to be columns ('id long, name string') or a StructType, not {schema!r}"
        )
    twice = [name for number, name in enumerate(struct.names) if name in struct.names[:number]]
    if twice:
        raise ConfigError(f"schema has two columns {twice[0]!r}: what a task returns is found by name")
    return struct


def _check_nullable(declared: StructType, given: StructType) -> None:
    """A failed row has nulls, except in columns that it had before."""
    kept = {field.name: field.dataType for field in given}
    for field in declared:
        if not field.nullable and kept.get(field.name) != field.dataType:
            raise ConfigError(
                f'column {field.name!r} is declared NOT NULL, but errors="null" and "column" give nulls for '
                'rows that fail. Declare it nullable, or keep errors="raise"'
            )
