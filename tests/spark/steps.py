"""Steps as slots run them, without Spark and without a mesh."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from taskmesh.serialize.code import dump_function
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.step import Errors, Format, Step


def run_step(
    function: Callable[..., Any],
    form: Format,
    schema: pa.Schema,
    batch: pa.RecordBatch,
    errors: Errors = "raise",
) -> list[pa.RecordBatch]:
    """The batches that a step makes of one batch."""
    step = Step(dump_function(function), form, ipc.schema_bytes(schema), errors)
    return ipc.decode(step(ipc.encode(batch.schema, [batch])))[1]


def column(
    function: Callable[..., Any],
    form: Format,
    kind: pa.DataType,
    batch: pa.RecordBatch,
    errors: Errors = "raise",
) -> pa.Array:
    """The column `x` of this type that a step makes of one batch."""
    return run_step(function, form, pa.schema([pa.field("x", kind)]), batch, errors)[0].column(0)
