"""Evaluation of Spark's own functions in a slot, by PySpark's own code.

`pyspark.worker` turns a command into a function over Arrow batches, with all of Spark's conversions. Spark's
Python workers call it; here a slot does. So the slot needs PySpark, of the minor version that Spark has:
`pyspark-client` is enough, and has no Java in it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from taskmesh.errors import ConfigError, FunctionUnavailable
from taskmesh.pool.slots.coroutines import runnable
from taskmesh.pool.slots.task_log import collected_elsewhere
from taskmesh.serialize.code import load_function
from taskmesh.serialize.payload import loads
from taskmesh.shm.files import Buffer
from taskmesh.spark.evaluation import command as commands
from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.command import FunctionCall, PythonCommand, TableFunctionCall
from taskmesh.spark.evaluation.job_modules import JobModules, job_modules
from taskmesh.spark.evaluation.piece import EvaluationContext

ROWS_IN_FRAME: Final = 100
LOCALTIME: Final = Path("/etc/localtime")
LOGGED: Final = "PYSPARK_SPARK_SESSION_UUID"
"""The variable by which Spark tells its Python workers to collect what functions log."""
WITH_LOCALS: Final = "SPARK_TRACEBACK_WITH_LOCALS"
"""The one by which it wants tracebacks with local variables."""
_LOCALS_FRAMES: Final = 8

Evaluate = Callable[[int, Iterator[Any]], Iterator[Any]]
"""A partition's number, and its batches or groups; gives batches of results."""


class Evaluation:
    """Evaluates a command for pieces of a partition.

    Args:
        text: the command, as `command.encode` gives it.
        functions: the bytes of its functions, as `dump_function` gives them, then pickles: of what a table
            function's `analyze` has returned, and of types that only a pickle describes; then the contents of
            the job's modules.
    """

    def __init__(self, text: str, *functions: bytes) -> None:
        self.text = text
        self.functions = functions
        self._loaded: tuple[JobModules, Evaluate] | None = None

    def plain_values(self) -> tuple[str | bytes, ...]:
        """Return the parts that `dump_function` writes: a command travels without a pickle."""
        return self.text, *self.functions

    def __call__(self, data: Buffer) -> pa.Buffer:
        if self._loaded is None:
            self._loaded = evaluator(commands.decode(self.text), self.functions)
        modules, evaluate = self._loaded
        context, rows = piece.decode(data)
        with modules.importable(), running(context) as logs:
            results = list(evaluate(context.partition, rows))
        return piece.encode_results(results, logs.take())


class Logs:
    """Lines of JSON with all that functions log and print, if Spark collects it (`python_worker_logs()`)."""

    def __init__(self) -> None:
        self._out = io.StringIO()

    def take(self) -> list[str]:
        """The lines since the last call."""
        lines = self._out.getvalue().splitlines()
        self._out.seek(0)
        self._out.truncate()
        return [text for line in lines if (text := line.split(":", 2)[2])]

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect in PySpark's way, if Spark wants it; then nobody else gets them."""
        if LOGGED not in os.environ:
            yield
            return
        worker_io = importlib.import_module("pyspark.logger.worker_io")
        with collected_elsewhere(), contextlib.redirect_stdout(self._out), worker_io.capture_outputs():
            yield


@contextmanager
def running(context: EvaluationContext) -> Iterator[Logs]:
    """Let the functions see the Spark task as their `TaskContext`, and be in its environment and time zone.

    Gives what they log.

    Raises:
        FunctionUnavailable: the time zone is not known here.
    """
    spark_context: Any = importlib.import_module("pyspark.taskcontext").TaskContext
    spark_context._setTaskContext(
        spark_context(
            stageId=context.stage,
            partitionId=context.partition,
            attemptNumber=context.attempt,
            taskAttemptId=context.task,
            cpus=context.cpus,
            cpuAmount=Decimal(context.cpu_amount),
            resources={},
            localProperties={},
        )
    )
    try:
        with _environment(context.environment), _in_zone(context), (logs := Logs()).collect():
            yield logs
    except Exception as error:
        if WITH_LOCALS in context.environment:
            told = traceback.TracebackException.from_exception(
                error, limit=-_LOCALS_FRAMES, capture_locals=True, compact=True
            )
            error.add_note("".join(told.format()))
        raise
    finally:
        spark_context._setTaskContext(None)


class _NoFiles(os.PathLike[str]):
    """Stands in for the directory of Spark's files."""

    def __fspath__(self) -> str:
        raise ConfigError(
            "files that addFile() or addArtifact() brings to Spark's executors do not come to pools. Read "
            "one outside of the function and let it take the content along, or put it into the pools' image"
        )


def _refuse_files() -> None:
    with contextlib.suppress(ImportError):  # `pyspark-client` has no SparkFiles
        files: Any = importlib.import_module("pyspark.core.files").SparkFiles
        files._is_running_on_worker, files._root_directory = True, _NoFiles()


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process's environment, None for one that is to go, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "TZ" in variables:
        time.tzset()


def local_zone() -> str:
    """The time zone of this process, as the variable TZ has it. PySpark converts naive times by it."""
    if own := os.environ.get("TZ"):
        return own
    name = os.path.realpath(LOCALTIME).partition("/zoneinfo/")[2]
    if name:
        return name
    try:
        return LOCALTIME.read_bytes().split(b"\n")[-2].decode()  # a copy of a zone's file ends with its rule
    except (OSError, ValueError, IndexError):
        return "UTC0"


@contextmanager
def _in_zone(context: EvaluationContext) -> Iterator[None]:
    """Put this process into the zone of Spark's worker, where it is another one."""
    if context.zone in ("", local_zone()):
        yield
        return
    with _environment({"TZ": context.zone}):
        if (time.timezone, time.altzone) != context.zone_offsets:  # a name that is unknown stands for UTC
            raise FunctionUnavailable(
                f"this pool does not know {context.zone}, the time zone of Spark's Python workers: install "
                "tzdata there"
            )
        yield


def evaluator(command: PythonCommand, functions: tuple[bytes, ...]) -> tuple[JobModules, Evaluate]:
    """PySpark's evaluation of a command, and the modules that have to be importable while it runs.

    Raises:
        FunctionUnavailable: there is no PySpark here, or of another minor version; or a function cannot be
            rebuilt.
    """
    worker = _pyspark_worker(command.pyspark)
    count = len(functions) - len(command.modules)
    modules = job_modules(tuple(zip(command.modules, functions[count:], strict=True)))
    with modules.importable():
        return modules, _evaluate(command, functions[:count], worker)


def _evaluate(command: PythonCommand, functions: tuple[bytes, ...], worker: Any) -> Evaluate:
    confs = worker.RunnerConf(command.runner_conf), worker.EvalConf(command.eval_conf)
    if command.table_call is not None:
        given = _Given([load_function(functions[0])])
        info = _table_info(command.table_call, functions)
        evaluate = worker.read_udtf(given, info, command.kind, *confs)[0]
        rows_in_frame = 1
    else:
        given = _Given(list(_with_types(command.calls, functions)))
        infos = list(_infos(command.calls))
        evaluate = worker.read_udfs(given, infos, command.kind, *confs)[0]
        rows_in_frame = ROWS_IN_FRAME
    return _unpickling(evaluate, rows_in_frame) if command.kind in commands.PICKLED else evaluate


class _Given:
    """Stands in for PySpark's pickler: the functions are here already, and asked for by their places."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def loads(self, data: bytes | memoryview) -> Any:
        found = bytes(data)
        if found[:1] == b"#":
            return self._values[int(found[1:])]
        return importlib.import_module("pyspark.serializers").CPickleSerializer().loads(found)


def _with_types(calls: list[FunctionCall], functions: tuple[bytes, ...]) -> Iterator[tuple[Any, Any]]:
    parse = importlib.import_module("pyspark.sql.types")._parse_datatype_json_string
    for call in calls:
        for place, text in zip(call.functions, call.types, strict=True):
            returned = loads(functions[int(text[1:])]) if text[:1] == "#" else parse(text)
            yield runnable(load_function(functions[place])), returned


def _infos(calls: list[FunctionCall]) -> Iterator[Any]:
    messages = importlib.import_module("pyspark.worker_message")
    places = itertools.count()
    for call in calls:
        udfs = [b"#%d" % next(places) for _ in call.functions]
        yield messages.UDFInfo(udfs=udfs, args=call.args, kwargs=call.kwargs, result_id=0)


def _table_info(call: TableFunctionCall, functions: tuple[bytes, ...]) -> Any:
    messages = importlib.import_module("pyspark.worker_message")
    return messages.UDTFInfo(
        args=call.args,
        kwargs=call.kwargs,
        partition_child_indexes=call.partitioned_by,
        pickled_analyze_result=functions[1] if len(functions) > 1 else None,
        handler=b"#0",
        return_type=call.returns,
        name=call.name,
    )


def _pyspark_worker(version: str) -> Any:
    try:
        found = importlib.import_module("pyspark").__version__
        worker = importlib.import_module("pyspark.worker")
    except ModuleNotFoundError as missing:
        raise FunctionUnavailable(
            f"Spark's own functions need PySpark on the pool, and {missing.name} is missing: "
            f"pip install 'pyspark-client=={version}' pyarrow pandas"
        ) from missing
    if _minor(found) != _minor(version):
        raise FunctionUnavailable(
            f"Spark's Python workers have PySpark {version}, this pool has {found}: conversions may differ. "
            f"pip install 'pyspark-client=={version}'"
        )
    _refuse_files()
    return worker


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _unpickling(evaluate: Evaluate, rows_in_frame: int) -> Evaluate:
    """The evaluation of rows that Spark has pickled, as one of batches of frames."""
    pickler: Any = importlib.import_module("pyspark.serializers").CPickleSerializer()

    def evaluate_frames(partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = itertools.chain.from_iterable(map(pickler.loads, piece.frames_of(batches)))
        results = iter(evaluate(partition, rows))
        return piece.framed(map(pickler.dumps, _lists(results, rows_in_frame)))

    return evaluate_frames


def _lists(results: Iterable[Any], count: int) -> Iterator[list[Any]]:
    rest = iter(results)
    while part := list(itertools.islice(rest, count)):
        yield part


FRAME: Final = Evaluation
"""Loaded by name: see `taskmesh.serialize.code`."""
