"""The examples in PySpark's own documentation of its Python functions run on a mesh, as they stand."""

import doctest
import importlib
import io
from collections.abc import Iterator

import pyspark.sql.functions
import pytest

from taskmesh import Mesh

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

MODULES = (
    "pyspark.sql.dataframe",
    "pyspark.sql.functions.builtin",
    "pyspark.sql.group",
    "pyspark.sql.pandas.functions",
    "pyspark.sql.pandas.group_ops",
    "pyspark.sql.udf",
    "pyspark.sql.udtf",
)
FUNCTIONS = ("udf(", "pandas_udf", "arrow_udf", "udtf", "mapIn", "applyIn")
WITHOUT_A_JOB = ("arrow_udtf",)
NOT_ON_A_MESH = ("applyInPandasWithState",)
REFUSED = "barrier=True"
"""Its tasks start together, and pools start what they have slots for: `test_offload.py` has the words."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def _documented() -> Iterator[doctest.DocTest]:
    for name in MODULES:
        for found in doctest.DocTestFinder().find(importlib.import_module(name), name):
            text = found.docstring or ""
            found.examples = [each for each in found.examples if REFUSED not in each.source]
            if found.examples and any(word in text for word in FUNCTIONS):
                yield found


EXAMPLES = {found.name: found for found in _documented() if not found.name.endswith(NOT_ON_A_MESH)}


@pytest.fixture
def all_offloaded(spark, address) -> Iterator[None]:
    """Every Python function of the session runs on the mesh."""
    entries = {"spark.taskmesh.offload": "*", "spark.taskmesh.address": address}
    for name, value in entries.items():
        spark.conf.set(name, value)
    yield
    for name in entries:
        spark.conf.unset(name)


def test_there_are_as_many_examples_as_the_page_says():
    examples = [each for found in EXAMPLES.values() for each in found.examples]

    assert sum(doctest.SKIP not in each.options for each in examples) == 266


@pytest.mark.usefixtures("all_offloaded")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(spark, address, name):
    example, report = EXAMPLES[name], io.StringIO()
    example.globs |= {"spark": spark, "sf": pyspark.sql.functions}
    with Mesh(address) as mesh:
        before = mesh.status()["finished"]
        outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.write)
        ran = mesh.status()["finished"] - before

    assert outcome.failed == 0, report.getvalue()
    assert ran > 0 or name.endswith(WITHOUT_A_JOB), "nothing has run on the mesh"
