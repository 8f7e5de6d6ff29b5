"""Attachments: futures of tasks that another program has submitted, or another mesh of this one."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskmesh.core import ids
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError
from taskmesh.future import OpenRun, TaskFuture, TaskTable
from taskmesh.wire.runs import ATTACHMENT, ATTACHMENT_NAME, PICKLE, SAFE, Failed, Spec


def attached(table: TaskTable, task_id: str, codec: str) -> TaskFuture[Any]:
    """Return a future that ends as the task with this id does.

    Args:
        table: of the client that waits for it.
        task_id: the id of the other task, as `checked_id` gives it.
        codec: the client's `result_codec`.

    Raises:
        MeshClosed: the mesh is closed.
    """
    spec = Spec(b"", ATTACHMENT_NAME, on_client_loss="cancel", codec=codec, kind=ATTACHMENT)
    return table.put(OpenRun(table, spec_number(spec), spec, key=task_id), b"")


def checked_id(text: object) -> str:
    """Return a task id as `TaskFuture.task_id` shows it.

    Raises:
        ConfigError: it is no task id.
    """
    try:
        return ids.text_of(ids.parse(text if isinstance(text, str) else ""))
    except ValueError:
        raise ConfigError(
            f"a task id has 32 hexadecimal digits, as `future.task_id` shows it, not {text!r:.200}"
        ) from None


def adapt(future: TaskFuture[Any], codec: str) -> Failed | None:
    """Have an attachment decode its result as the other task has encoded it.

    Args:
        future: the attachment, whose result has come.
        codec: the encoding of the result, as `Spec.codec`; empty for PICKLE.

    Returns:
        A failure, if the result is pickled and the client unpickles nothing.
    """
    run, codec = future._run, codec or PICKLE
    if run.spec.codec == SAFE != codec:
        return Failed(
            0,
            future._seq,
            0,
            "result",
            text=f"the result of task {run.key} is pickled, and this client takes plain data only "
            "(client.result_codec): ask for it with result_codec='pickle'",
        )
    run.spec = replace(run.spec, codec=codec)
    run.is_call = codec == PICKLE
    return None
