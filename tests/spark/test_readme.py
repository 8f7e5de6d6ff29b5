"""The Spark programs of README and tutorial run as they stand and print what the pages say."""

import sys

import pytest

from tests.harness.page import Reader, programs_of
from tests.harness.program import ROOT, check_printed
from tests.harness.requirement import require_java
from tests.spark.conftest import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


SETTINGS = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JAVA}


def test_the_program_of_the_readme_runs_as_pasted(address, tmp_path):
    require_java()
    program = programs_of((ROOT / "README.md").read_text(encoding="utf-8"))[1]
    settings = {**SETTINGS, "PYSPARK_SUBMIT_ARGS": f"--conf spark.taskmesh.address={address} pyspark-shell"}

    assert check_printed(program, tmp_path, env=settings, timeout=100)


def test_the_lesson_about_spark_can_be_followed_to_the_letter(programs):
    require_java()
    page = (ROOT / "docs/tutorial/spark-step.md").read_text(encoding="utf-8")

    assert Reader(programs, SETTINGS).follow(page) == 2
