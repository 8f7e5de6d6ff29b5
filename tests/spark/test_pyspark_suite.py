"""PySpark's own tests, out of the wheel that is installed, with all functions on a mesh.

`pytest tests/spark/test_pyspark_suite.py -m nightly -k test_udf` runs one file, `make test-pyspark` all.
A test may fail only if `pyspark_refused.txt` names it, below a reason. One that is named there and passes
fails the run.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from taskmesh import Mesh
from tests.harness.programs import Programs, shared
from tests.harness.refused import refused_tests
from tests.harness.requirement import require_java
from tests.spark.drivers import spark_environment

TEST_S = 900
"""Seconds of a test: `head()` a hundred times ends as many of Spark's workers, which takes six minutes
without a mesh, too, when two cores are busy. A time-out leaves its session broken for the tests after it."""
FILE_S = 7200
pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(FILE_S + 300)]

HOME = Path(pyspark.__file__).parent
REFUSED = Path(__file__).with_name("pyspark_refused.txt")
BOTH = {
    "": ("udf", "udtf", "udf_combinations", "unified_udf"),
    "arrow/": (
        *("arrow_map", "arrow_grouped_map", "arrow_cogrouped_map", "arrow_python_udf", "arrow_udf"),
        *("arrow_udf_scalar", "arrow_udf_grouped_agg", "arrow_udf_window", "arrow_udtf"),
    ),
    "pandas/": (
        *("pandas_map", "pandas_grouped_map", "pandas_cogrouped_map", "pandas_udf", "pandas_udf_scalar"),
        *("pandas_udf_grouped_agg", "pandas_udf_window"),
    ),
}
"""Files that there are for a classic session and for Connect."""
CLASSIC = (
    "sql/tests/arrow/test_arrow_udf_typehints",
    "sql/tests/pandas/test_pandas_udf_typehints",
    "sql/tests/pandas/test_pandas_udf_typehints_with_future_annotations",
    "sql/tests/pandas/test_pipelined_udf",
)
NOT_OFFLOADED = (
    *("tests/test_taskcontext", "tests/test_broadcast", "tests/test_rdd"),
    "sql/tests/streaming/test_streaming_foreach_batch",
    "sql/tests/connect/streaming/test_parity_foreach_batch",
)
"""Functions over RDDs and of foreachBatch() are not offloaded: these show that Spark still runs them."""


def _files() -> Iterator[str]:
    for folder, names in BOTH.items():
        for name in names:
            yield f"sql/tests/{folder}test_{name}"
            yield f"sql/tests/connect/{folder}test_parity_{name}"
    yield from CLASSIC
    yield from NOT_OFFLOADED


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    """A folder with PySpark and its tests, as the wheel has them."""
    require_java()
    folder = tmp_path_factory.mktemp("pyspark")
    with zipfile.ZipFile(HOME / "python" / "lib" / "pyspark.zip") as packed:
        packed.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory, suite) -> Iterator[str]:
    """A mesh of a pool of two slots, which has the tests' modules."""
    programs: Iterator[Programs] = shared(tmp_path_factory.mktemp("mesh"))
    found = next(programs)
    address = found.hub()[1]
    found.worker(address, slots=2, **_of_suite(suite))
    yield address
    next(programs, None)


def _of_suite(suite: Path) -> dict[str, str]:
    """Variables of programs that import the tests, whose modules look for Spark when they are loaded."""
    py4j = next((HOME / "python" / "lib").glob("py4j-*.zip"))
    own = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": os.pathsep.join(map(str, (suite, py4j, own))), "SPARK_HOME": str(HOME)}


@pytest.mark.parametrize("name", list(_files()))
def test_a_file_of_pyspark_s_tests_passes_on_a_mesh(tmp_path, suite, hub, name):
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.python.daemon.module taskmesh.spark.daemon\n"
        f"spark.taskmesh.address {hub}\n"
        "spark.taskmesh.offload *\n"
        "spark.ui.enabled false\n"
        "spark.driver.host 127.0.0.1\n"
        "spark.sql.shuffle.partitions 4\n"
    )
    report = tmp_path / "report.xml"
    before = _finished(hub)

    options = ("-v", "-c", os.devnull, "--rootdir", str(suite), "-p", "no:cacheprovider", "-p", "no:warnings")
    line = (sys.executable, "-m", "pytest", *options, f"--timeout={TEST_S}", f"--junitxml={report}")
    output = tmp_path / "output"
    with output.open("wb") as written:
        subprocess.run(
            [*line, str(suite / "pyspark" / f"{name}.py")],
            cwd=tmp_path,
            env={**spark_environment(), **_of_suite(suite), "SPARK_CONF_DIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            timeout=FILE_S,
            check=False,
        )

    assert report.exists(), output.read_text()[-4000:]
    outcomes = _outcomes(report)
    refused = {
        each.pattern: [test for test in outcomes if each.names(f"{name}::{test}")]
        for each in refused_tests(REFUSED)
        if each.is_about(name)
    }
    failed = [test for test, text in outcomes.items() if text]
    named = [test for tests in refused.values() for test in tests]
    told = f"{name}: {len(outcomes)} ran, {len(failed)} failed, {_finished(hub) - before} tasks\n"
    sys.stderr.write(told)
    assert not [f"{test}\n{outcomes[test]}" for test in failed if test not in named]
    assert not [test for test in named if test not in failed], "these pass: take them off the list"
    assert not [each for each, tests in refused.items() if not tests], "there are no such tests"
    assert _finished(hub) > before or name in NOT_OFFLOADED, "nothing has run on the mesh"


def _finished(address: str) -> int:
    with Mesh(address) as mesh:
        return int(mesh.status()["finished"])


def _outcomes(report: Path) -> dict[str, str]:
    """Tests that were not skipped, with the ends of the errors of each, empty if it passed."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  we have just written it
        if case.find("skipped") is None:
            errors = [
                each.text or each.get("message", "") for each in case if each.tag in {"failure", "error"}
            ]
            test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            found[test] = found.get(test, "") + "".join(f"error: {text[-1500:]}" for text in errors)
    return found
