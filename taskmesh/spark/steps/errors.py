"""The errors between Spark and a mesh. Spark keeps only the text of an exception, so the text is complete."""

from __future__ import annotations

from taskmesh.errors import HubUnreachable, MeshRefused, SerializationError, TaskError, TaskMeshError

__all__ = [
    "MeshGatewayLost",
    "MeshRefused",
    "MeshSchemaError",
    "MeshTaskError",
    "NoMeshWorkers",
    "SparkMissing",
]


class SparkMissing(TaskMeshError, ImportError):
    """PySpark or PyArrow is not installed here."""


class MeshTaskError(TaskError):
    """A batch's task failed; the text holds its exception, the worker's traceback and where in the job."""


class MeshSchemaError(SerializationError):
    """A task's return value does not fit the declared schema; names the column, and both types."""


class NoMeshWorkers(TaskError):
    """For longer than `no_worker_timeout` no pool served the task's queue and tags."""


class MeshGatewayLost(HubUnreachable):
    """The hub was away for longer than `gateway_timeout`."""
