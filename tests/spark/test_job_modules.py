"""Modules that addPyFile(), addArtifact() and --py-files bring to Spark's Python workers, in slots."""

import importlib
import os
import sys
import typing
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from taskmesh.serialize import code
from taskmesh.spark.evaluation import job_modules
from taskmesh.spark.evaluation.job_modules import JobModules
from tests.spark.jobs import values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def _zip(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def _jobs(*pairs: tuple[str, str]) -> JobModules:
    return JobModules(tuple((name, text.encode()) for name, text in pairs))


def test_steps_of_a_job_import_the_modules_that_it_brings(spark, mesh, tmp_path):
    path = tmp_path / "brought_file.py"
    path.write_text("def plus(number):\n    return number + 1\n")
    packed = _zip(
        tmp_path / "brought_packed.zip",
        {
            "brought_package/__init__.py": "",
            "brought_package/sums.py": "import brought_file\nplus = brought_file.plus\n",
        },
    )
    for each in (path, packed):
        spark.sparkContext.addPyFile(str(each))

    @F.udf("long")
    def plus(number):
        import brought_file

        return brought_file.plus(number)

    def plus_each(batches):
        from brought_package import sums

        for batch in batches:
            yield pa.record_batch({"id": pa.array(map(sums.plus, batch["id"].to_pylist()), pa.int64())})

    of_module = F.udf(importlib.import_module("brought_package.sums").plus, "long")
    first = spark.range(0, 6, numPartitions=2).select(mesh.offload(plus)("id").alias("id"))
    second = mesh.map_in_arrow(first, plus_each, "id long")

    found = second.select(mesh.offload(of_module)("id"))

    assert sorted(values(found)) == [(number,) for number in range(3, 9)]


def test_a_module_that_comes_later_is_there_in_the_next_job(spark, mesh, tmp_path):
    @F.udf("string")
    def found(_):
        try:
            from brought_later import NAME
        except ModuleNotFoundError:
            return "none"
        return NAME

    df = spark.range(1).select(mesh.offload(found)("id"))
    before = df.first()[0]
    (tmp_path / "brought_later.py").write_text("NAME = 'later'\n")
    spark.sparkContext.addPyFile(str(tmp_path / "brought_later.py"))

    assert (before, df.first()[0]) == ("none", "later")


def test_modules_of_two_jobs_with_the_same_name_are_two(tmp_path):
    zipped = _zip(
        tmp_path / "other.zip",
        {"alike.py": "NAME = 'two'"},
    )
    one, two = _jobs(("alike.py", "NAME = 'one'")), JobModules((("other.zip", zipped.read_bytes()),))
    path = list(sys.path)

    seen = []
    for jobs in (one, two, one, two):
        with jobs.importable():
            seen.append(importlib.import_module("alike"))

    assert [module.NAME for module in seen] == ["one", "two", "one", "two"]
    assert seen[0] is seen[2], "a job's module is imported once, and keeps its state"
    assert seen[1] is seen[3]
    assert sys.path == path
    assert "alike" not in sys.modules


def test_packages_of_two_jobs_without_an_init_are_two(tmp_path):
    jobs = []
    for name in ("one", "two"):
        files = {"shared_space/": "", "shared_space/name.py": f"NAME = '{name}'"}
        packed = _zip(tmp_path / "spaced.zip", files)
        jobs.append(JobModules((("spaced.zip", packed.read_bytes()),)))

    seen = []
    for each in (*jobs, *jobs):
        with each.importable():
            from shared_space import name

            seen.append(name)

    assert [module.NAME for module in seen] == ["one", "two", "one", "two"]
    assert seen[0] is seen[2]
    assert not [each for each in sys.modules if each.startswith("shared_space")]


def test_a_module_of_the_pool_with_the_same_name_is_back_after_the_job_s(monkeypatch, tmp_path):
    (tmp_path / "of_pool.py").write_text("NAME = 'pool'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_pool", raising=False)
    own = importlib.import_module("of_pool")

    with _jobs(("of_pool.py", "NAME = 'job'")).importable():
        assert importlib.import_module("of_pool").NAME == "job"

    assert sys.modules["of_pool"] is own


def test_what_pyspark_and_the_bridge_have_loaded_stays_as_in_spark_s_workers(tmp_path):
    packed = _zip(tmp_path / "b.zip", {"pyarrow/__init__.py": "", "typing.py": "", "README.md": ""})
    jobs = JobModules((("b.zip", packed.read_bytes()), ("c.jar", b"no zip file")))

    with jobs.importable():
        assert importlib.import_module("pyarrow") is pa
        assert importlib.import_module("typing") is typing


def test_the_files_are_gone_with_the_job_s_modules(monkeypatch, tmp_path):
    monkeypatch.setattr(job_modules.tempfile, "tempdir", str(tmp_path))
    jobs = _jobs(("short_lived.py", ""))
    assert len(list(tmp_path.iterdir())) == 1

    del jobs

    assert not os.listdir(tmp_path)


def test_a_pool_for_registered_modules_takes_none_of_a_job_s(monkeypatch):
    monkeypatch.setattr(code, "_allowed", ["brought_by_job"])

    with _jobs(("brought_by_job.py", "")).importable(), pytest.raises(ModuleNotFoundError):
        importlib.import_module("brought_by_job")
