"""The Spark program of the README runs as it stands and prints what its comments say."""

import re
import sys

import pytest

from tests.harness.program import ROOT, check_printed
from tests.harness.requirement import require_java
from tests.spark.conftest import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def test_the_program_of_the_readme_runs_as_pasted(address, tmp_path):
    require_java()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    settings = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.taskmesh.address={address} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }

    assert check_printed(program, tmp_path, env=settings, timeout=100)
