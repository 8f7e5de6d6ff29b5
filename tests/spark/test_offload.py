"""Spark's own functions on pools: what they see, what they give, and what happens when something fails."""

import functools
import operator
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import LongType, StringType
from pyspark.sql.udf import UserDefinedFunction

from taskmesh import Mesh, current_task, task
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.spark import MeshSpark
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.program import ROOT
from tests.harness.waiting import wait_until
from tests.spark.drivers import JOB_S, driving, settled
from tests.spark.forms import FORMS
from tests.spark.jobs import Job, Journal, failure, left, note, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_what_it_gives_in_spark(spark, mesh, address, conf, name):
    conf["spark.sql.session.timeZone"] = "America/New_York"  # where an hour of the rows' times is missing
    expected = FORMS[name](spark, lambda function: function).collect()
    before = _finished(address)
    found = FORMS[name](spark, mesh.offload).collect()
    ran = _finished(address) - before

    assert FORMS[name](spark, mesh.local().offload).collect() == expected
    assert found == expected
    assert expected
    assert ran > 0, "nothing has run on the mesh"


def _finished(address: str) -> int:
    with Mesh(address) as mesh:
        return int(mesh.status()["finished"])


@F.udf(StringType())
def where(_):
    """The place where it runs."""
    try:
        current_task()
    except TaskMeshError:
        return "Spark"
    return "pool"


def _places(df: Any, function: Any) -> set[str]:
    return {row[0] for row in df.select(function("id")).collect()}


def test_a_setting_offloads_functions_by_name_without_a_mark(spark, address, conf):
    df = spark.range(0, 10, numPartitions=2)
    assert _places(df, where) == {"Spark"}
    conf["spark.taskmesh.address"] = address

    for names in ("where", "other, where", f"{__name__}.where", "*"):
        conf["spark.taskmesh.offload"] = names
        assert _places(df, where) == {"pool"}, names

    conf["spark.taskmesh.offload"] = "elsewhere"
    assert _places(df, where) == {"Spark"}
    assert MeshSpark.from_conf(spark).address == (address,)


def test_what_the_setting_names_needs_settings_that_can_be_used(spark, address, conf):
    conf["spark.taskmesh.offload"] = "where"
    assert "no address" in failure(spark.range(1).select(where("id")).collect)
    conf["spark.taskmesh.address"] = address
    conf["spark.taskmesh.errors"] = "null"
    assert "errors='null' is for map_arrow" in failure(spark.range(1).select(where("id")).collect)


class Noted:
    """An object that notes the process in which it is rebuilt."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._path,)


def _rebuilt(path: str) -> Noted:
    note(path, os.getpid())
    return Noted(path)


def test_a_function_is_rebuilt_once_in_each_process(spark, address, conf, tmp_path):
    conf["spark.taskmesh.address"] = address
    conf["spark.taskmesh.offload"] = "*"
    noted, path = Noted(str(tmp_path / "rebuilt")), tmp_path / "rebuilt"

    @F.udf("boolean")
    def holds(_):
        return noted is not None

    assert spark.range(0, 16, numPartitions=16).select(holds("id").alias("x")).where("x").count() == 16
    found = settled(path)
    assert len(found) == len(set(found)) > 1


def test_methods_of_the_bridge_for_partitions_and_groups(spark, bridge):
    df = spark.range(0, 20, numPartitions=2).withColumn("k", F.col("id") % 3)

    arrow = bridge.map_in_arrow(df, _first_ids, "first long", barrier=False)
    pandas = bridge.map_in_pandas(df, lambda frames: (frame[["id"]] for frame in frames), "id long")
    groups = bridge.group(df, "k", chunksize=1).apply_in_pandas(
        lambda key, frame: pd.DataFrame({"k": [key[0]], "n": [len(frame)]}), "k long, n long"
    )
    tables = bridge.group(df, df.k).apply_in_arrow(lambda table: table.select(["id"]), "id long")
    both = bridge.group(df, "k").cogroup(bridge.group(df.where("id < 3"), "k"))
    pairs = both.apply_in_pandas(
        lambda one, other: pd.DataFrame({"n": [100 * len(one) + len(other)]}), "n long"
    )

    assert values(arrow) == [(0,), (10,)]
    assert sorted(values(pandas)) == [(number,) for number in range(20)]
    assert sorted(values(groups)) == [(0, 7), (1, 7), (2, 6)]
    assert sorted(values(tables)) == [(number,) for number in range(20)]
    assert sorted(values(pairs)) == [(601,), (701,), (701,)]


def test_a_barrier_stage_is_refused_by_the_method_and_by_spark_s_worker(spark, mesh):
    df = spark.range(0, 20, numPartitions=2)
    marked = df.mapInArrow(mesh.offload(_same_batches), "id long", barrier=True)

    with pytest.raises(ConfigError, match="barrier=True starts all tasks of a stage together"):
        mesh.map_in_pandas(df, _same_batches, "id long", barrier=True)
    assert "barrier=True starts all tasks of a stage together" in failure(marked.collect)
    in_spark = mesh.local().map_in_arrow(df, _same_batches, "id long", barrier=True)
    assert values(in_spark) == [(number,) for number in range(20)]


def _same_batches(batches):
    return batches


def _first_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"first": next(batches)["id"][:1]})


def test_two_functions_of_one_step_go_to_one_place(spark, mesh):
    df = spark.range(4)
    one, other = mesh.offload(where), replace(mesh, window=2).offload(where)

    assert [tuple(row) for row in df.select(one("id"), where("id")).collect()] == [("pool", "pool")] * 4
    text = failure(df.select(one("id"), other("id")).collect)

    assert "offloaded with different settings" in text
    assert "cache() between" in text


def test_an_error_has_class_text_line_and_place(spark, bridge):
    @F.pandas_udf("long")
    def broken(ids: pd.Series) -> pd.Series:
        if (ids == 7).any():
            raise ValueError("a seven")
        return ids

    def broken_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 7 in batch["id"].to_pylist():
                raise ValueError("a seven")
            yield batch

    df = spark.range(0, 10, numPartitions=2)

    for job in (
        df.select(bridge.offload(broken)("id")),
        df.mapInArrow(bridge.offload(broken_stream), "id long"),
    ):
        text = failure(job.collect)
        assert "ValueError: a seven" in text
        assert "test_offload.py" in text
        if bridge.engine == "mesh":
            assert "MeshTaskError" in text
            assert "partition 1" in text


def test_results_that_spark_refuses_are_refused_in_its_words(spark, mesh):
    wrong = mesh.group(spark.range(3), "id").apply_in_pandas(lambda frame: frame, "id long, missing long")

    assert "RESULT_COLUMN_NAMES_MISMATCH" in failure(wrong.collect)


def test_tasks_keep_their_options(spark, mesh, tmp_path):
    path = str(tmp_path / "tries")

    @task(retries=2)
    def flaky(number):
        if note(path, "try") < 2:
            raise RuntimeError("not yet")
        return number

    offloaded = mesh.offload(F.udf(flaky, "long", useArrow=True))
    found = spark.range(0, 3, numPartitions=1).select(offloaded("id")).collect()

    assert [row[0] for row in found] == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "told"),
    [({"errors": "null"}, "Spark's own functions have"), ({"dedupe": "result"}, "is for map_arrow")],
)
def test_what_only_the_bridge_s_own_forms_have_is_refused(mesh, change, told):
    with pytest.raises(ConfigError, match=told):
        replace(mesh, **change).offload(where)


@pytest.mark.parametrize(
    ("version", "is_new_enough"), [("4.2.3", False), ("4.3.0", True), ("5.0.0.dev1", True)]
)
def test_pyspark_has_to_be_new_enough(mesh, monkeypatch, version, is_new_enough):
    monkeypatch.setattr(pyspark, "__version__", version)

    if is_new_enough:
        assert mesh.offload(_plus).name.endswith("_plus")
    else:
        with pytest.raises(ConfigError, match=r"with PySpark 4\.3 or newer, and this is 4\.2\.3"):
            mesh.offload(_plus)


class Times:
    """A callable object."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, value: int) -> int:
        return self._number * value


@pytest.mark.parametrize(
    "function", [Times(3), functools.partial(operator.mul, 3)], ids=["object", "partial"]
)
def test_callables_without_a_name_are_offloaded(spark, mesh, function):
    for udf in (F.udf(function, "long", useArrow=True), UserDefinedFunction(function, LongType())):
        found = spark.range(3).select(mesh.offload(udf)("id")).collect()

        assert [row[0] for row in found] == [0, 3, 6]


def test_what_pools_cannot_add_to_is_refused_beside_an_offloaded_function_too(spark, mesh):
    total = spark.sparkContext.accumulator(0)

    @F.udf("long")
    def adds(number):
        total.add(1)
        return number

    plus = mesh.offload(F.udf(_plus, "long"))
    both = spark.range(3).select(plus("id"), adds("id"))

    assert "adds takes an accumulator along, and what pools add" in failure(both.collect)


def test_a_broadcast_variable_is_refused_where_a_setting_offloads_the_function(spark, address, conf):
    table = spark.sparkContext.broadcast({1: 2})
    conf["spark.taskmesh.address"] = address
    conf["spark.taskmesh.offload"] = "*"
    looked_up = F.udf(lambda number: table.value[number], "long")

    assert "takes a broadcast variable along, which only Spark's" in failure(
        spark.range(1).select(looked_up("id")).collect
    )


@pytest.mark.parametrize("thing", ["where", 7, str])
def test_only_functions_are_offloaded(mesh, thing):
    with pytest.raises(ConfigError, match=r"offload\(\) takes a function, or the result of udf\(\)"):
        mesh.offload(thing)


def test_a_profiler_is_refused(spark, mesh, conf):
    conf["spark.sql.pyspark.udf.profiler"] = "perf"

    assert "profiler would measure nothing" in failure(
        spark.range(1).select(mesh.offload(where)("id")).collect
    )


def test_functions_with_state_in_spark_s_store_are_refused(spark, mesh, tmp_path):
    from pyspark.sql.streaming.state import GroupStateTimeout

    def counted(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield from frames

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stateful = stream.groupBy("value").applyInPandasWithState(
        mesh.offload(counted), "value long", "n long", "append", GroupStateTimeout.NoTimeout
    )
    query = (
        stateful.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        with pytest.raises(Exception, match="keeps its state in Spark's state store"):
            query.awaitTermination(60)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("4.2.0", r"FunctionUnavailable: .*PySpark .*, this pool has 4.2.0"),
        ("", r"FunctionUnavailable: .*pyspark is missing: pip install 'pyspark-client=="),
    ],
)
def test_a_pool_without_spark_s_pyspark_says_what_it_lacks(spark, own_mesh, tmp_path, version, told):
    package = tmp_path / "pyspark"
    package.mkdir()
    text = f"__version__ = {version!r}" if version else "raise ModuleNotFoundError(name='pyspark')"
    (package / "__init__.py").write_text(text)
    (package / "worker.py").touch()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    own_mesh.programs.worker(own_mesh.address, PYTHONPATH=path)

    plus = MeshSpark(own_mesh.address).offload(F.udf(_plus, "long"))

    assert re.search(told, failure(spark.range(1).select(plus("id")).collect))


def _plus(number):
    return number + 1


def test_with_keys_and_signatures_too(spark, programs, tmp_path):
    keyed = Cluster.keyed(programs, Ring(tmp_path))
    bridge = MeshSpark(keyed.address, keys=keyed.client)
    df = spark.range(0, 20, numPartitions=2)

    found = bridge.map_in_arrow(df, lambda batches: batches, "id long")
    groups = bridge.group(df, "id").apply_in_arrow(lambda table: table, "id long")

    assert values(found) == [(number,) for number in range(20)]
    assert sorted(values(groups)) == [(number,) for number in range(20)]
    assert len(df.select(bridge.offload(F.udf(_plus, "long"))("id")).collect()) == 20


# --- one slot for a whole partition


def _counting(path: str, seconds: float) -> Any:
    """A function over a partition that notes each batch, waits, and numbers all rows."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in batches:
            note(path, batch["id"][0])
            threading.Event().wait(seconds)
            numbers = pa.array(range(before, before + batch.num_rows), pa.int64())
            before += batch.num_rows
            yield pa.record_batch({"id": batch["id"], "n": numbers})

    return counted


@pytest.fixture
def small_batches(conf) -> None:
    conf["spark.sql.execution.arrow.maxRecordsPerBatch"] = "10"


ROWS = 400


@pytest.fixture
def under_way(spark, own_mesh, tmp_path, small_batches) -> Job:
    """A stream of one partition through a pool of one slot; some of its batches are there."""
    journal = Journal(tmp_path)
    own_mesh.pool("one")
    df = spark.range(0, ROWS, numPartitions=1)
    counted = _counting(str(journal.path), 0.03)
    mapped = MeshSpark(own_mesh.address).map_in_arrow(df, counted, "id long, n long")
    job = Job(spark, lambda: [tuple(row) for row in mapped.collect()])
    wait_until(lambda: len(journal.lines) >= 10, 60, "batches are under way")
    return job


@pytest.mark.fault
def test_a_stream_whose_pool_dies_is_sent_again_by_spark(own_mesh, under_way):
    own_mesh.pools[0].kill()
    own_mesh.pool("two")

    assert under_way.result() == [(number, number) for number in range(ROWS)]
    assert under_way.failed_tasks == 1
    wait_until(lambda: not left(own_mesh.address), 20, "nothing is left")


@pytest.mark.fault
def test_a_stream_whose_slot_is_killed_says_by_what(spark, mesh):
    def run_out_of_memory(batches):
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    told = failure(mesh.map_in_arrow(spark.range(1), run_out_of_memory, "id long").collect)

    assert "its process ended with signal 9" in told
    assert "another slot has begun this stream anew" in told


@pytest.mark.fault
def test_a_stream_survives_its_hub(own_mesh, under_way):
    own_mesh.hub.kill()
    own_mesh.programs.hub(own_mesh.address)

    assert under_way.result() == [(number, number) for number in range(ROWS)]
    assert under_way.failed_tasks == 0


@pytest.mark.usefixtures("small_batches")
def test_results_come_while_rows_still_go(spark, mesh, tmp_path):
    path = str(tmp_path / "batches")

    def filled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:  # of which one fills the buffer of Spark's Python worker
            note(path, batch["id"][0])
            threading.Event().wait(0.05)
            yield pa.record_batch({"id": batch["id"], "text": ["x" * 10_000] * batch.num_rows})

    df = mesh.map_in_arrow(spark.range(0, 10 * ROWS, numPartitions=1), filled, "id long, text string")

    assert [row.id for row in df.limit(5).collect()] == [0, 1, 2, 3, 4]

    assert len(settled(Path(path))) < ROWS // 2, "the stream has not been computed to its end"


@pytest.mark.usefixtures("small_batches")
def test_a_function_may_want_no_more(spark, mesh, address):
    df = spark.range(0, 5000, numPartitions=2)

    found = mesh.map_in_arrow(df, _first_ids, "first long")

    assert values(found) == [(0,), (2500,)]
    wait_until(lambda: not left(address), 20, "nothing is left")
    with Mesh(address) as hub:
        wait_until(lambda: not hub.status()["sinks"], 20, "nor in a sink")


def test_the_slot_of_a_stream_lives_on(spark, mesh):
    def where_it_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)], "pid": [os.getpid()]})

    df = spark.range(0, 2, numPartitions=1)
    ((rows, pid),) = mesh.map_in_arrow(df, where_it_runs, "rows long, pid long").collect()

    wait_until(lambda: not left(mesh.address[0]), 20, "the task has ended")
    assert rows == 2
    assert psutil.pid_exists(pid)


@pytest.mark.usefixtures("small_batches")
def test_two_streams_of_one_stage_do_not_wait_for_each_other(spark, own_mesh, tmp_path):
    own_mesh.pool("one")
    bridge, journal = MeshSpark(own_mesh.address, window=1), Journal(tmp_path)
    first = bridge.map_in_arrow(
        spark.range(0, ROWS, numPartitions=2), _counting(str(journal.path), 0.0), "id long, n long"
    )
    second = bridge.map_in_arrow(first, _counting(str(journal.path), 0.0), "id long, n long")

    assert [row.id for row in Job(spark, second.collect).result()] == list(range(ROWS))


@pytest.mark.usefixtures("small_batches")
def test_many_streams_of_one_stage_leave_the_only_slot_to_what_they_wait_for(spark, own_mesh, tmp_path):
    """Eight took the slot and its permits, and waited for rows that stood behind them in the queue."""
    own_mesh.pool("one")
    bridge, journal = MeshSpark(own_mesh.address, window=1), Journal(tmp_path)
    plus_one = bridge.offload(F.udf(_plus_one_slowly, LongType(), useArrow=False))
    df = spark.range(0, ROWS, numPartitions=2).select(plus_one("id").alias("id"))
    for _ in range(4):
        df = bridge.map_in_arrow(df, _counting(str(journal.path), 0.0), "id long, n long")

    found = [row[0] for row in Job(spark, df.select(plus_one("id")).collect).result()]

    assert found == [number + 2 for number in range(ROWS)]


@pytest.fixture
def crowd(tmp_path):
    """A driver with six slots."""
    settings = {"master": "local[6]", "spark.python.daemon.module": "taskmesh.spark.daemon"}
    with driving(tmp_path, settings) as driver:
        yield driver


def test_three_steps_of_two_jobs_with_nested_tasks_end_on_the_only_slot(own_mesh, crowd):
    """Streams waited in all places of the pool for rows whose tasks were queued behind them."""
    own_mesh.pool("one")

    jobs = [crowd.start("crowded", address=own_mesh.address, slots=6) for _ in range(2)]

    assert [job.result(JOB_S) for job in jobs] == [0, 0]


def _plus_one_slowly(number):
    threading.Event().wait(0.005)
    return number + 1


def test_large_batches_stream_both_ways(spark, mesh):
    df = spark.range(0, 200, numPartitions=1).selectExpr("id", "repeat('x', 500000) as text")

    def sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in range(batch.num_rows):
                yield batch.slice(row, 1)

    found = mesh.map_in_arrow(df, sized, "id long, text string")

    assert found.selectExpr("sum(length(text))", "count(*)").collect()[0][:] == (100_000_000, 200)
