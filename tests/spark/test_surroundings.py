"""The surroundings of one of Spark's own functions in a slot: Spark task, zone, variables, hashes, files."""

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import ArrayType, DoubleType, UserDefinedType

from taskmesh import Mesh
from taskmesh.errors import ConfigError, FunctionUnavailable
from taskmesh.spark import MeshSpark
from taskmesh.spark.evaluation import evaluation
from taskmesh.spark.evaluation.evaluation import running
from taskmesh.spark.evaluation.piece import EvaluationContext
from taskmesh.spark.jobs.connection import mesh_of
from tests.spark.jobs import failure, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_function_sees_its_spark_task(spark, bridge):
    @F.udf("string")
    def place(_):
        from pyspark import TaskContext

        found: Any = TaskContext.get()
        return f"{found.partitionId()} {found.attemptNumber()} {found.stageId() >= 0} {found.cpuAmount()}"

    df = spark.range(0, 4, numPartitions=2)

    assert [row[0] for row in df.select(bridge.offload(place)("id")).collect()] == ["0 0 True 1"] * 2 + [
        "1 0 True 1"
    ] * 2


def test_a_function_that_asks_its_spark_task_for_more_finds_nothing(spark, mesh):
    @F.udf("string")
    def more(_):
        from pyspark import TaskContext

        found: Any = TaskContext.get()
        return f"{found.getLocalProperty('user')} {found.resources()}"

    assert spark.range(1).select(mesh.offload(more)("id")).first()[0] == "None {}"


def test_files_that_spark_brings_to_executors_are_refused(spark, mesh, tmp_path):
    (tmp_path / "words").write_text("hello")
    spark.sparkContext.addFile(str(tmp_path / "words"))

    @F.udf("string")
    def read(_):
        return Path(SparkFiles.get("words")).read_text()

    assert spark.range(1).select(read("id")).first()[0] == "hello"
    assert "ConfigError: files that addFile() or addArtifact() brings" in failure(
        spark.range(1).select(mesh.offload(read)("id")).collect
    )


def test_the_variables_of_spark_s_conf_are_set_while_a_function_runs(spark, own_mesh):
    own_mesh.pool("one")

    @F.udf("string")
    def variables(_):
        return f"{os.environ.get('MODEL_NAME')} {os.environ['HOME']}"

    offloaded = MeshSpark(own_mesh.address).offload(variables)
    home = os.environ["HOME"]

    assert spark.range(1).select(variables("id")).first()[0] == "small /of/executors"
    assert spark.range(1).select(offloaded("id")).first()[0] == f"small {home}", "a pool has its own"
    with Mesh(own_mesh.address) as mesh:
        assert mesh.submit(os.environ.get, "MODEL_NAME").result(20) is None


@pytest.fixture
def number(monkeypatch):
    """A class whose Spark type is of the job's own code: this module has both here, and nowhere else."""

    class Doubled(UserDefinedType):
        @classmethod
        def sqlType(cls):  # noqa: N802  Spark's name
            return DoubleType()

        @classmethod
        def module(cls):
            return __name__

        def serialize(self, number):
            return 2 * number.value

        def deserialize(self, stored):
            return Number(stored / 2)

    class Number:
        __UDT__ = Doubled()

        def __init__(self, value):
            self.value = value

    monkeypatch.setattr(sys.modules[__name__], "Doubled", Doubled, raising=False)
    return Number


@pytest.mark.parametrize("has_arrow", [True, False])
def test_types_of_the_job_s_own_code_travel(spark, mesh, number, has_arrow):
    made = F.udf(lambda value: [number(float(value))], ArrayType(number.__UDT__), useArrow=has_arrow)

    found = spark.range(3).select(mesh.offload(made)("id").alias("numbers"))

    assert [row.numbers[0].value for row in found.collect()] == [0.0, 1.0, 2.0]


def test_a_type_of_spark_s_jvm_whose_module_lacks_its_class_on_pools_travels(spark, mesh):
    class Named(VectorUDT):
        @classmethod
        def module(cls):
            return "tests.spark"

    made = F.udf(lambda number: Vectors.dense([number, 1.0]), Named())

    found = spark.range(2).select(mesh.offload(made)("id").alias("vector"))

    assert [row.vector for row in found.collect()] == [Vectors.dense([n, 1.0]) for n in (0.0, 1.0)]


@pytest.mark.parametrize("form", ["udf", "stream"])
def test_what_functions_log_is_in_spark_s_table_of_it(spark, mesh, conf, form):
    conf["spark.sql.pyspark.worker.logging.enabled"] = "true"

    def tell(number):
        logging.getLogger("model").warning("%s %d", form, number)
        sys.stdout.write(f"{form} printed {number}\n")
        return number

    def tell_each(batches):
        for batch in batches:
            tell(batch["id"][0].as_py())
            yield batch

    df = spark.range(0, 3, numPartitions=3)
    if form == "udf":
        assert len(df.select(mesh.offload(F.udf(tell, "long"))("id")).collect()) == 3
    else:
        assert len(mesh.map_in_arrow(df, tell_each, "id long").collect()) == 3

    logs = (
        spark.tvf.python_worker_logs().select("level", "msg", "logger").where(F.col("msg").startswith(form))
    )
    warned = [("WARNING", f"{form} {number}", "model") for number in range(3)]
    printed = [("INFO", f"{form} printed {number}", "stdout") for number in range(3)]
    assert sorted(values(logs)) == sorted(warned + printed)


def test_a_traceback_has_the_local_variables_of_the_function_if_spark_wants_them(spark, mesh, conf):
    conf["spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"] = "true"

    def fail(number):
        marker = number + 41
        raise ValueError(marker > 0)

    assert "marker = 41" in failure(spark.range(1).select(mesh.offload(F.udf(fail, "long"))("id")).collect)


@pytest.fixture
def spread(own_mesh):
    """A mesh of three pools of a slot, each with another seed of hashes in its environment."""
    for seed in ("random", "7", ""):
        own_mesh.programs.env["PYTHONHASHSEED"] = seed
        own_mesh.pool(f"seed-{seed}")
    return MeshSpark(own_mesh.address)


def test_text_hashes_alike_in_all_pools_and_in_spark(spark, spread):
    @F.udf("string")
    def bucket(key):
        name = f"customer-{key}"
        return f"{hash(name) % 1000} {','.join({name, 'eu', 'b2b', 'new'})}"

    df = spark.range(0, 60, numPartitions=6).select((F.col("id") % 5).alias("k"))
    seen = df.select(spread.offload(F.udf(lambda _: os.getpid(), "long"))("k")).distinct().count()

    assert seen > 1
    assert df.select("k", spread.offload(bucket)("k")).distinct().count() == 5
    assert sorted(values(df.select(spread.offload(bucket)("k")))) == sorted(values(df.select(bucket("k"))))


def test_spark_workers_that_hash_otherwise_than_slots_are_refused(mesh, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")

    with pytest.raises(ConfigError, match="Spark's Python workers have PYTHONHASHSEED=7, and slots have 0"):
        mesh_of(mesh)


def _seen_and_given(at):
    return str(at), at


@pytest.mark.parametrize("has_arrow", [True, False])
def test_times_are_those_of_spark_s_workers_whatever_zone_a_pool_is_in(spark, own_mesh, has_arrow):
    own_mesh.programs.worker(own_mesh.address, TZ="Asia/Kolkata")
    both = F.udf(_seen_and_given, "seen string, given timestamp", useArrow=has_arrow)
    df = spark.sql("select timestamp'2024-03-10 01:30:00' as at")

    expected = df.select(both("at")).collect()

    assert df.select(MeshSpark(own_mesh.address).offload(both)("at")).collect() == expected


def test_a_zone_that_a_pool_does_not_know_is_named():
    before = time.tzname
    context = EvaluationContext(zone="Mars/Olympus", zone_offsets=(0, -3600))  # as London's

    told = "does not know Mars/Olympus, the time zone of Spark"
    with pytest.raises(FunctionUnavailable, match=told), running(context):
        pass

    assert time.tzname == before


def test_the_zone_of_a_host_without_a_link_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv("TZ", raising=False)
    for name, content, found in (("none", None, "UTC0"), ("file", b"TZif2...\nIST-5:30\n", "IST-5:30")):
        path = tmp_path / name
        if content:
            path.write_bytes(content)
        monkeypatch.setattr(evaluation, "LOCALTIME", path)
        assert evaluation.local_zone() == found
    link = tmp_path / "link"
    link.symlink_to("/usr/share/zoneinfo/Asia/Kolkata")
    monkeypatch.setattr(evaluation, "LOCALTIME", link)
    assert evaluation.local_zone() == "Asia/Kolkata"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert evaluation.local_zone() == "Asia/Tokyo"
