"""The Spark bridge: steps of a Spark job run on taskmesh pools. Needs the extra `spark`.

The names are loaded when they are first used: pools import `taskmesh.spark.steps.step`, and have no PySpark.
"""

from __future__ import annotations

from importlib import import_module

from taskmesh.errors import missing_extra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from taskmesh.spark.jobs.mesh_spark import MeshSpark
    from taskmesh.spark.steps.errors import (
        MeshGatewayLost,
        MeshRefused,
        MeshSchemaError,
        MeshTaskError,
        NoMeshWorkers,
        SparkMissing,
    )
    from taskmesh.spark.steps.step import Delivery

__all__ = [
    "Delivery",
    "MeshGatewayLost",
    "MeshRefused",
    "MeshSchemaError",
    "MeshSpark",
    "MeshTaskError",
    "NoMeshWorkers",
    "SparkMissing",
]
_MODULES = {"Delivery": "steps.step", "MeshSpark": "jobs.mesh_spark"}


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    errors = import_module("taskmesh.spark.steps.errors")
    if name not in _MODULES:
        return getattr(errors, name)
    try:
        return getattr(import_module(f"taskmesh.spark.{_MODULES[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name not in {"pyspark", "pyarrow"}:
            raise
        name = "PySpark 4.1 or newer" if missing.name == "pyspark" else missing.name
        raise errors.SparkMissing(missing_extra("the Spark bridge", name, "spark")) from missing
