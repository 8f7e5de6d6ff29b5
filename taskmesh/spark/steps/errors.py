"""What goes wrong between Spark and a mesh. Spark keeps an exception's text alone, so that holds it all."""

from __future__ import annotations

from taskmesh.errors import HubUnreachable, SerializationError, TaskError, TaskMeshError


class SparkMissing(TaskMeshError, ImportError):
    """PySpark or PyArrow is not installed here."""


class MeshTaskError(TaskError):
    """A batch's task failed; the text holds its exception, the worker's traceback and where in the job."""


class MeshSchemaError(SerializationError):
    """What a task returned does not fit the declared schema; names column, expected and got."""


class NoMeshWorkers(TaskError):
    """For longer than `no_worker_timeout` no pool served the task's queue and tags."""


class MeshGatewayLost(HubUnreachable):
    """The hub was away for longer than `gateway_timeout`."""
