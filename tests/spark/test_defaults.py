"""Jobs with default settings on a real mesh: sizes of pieces, tries, shared results, limits."""

import threading
from dataclasses import replace

import pytest

from taskmesh.errors import ConfigError
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.drivers import settled
from tests.spark.jobs import Job, left, note, noting

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROWS = 60_000
BATCHES = 6
"""As which Spark hands the rows over, 10,000 in each."""


@pytest.fixture
def path(tmp_path):
    """Of a file that tasks note their calls in."""
    return tmp_path / "calls"


def _into_nothing(df) -> None:
    df.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("where", ["mesh", "local"])
@pytest.mark.parametrize("form", ["map_arrow", "udf"])
def test_a_call_that_costs_60_ms_gets_sparks_whole_batches(spark, mesh, form, where):
    """A: pieces shrank to one row a call, 400 times as long as plain Spark."""
    bridge = (mesh if where == "mesh" else mesh.local()).counting(spark)
    df = spark.range(0, ROWS, numPartitions=1)

    def costly(rows):
        threading.Event().wait(0.06)
        return rows

    column = bridge.udf("long")(costly)
    out = bridge.map_arrow(df, costly, "id long") if form == "map_arrow" else df.select(column("id"))

    _into_nothing(out)  # finds out, and starts what pools load first
    cold = bridge.counts.value.pieces
    _into_nothing(out)

    assert cold <= 60
    assert bridge.counts.value.pieces - cold <= BATCHES + 4
    assert bridge.counts.value.rows_in == 2 * ROWS


def test_a_udf_has_a_number_of_rows_too(spark, mesh):
    """A: there was no cure for a UDF."""
    bridge = mesh.counting(spark)
    lengths = bridge.udf("int", chunksize=500)(tasks.lengths)

    texts = spark.range(0, 2_000, numPartitions=1).selectExpr("string(id) as text")
    found = texts.select(lengths("text"))

    assert sum(row[0] for row in found.collect()) == sum(len(str(number)) for number in range(2_000))
    assert bridge.counts.value.pieces == 4


@pytest.mark.parametrize(
    ("settings", "calls"),
    [({}, 2), ({"remember_errors": 1}, 1), ({"remember_errors": 3}, 3), ({"remember_errors": 0}, 3)],
)
def test_row_10_a_failure_is_remembered_after_as_many_tries_as_asked_for(spark, mesh, path, settings, calls):
    """C: the first failure was remembered, so that Spark's tries could not help. A task has three here."""
    file = str(path)

    def fails(batch):
        note(file, "call")
        raise RuntimeError("no good row")

    bridge = replace(mesh, **settings)
    job = Job(spark, bridge.map_arrow(spark.range(0, 3, numPartitions=1), fails, "id long").collect)

    assert "RuntimeError: no good row" in job.failure()
    assert job.failed_tasks == 3
    assert len(settled(path)) == calls


def test_with_shared_results_a_failing_piece_is_tried_again_and_no_other(spark, mesh, path):
    """C: what failed once was told to all jobs for ten minutes."""
    file = str(path)

    def busy_once(batch):
        first = batch["id"][0].as_py()
        if note(file, first) == 0 and first == 20:
            raise RuntimeError("CUDA out of memory")
        return batch

    bridge = replace(mesh, dedupe="result")
    df = bridge.map_arrow(spark.range(0, 40, numPartitions=1), busy_once, "id long", chunksize=10)

    assert [row.id for row in df.collect()] == list(range(40))
    assert sorted(map(int, settled(path))) in ([0, 10, 20, 20, 30], [0, 10, 20, 20, 30, 30])


@pytest.mark.parametrize("form", ["map_arrow", "udf", "rows"])
def test_row_20_equal_rows_make_equal_pieces_where_results_are_shared(spark, mesh, path, form):
    """D: pieces were cut by the measured sizer, and 3,284 of 4,000 rows were computed again."""
    file = str(path)
    bridge = replace(mesh, dedupe="result")
    df = spark.range(0, 4_000, numPartitions=2)

    def slowly(rows):
        note(file, "call")
        threading.Event().wait(0.0002 * len(rows))
        return rows

    def batches(batch):
        slowly(batch["id"])
        return batch

    column = bridge.udf("long")(slowly)
    out = {
        "map_arrow": lambda: bridge.map_arrow(df, batches, "id long"),
        "rows": lambda: bridge.map_batches(df, slowly, "id long", format="rows"),
        "udf": lambda: df.select(column("id").alias("id")),
    }[form]()

    first = [row.id for row in out.collect()]
    computed = len(settled(path))
    second = [row.id for row in out.collect()]

    assert first == second == list(range(4_000))
    assert computed == 2, "a partition has as many rows as a piece"
    assert len(settled(path)) == computed


@pytest.mark.parametrize("where", ["mesh", "local"])
def test_row_22_a_limit_computes_no_more_than_a_window(spark, mesh, address, path, where):
    """E: 4,867 to 8,968 rows of 40,000 were computed, and more after the action had returned."""
    file = str(path)
    bridge = replace(mesh, engine=where)

    def slow(batch):
        threading.Event().wait(0.002 * batch.num_rows)
        note(file, f"{batch['id'][0]} {batch.num_rows}")
        return batch

    found = bridge.map_arrow(spark.range(0, 40_000), slow, "id long").limit(5).collect()

    assert len(found) == 5
    wait_until(lambda: not left(address), 20, "nothing is under way")
    rows = sum(int(line.split()[1]) for line in settled(path))
    assert rows <= 1_024, "a window of four times the 256 rows that a first one used to have"


@pytest.mark.parametrize("action", ["limit", "show", "first"])
def test_row_22_of_a_million_rows_less_than_two_windows_of_batches_are_computed(
    spark, mesh, address, path, action
):
    mapped = mesh.map_arrow(spark.range(0, 1_000_000, numPartitions=2), noting(str(path), 0.1), "id long")

    actions = {
        "limit": lambda: mapped.limit(5).collect(),
        "show": lambda: mapped.show(5),
        "first": mapped.first,
    }
    actions[action]()

    wait_until(lambda: not left(address), 20, "nothing is under way")
    assert 1 <= len(settled(path)) < 2 * mesh.window


def test_a_udf_that_is_deterministic_lets_filters_through(spark, mesh, tmp_path):
    """G: a filter on a table's partitions stood above the UDF, so the whole table was read and sent."""
    table = str(tmp_path / "table")
    spark.range(0, 20).selectExpr("id", "id % 4 as p").write.partitionBy("p").parquet(table)

    def plan(**options):
        scored = mesh.udf("long", **options)(_same)
        df = spark.read.parquet(table).withColumn("y", scored("id")).where("p = 3")
        assert sorted(row.y for row in df.collect()) == [3, 7, 11, 15, 19]
        return df._jdf.queryExecution().executedPlan().toString()

    assert "PartitionFilters: []" in plan()
    assert "PartitionFilters: [isnotnull(p" in plan(deterministic=True)


def _same(ids):
    return ids


def test_a_udf_is_registered_by_sparks_own_call_too(spark, mesh):
    """I: SESSION_OR_CONTEXT_NOT_EXISTS when the query ran."""
    spark.udf.register("mesh_same", mesh.udf("long")(_same))

    assert [row[0] for row in spark.sql("select mesh_same(id) from range(3)").collect()] == [0, 1, 2]


def test_a_sink_on_connect_needs_a_name(mesh):
    """I: the deliveries of all streams had the query ""."""
    remote = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()

    with pytest.raises(ConfigError, match=r"Write foreach_batch\(f, query='orders'\)"):
        mesh.foreach_batch(tasks.same)(remote, 0)
