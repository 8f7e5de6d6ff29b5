"""Spark's commands in its Python workers: those with a marked function are evaluated on the mesh.

PySpark's worker reads a command, and gets a function from the batches of a partition to those of its result
(`read_udfs`, `read_udtf` of `pyspark.worker`). For a command with a mark it gets one that sends the batches
to the mesh. All else is as ever: how the JVM is spoken to, errors, accumulators, times.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pyspark import BarrierTaskContext, SparkFiles, TaskContext, worker
from pyspark.serializers import NoOpSerializer
from pyspark.sql.pandas.serializers import (
    ArrowStreamCoGroupSerializer,
    ArrowStreamGroupSerializer,
    ArrowStreamSerializer,
)
from pyspark.version import __version__
from pyspark.worker_util import read_command

from taskmesh.errors import ConfigError
from taskmesh.serialize.code import load_function
from taskmesh.serialize.payload import dumps_bytes
from taskmesh.spark.evaluation import command as commands
from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.command import Extent, FunctionCall, PythonCommand, TableFunctionCall
from taskmesh.spark.evaluation.evaluation import Evaluation
from taskmesh.spark.evaluation.stream import StreamedEvaluation
from taskmesh.spark.jobs.evaluation_partitions import EvaluatedPartition, GroupedPartition
from taskmesh.spark.jobs.offload import MARK, OFFLOAD, Offloaded, check_barrier, check_kind, check_settings
from taskmesh.spark.jobs.partition_stream import StreamedPartition
from taskmesh.spark.jobs.remote_task import RemoteTask, function_bytes
from taskmesh.spark.jobs.settings import FIELDS, PREFIX, Settings

_HINTS: Final = (b"taskmesh", b"pyspark.core.broadcast")
"""A command without any of these has no mark; a large one is in a broadcast variable."""
_DATA_SOURCES: Final = "pyspark.sql.worker."
"""Functions of PySpark's own that read and write for Python data sources."""
_PROFILER: Final = "spark.sql.pyspark.udf.profiler"
_PARTITIONS: Final[dict[Extent, type[EvaluatedPartition]]] = {
    "batches": EvaluatedPartition,
    "groups": GroupedPartition,
    "partition": StreamedPartition,
}
_KEPT: Final = 4
_known: Final[dict[tuple[Any, ...], tuple[Offloaded, RemoteTask]]] = {}
_read_udfs: Final = worker.read_udfs
_read_udtf: Final = worker.read_udtf


def install() -> None:
    """Put this reading of commands before PySpark's, in this process."""
    worker.read_udfs = read_udfs
    worker.read_udtf = read_udtf


def read_udfs(pickler: Any, infos: list[Any], kind: int, runner_conf: Any, eval_conf: Any) -> Any:
    """As `pyspark.worker.read_udfs`."""
    names, given = _names(), [udf for info in infos for udf in info.udfs]
    if not names and not any(hint in bytes(udf) for udf in given for hint in _HINTS):
        return _read_udfs(pickler, infos, kind, runner_conf, eval_conf)
    calls = [(len(info.udfs), list(info.args), dict(info.kwargs)) for info in infos]
    key = _key(kind, given, calls, runner_conf, eval_conf)
    if (known := _known.get(key)) is not None:
        return _evaluated(kind, *known)
    pairs = [read_command(pickler, udf) for udf in given]
    marks = [_mark_of(function, names) for function, _ in pairs]
    first = _common(marks)
    if first is None or first.settings.engine == "local":
        return _read_udfs(_Unmarked(pickler), infos, kind, runner_conf, eval_conf)
    functions = [
        mark.function if mark is not None else function_bytes(function)
        for mark, (function, _) in zip(marks, pairs, strict=True)
    ]
    places = iter(range(len(pairs)))
    named = []
    for info in infos:
        own = list(islice(places, len(info.udfs)))
        types = [_type_text(pairs[n][1], functions) for n in own]
        named.append(FunctionCall(own, types, list(info.args), dict(info.kwargs)))
    found = PythonCommand(__version__, kind, named, None, *_confs(runner_conf, eval_conf))
    return _evaluated(kind, first, _keep(key, first, found, functions))


def read_udtf(pickler: Any, info: Any, kind: int, runner_conf: Any, eval_conf: Any) -> Any:
    """As `pyspark.worker.read_udtf`."""
    names, handler = _names(), bytes(info.handler)
    if not names and not any(hint in handler for hint in _HINTS):
        return _read_udtf(pickler, info, kind, runner_conf, eval_conf)
    table_function = read_command(pickler, info.handler)
    mark = getattr(table_function, MARK, None) or _mark_of(table_function, names)
    if mark is None or mark.settings.engine == "local":
        return _read_udtf(pickler, info, kind, runner_conf, eval_conf)
    call = TableFunctionCall(
        list(info.args), dict(info.kwargs), list(info.partition_child_indexes), info.return_type, info.name
    )
    functions = [mark.function]
    if info.pickled_analyze_result is not None:
        functions.append(bytes(info.pickled_analyze_result))
    found = PythonCommand(__version__, kind, [], call, *_confs(runner_conf, eval_conf))
    return _evaluated(kind, mark, _task_of(mark, found, functions))


def _key(kind: int, given: Sequence[Any], calls: Any, runner_conf: Any, eval_conf: Any) -> tuple[Any, ...]:
    """All that makes a command; the next Spark task of a step has the same."""
    context: Any = TaskContext.get()
    properties = context._localProperties if context is not None else {}
    own = sorted((name, value) for name, value in properties.items() if name.startswith(PREFIX))
    modules = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in _modules()]
    return (kind, *map(bytes, given), repr((calls, own, runner_conf._conf, eval_conf._conf, modules)))


def _modules() -> list[Path]:
    """The files that addPyFile() and the like have brought to this worker, in the order of its path."""
    root: str | None = SparkFiles._root_directory
    if root is None:
        return []
    packed = [Path(each) for each in sys.path if os.path.dirname(each) == root]
    return [path for path in (*packed, *sorted(Path(root).glob("*.py"))) if path.is_file()]


def _keep(
    key: tuple[Any, ...], mark: Offloaded, command: PythonCommand, functions: Sequence[bytes]
) -> RemoteTask:
    """The task of a command, made once for all Spark tasks of a step in this process.

    A function may hold a table of many megabytes: it is read, pickled and hashed once, not once a Spark task.
    """
    task = _task_of(mark, command, functions)
    _known[key] = mark, task
    while len(_known) > _KEPT:
        _known.pop(next(iter(_known)))
    return task


def _task_of(mark: Offloaded, command: PythonCommand, functions: Sequence[bytes]) -> RemoteTask:
    check_kind(command.kind, mark.name)
    frame = StreamedEvaluation if commands.EXTENTS[command.kind] == "partition" else Evaluation
    modules = _modules()
    command.modules = [path.name for path in modules]
    step = frame(commands.encode(command), *functions, *(path.read_bytes() for path in modules))
    return RemoteTask.named(mark.settings, mark.options, mark.name, step)


def _type_text(returned: Any, functions: list[bytes]) -> str:
    """A type for a `FunctionCall`: JSON only names the class of a user-defined type, which pools may lack."""
    text: str = returned.json()
    if '"udt"' not in text:
        return text
    functions.append(dumps_bytes(returned))
    return f"#{len(functions) - 1}"


class _Unmarked:
    """A pickler that gives functions back as they were before they were marked."""

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler

    def loads(self, data: Any) -> Any:
        found = self._pickler.loads(data)
        if isinstance(found, tuple) and found and isinstance(found[0], Offloaded):
            return (load_function(found[0].function), *found[1:])
        return found


def _confs(runner_conf: Any, eval_conf: Any) -> tuple[dict[str, str], dict[str, str]]:
    if runner_conf.get(_PROFILER, ""):
        raise ConfigError(
            f"Spark's profiler would measure nothing of a function that runs on a mesh: unset {_PROFILER}"
        )
    return dict(runner_conf._conf), dict(eval_conf._conf)


def _evaluated(kind: int, mark: Offloaded, remote_task: RemoteTask) -> Any:
    """Return what `pyspark.worker` expects: a function, no profiler, and how batches are read and written."""
    check_barrier(mark.settings, isinstance(TaskContext.get(), BarrierTaskContext))
    partition = _PARTITIONS[commands.EXTENTS[kind]](mark.settings, remote_task, mark.rows)

    def run(number: int, rows: Any) -> Any:
        if kind in commands.PICKLED:  # such rows travel unopened
            return piece.frames_of(partition.run(piece.framed(rows)))
        return partition.run(rows)

    return run, None, *_serializers(kind)


def _serializers(kind: int) -> tuple[Any, Any]:
    if kind in commands.PICKLED:
        return NoOpSerializer(), NoOpSerializer()
    if kind in commands.COGROUPS:
        both: Any = ArrowStreamCoGroupSerializer(write_start_stream=True)
    elif commands.EXTENTS[kind] == "groups":
        both = ArrowStreamGroupSerializer(write_start_stream=True)
    else:
        both = ArrowStreamSerializer(write_start_stream=True)
    return both, both


def _common(marks: Sequence[Offloaded | None]) -> Offloaded | None:
    """The mark of an operator. Spark puts several functions into one: then all of them go to the mesh.

    Raises:
        ConfigError: two of them are to go to different places.
    """
    found = [mark for mark in marks if mark is not None]
    for mark in found[1:]:
        if (mark.settings, mark.options) != (found[0].settings, found[0].options):
            raise ConfigError(
                f"{found[0].name} and {mark.name} are offloaded with different settings or options, and "
                "Spark evaluates both in one step. Select one after the other, with a cache() between, or "
                "give them the same settings"
            )
    return found[0] if found else None


def _names() -> frozenset[str]:
    """The names in the setting `spark.taskmesh.offload`, as the session had it when the action began."""
    context = TaskContext.get()
    text = context.getLocalProperty(OFFLOAD) if context is not None else None
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip())


def _mark_of(function: Any, names: frozenset[str]) -> Offloaded | None:
    """The mark of a function, or that of the setting if it has the function's name."""
    if isinstance(function, Offloaded):
        return function
    if not names:
        return None
    name, module = str(getattr(function, "__name__", "")), str(getattr(function, "__module__", ""))
    if module.startswith(_DATA_SOURCES) or not names & {"*", name, f"{module}.{name}"}:
        return None
    context: Any = TaskContext.get()
    found = {field: context.getLocalProperty(PREFIX + field) for field in FIELDS}
    settings = Settings(**{field: value for field, value in found.items() if value is not None})
    check_settings(settings)
    return Offloaded.of(settings, function, 0)
