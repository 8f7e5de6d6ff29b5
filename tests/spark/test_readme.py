"""README and the tutorial's lesson about Spark are followed as they stand, and print what the pages say."""

import sys

import pytest

from tests.examples.first_hour import SPARK
from tests.harness.page import Reader
from tests.harness.program import ROOT
from tests.harness.requirement import require_java
from tests.spark.conftest import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SETTINGS = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JAVA}


def test_the_readme_can_be_followed_to_the_letter(programs):
    require_java()

    assert (
        Reader(programs, {**SETTINGS, **SPARK}).follow((ROOT / "README.md").read_text(encoding="utf-8")) == 3
    )


def test_the_lesson_about_spark_can_be_followed_to_the_letter(programs):
    require_java()
    page = (ROOT / "docs/tutorial/spark-step.md").read_text(encoding="utf-8")

    assert Reader(programs, SETTINGS).follow(page) == 2
