"""Clients without the right key, functions that do not run, and secrets that Spark must not show."""

import importlib
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pyarrow as pa
import pyspark.cloudpickle
import pytest
from pyspark import Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql.functions import pandas_udf, udf

from taskmesh import Mesh, task
from taskmesh.client.port import settings as client_settings
from taskmesh.errors import ConfigError, HubUnreachable, SerializationError
from taskmesh.serialize.code import register_by_value
from taskmesh.spark import MeshRefused, MeshSpark
from taskmesh.spark.jobs.connection import mesh_of
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.drivers import settled
from tests.spark.jobs import Job, Timed, noting, within

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LIMIT_S = 10.0


@pytest.fixture
def keyed(programs, tmp_path):
    """A hub and a pool with keys, and signed tasks."""
    return Cluster.keyed(programs, Ring(tmp_path))


def _same(spark, bridge):
    return bridge.map_arrow(spark.range(0, 4, numPartitions=1), tasks.same, "id long")


def test_row_31_a_mesh_with_keys_serves_executors_that_have_them(spark, keyed):
    bridge = MeshSpark(keyed.address, keys=keyed.client)

    assert [row.id for row in _same(spark, bridge).collect()] == [0, 1, 2, 3]


def test_row_31_no_secret_is_in_plan_closure_error_or_event_log(spark, keyed):
    bridge = MeshSpark(keyed.address, keys=keyed.client)
    secrets = [
        token
        for path in Path(keyed.client).rglob("*.secret")
        for token in path.read_text().split()
        if len(token) >= 32
    ]
    df = _same(spark, bridge)
    assert df.count() == 4
    failing = Job(spark, bridge.map_arrow(spark.range(1), tasks.fail_as("plain"), "id long").collect)

    shown = [
        df._jdf.queryExecution().toString(),
        repr(bridge),
        str(pyspark.cloudpickle.dumps(bridge)),
        failing.failure(),
        wait_until(lambda: _logged(spark, failing.group), 20, "the failed job is in the event log"),
    ]

    assert secrets
    assert "ValueError: no good row" in shown[-1], "the log has the error's text, too"
    assert not [secret for secret in secrets for text in shown if secret in text]


def _logged(spark, group):
    """Spark's event log when the end of this group's job is in it: settings, plans, errors of tasks."""
    folder = urlsplit(spark.conf.get("spark.eventLog.dir")).path
    (path,) = (path for path in Path(folder).rglob(f"*{spark.sparkContext.applicationId}*") if path.is_file())
    text = path.read_text()
    events = [json.loads(line) for line in text.splitlines() if line.startswith('{"Event":"SparkListenerJob')]
    jobs = {event["Job ID"] for event in events if _group(event) == group}
    ended = {event["Job ID"] for event in events if event["Event"] == "SparkListenerJobEnd"}
    return text if jobs and jobs <= ended else ""


def _group(event):
    return (event.get("Properties") or {}).get("spark.jobGroup.id")


@pytest.fixture
def refusal(spark, keyed, tmp_path):
    """The error of a job whose keys are refused: MeshRefused, within its limits."""

    def told(keys):
        df = Timed(spark.range(0, 4, numPartitions=1), tmp_path / "seconds")
        refused = MeshSpark(keyed.address, keys=keys, connect_timeout=LIMIT_S)
        text = Job(spark, refused.map_arrow(df, tasks.same, "id long").collect).failure()
        assert "MeshRefused" in text
        within(LIMIT_S, df)
        return text

    return told


def test_row_15_and_31_a_key_that_nobody_authorized_is_refused_with_the_cure(spark, keyed, refusal):
    stranger = keyed.ring.peer("client", "mallory", authorized=False)

    assert "taskmesh keys authorize client" in refusal(stranger)
    found = _same(spark, MeshSpark(keyed.address, keys=keyed.client)).collect()
    assert [row.id for row in found] == [0, 1, 2, 3]


def test_row_15_the_key_of_another_hub_is_named(tmp_path, refusal):
    (tmp_path / "other").mkdir()
    other = Ring(tmp_path / "other").peer("client", "alice")

    assert "not the one in hub.public: copy that file anew" in refusal(other)


def test_a_python_worker_beyond_the_clients_of_its_hub_is_told_the_cure(spark, programs, tmp_path):
    programs.env["TASKMESH_MAX_CLIENTS"] = "1"
    keyed = Cluster.keyed(programs, Ring(tmp_path))
    bridge = MeshSpark(keyed.address, keys=keyed.client)
    with keyed.mesh() as mesh:
        assert mesh.submit(abs, -1).result(60) == 1
        text = Job(spark, _same(spark, bridge).collect).failure()

    assert "MeshRefused" in text
    assert "the hub has 1 clients and may have no more (hub.max_clients)" in text


def test_row_20_signed_results_are_shared_too(spark, keyed, tmp_path):
    bridge = MeshSpark(keyed.address, keys=keyed.client, dedupe="result")
    path = tmp_path / "calls"
    mapped = bridge.map_arrow(spark.range(0, 4, numPartitions=1), noting(str(path), 0.0), "id long")

    assert [row.id for row in mapped.collect()] == [row.id for row in mapped.collect()] == [0, 1, 2, 3]
    assert len(settled(path)) == 1


def test_row_31_a_pool_for_named_modules_runs_those_and_no_others(spark, own_mesh):
    own_mesh.pool("one", "--only-registered", "tests.spark.tasks")
    bridge = MeshSpark(own_mesh.address)

    assert [row.id for row in _same(spark, bridge).collect()] == [0, 1, 2, 3]
    by_value = bridge.map_arrow(spark.range(0, 4, numPartitions=1), lambda batch: batch, "id long")
    assert "a function that travels by value is not run here" in Job(spark, by_value.collect).failure()
    assert [row.id for row in _same(spark, bridge).collect()] == [0, 1, 2, 3]


def test_row_27_another_minor_version_of_python_is_refused_with_both(programs, monkeypatch):
    address = programs.hub(TASKMESH_HUB__VERSIONS="refuse")[1]
    monkeypatch.setattr(client_settings, "PYTHON", "3.9.1")

    with pytest.raises(MeshRefused, match=r"Python 3\.9 where the hub has 3\.\d+"):
        mesh_of(MeshSpark(address, connect_timeout=10.0))


def test_row_26_a_module_registered_by_value_travels(spark, mesh, tmp_path, monkeypatch):
    (tmp_path / "sent_along.py").write_text("def same(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("sent_along")
    register_by_value(module)
    try:
        found = mesh.map_arrow(spark.range(0, 4, numPartitions=1), module.same, "id long").collect()
    finally:
        del sys.modules["sent_along"]

    assert [row.id for row in found] == [0, 1, 2, 3]


def test_row_26_methods_travel_and_open_meshes_do_not(spark, mesh, address):
    class Model:
        def same(self, batch):
            return batch

    assert mesh.map_arrow(spark.range(0, 4), Model().same, "id long").count() == 4
    with Mesh(address) as open_mesh:

        def asks(batch):
            return open_mesh and batch

        with pytest.raises(Exception, match=r"open_mesh|Mesh"):
            mesh.map_arrow(spark.range(0, 4), asks, "id long")


def test_row_26_what_works_in_sparks_workers_only_is_refused_on_the_driver(spark, mesh):
    variable, total = spark.sparkContext.broadcast([1]), spark.sparkContext.accumulator(0)

    def reads(batch):
        return variable.value and batch

    def adds(item):
        total.add(item)

    def annotated(batch: Broadcast) -> Accumulator:
        return batch

    for bridge in (mesh, mesh.local()):
        with pytest.raises(SerializationError, match=r"a broadcast variable along, .* Take its value along"):
            bridge.map_arrow(spark.range(1), reads, "id long")
        with pytest.raises(SerializationError, match=r"an accumulator along, .* would be lost"):
            bridge.rdd(spark.sparkContext.parallelize([1])).foreach(adds)
    assert mesh.map_arrow(spark.range(4), annotated, "id long").count() == 4


def test_row_25_a_task_may_use_zeromq_itself(spark, mesh):
    def echo(batch):
        import zmq

        with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
            one.bind("inproc://echo")
            other.connect("inproc://echo")
            one.send(b"x")
            assert other.recv() == b"x"
        return batch

    assert mesh.map_arrow(spark.range(0, 8, numPartitions=2), echo, "id long").count() == 8


def test_row_25_a_client_that_was_refused_is_closed_when_another_takes_its_place(address):
    bridge = MeshSpark(address)
    first = mesh_of(bridge)
    before = threading.active_count()
    first._client.table.refuse(HubUnreachable("this key is authorized no more"))

    second = mesh_of(bridge)

    try:
        assert second.submit(len, "ab").result(20) == 2
        assert first._client.closed
        assert threading.active_count() == before
    finally:
        second.close()


def _typed(ids: pd.Series) -> pd.Series:
    return ids


def _mapped(schema):
    return lambda spark, mesh: mesh.map_arrow(spark.range(3), tasks.same, schema)


KEYED = task(key="one")(tasks.nothing.__wrapped__)
NO_FUNCTION = "a task is a function"
NO_COLUMNS = "schema has to be columns"
NOT_THE_FUNCTION = "takes a function, not"
REFUSED = {
    "a key": (lambda s, m: m.map_arrow(s.range(3), KEYED, "id long"), "key= cannot be run over partitions"),
    "a name": (lambda s, m: m.map_arrow(s.range(3), "same", "id long"), NO_FUNCTION),
    "no function": (lambda s, m: m.udf("int")(None)("id"), NO_FUNCTION),
    "a number": (lambda s, m: m.foreach_batch(7), NO_FUNCTION),
    "a name for an RDD": (lambda s, m: m.rdd(_rdd(s)).map("str"), NO_FUNCTION),
    "a list": (
        lambda s, m: m.map_arrow([1], tasks.same, "id long"),
        r"takes a Spark DataFrame, not a list; for RDDs there is rdd\(\)",
    ),
    "a list as an RDD": (lambda s, m: m.rdd([1, 2]), r"rdd\(\) takes an RDD"),
    "a format": (
        lambda s, m: m.map_batches(s.range(1), tasks.rows, "id long", format="csv"),
        "format has to be arrow, pandas or rows, not 'csv'",
    ),
    "a schema of one type": (_mapped("long"), NO_COLUMNS),
    "a schema of Arrow": (_mapped(pa.schema([("id", pa.int64())])), NO_COLUMNS),
    "no schema": (_mapped(None), NO_COLUMNS),
    "a column twice": (_mapped("id long, name string, id int"), "schema has two columns 'id'"),
    "nulls": (
        lambda s, m: replace(m, errors="null").map_arrow(s.range(3), tasks.frail, "id long, n int not null"),
        "column 'n' is declared NOT NULL",
    ),
    "nulls in an RDD": (lambda s, m: replace(m, errors="null").rdd(_rdd(s)), 'an RDD has "raise" only'),
    "nulls in a sink": (
        lambda s, m: replace(m, errors="null").foreach_batch(tasks.same),
        r'foreach_batch\(\) has "raise" only',
    ),
    "errors of a UDF": (
        lambda s, m: replace(m, errors="column").udf("int")(tasks.lengths),
        'errors="column" is for map_arrow',
    ),
    "rows of a UDF": (lambda s, m: m.udf("int", input="rows")(tasks.lengths), "input has to be"),
    "no column": (lambda s, m: m.udf("int")(tasks.lengths)(), "the UDF lengths takes at least one column"),
    "no parentheses": (
        lambda s, m: m.udf(_typed),
        r"not _typed\. Write @mesh\.udf\('double'\).* with parentheses",
    ),
    "Spark's UDF": (lambda s, m: m.udf("long")(udf(_typed, "long")), NOT_THE_FUNCTION),
    "a pandas UDF": (lambda s, m: m.udf("long")(pandas_udf(_typed, "long")), NOT_THE_FUNCTION),
    "a mesh's UDF": (lambda s, m: m.udf("long")(m.udf("long")(_typed)), NOT_THE_FUNCTION),
    "a UDF's chunksize": (lambda s, m: m.udf("int", chunksize=0), "chunksize has to be"),
    "an RDD's chunksize": (lambda s, m: m.rdd(_rdd(s)).map(str, chunksize=0), "chunksize has to be"),
}


def _rdd(spark):
    return spark.sparkContext.parallelize([1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_on_the_driver(spark, mesh, name):
    call, words = REFUSED[name]

    with pytest.raises(ConfigError, match=words):
        call(spark, mesh)


def test_a_second_column_of_errors_is_refused_on_the_driver(spark, mesh):
    bridge = replace(mesh, errors="column")
    first = bridge.map_arrow(spark.range(4), tasks.same, "id long")

    with pytest.raises(ConfigError, match="adds '_mesh_error', which the schema has already"):
        bridge.map_arrow(first, tasks.same, first.schema)
    assert bridge.map_arrow(first.drop("_mesh_error"), tasks.same, "id long").count() == 4
