"""A part of a partition on its way to PySpark's evaluation in a slot, and back: a header and Arrow streams.

The header says how the batches of the streams make groups. It fills a multiple of 64 bytes, so that Arrow
finds its buffers aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from taskmesh.shm.files import Buffer
from taskmesh.spark.steps import ipc

Batches: TypeAlias = "list[pa.RecordBatch]"
Group: TypeAlias = "tuple[Batches, ...]"
"""The batches of a group: of one DataFrame, or of the two of a cogroup."""

_ALIGNED: Final = 64
_NO_ROWS: Final = pa.schema([])
_FRAMES: Final = pa.schema([("frame", pa.binary())])
_LOGS: Final = b"taskmesh.logs"
"""The entry of a schema's metadata that holds the lines that functions have logged."""


class EvaluationContext(msgspec.Struct, array_like=True):
    """The Spark task that a piece belongs to: the function's `TaskContext`.

    Attributes:
        stage: Spark's number of the stage.
        partition: number of the partition in the stage.
        attempt: Spark's count of tries, from 0.
        task: Spark's number of this execution.
        cpus: of the Spark task.
        cpu_amount: of the Spark task, with a fraction if it has one.
        zone: the time zone of Spark's Python worker, as the variable TZ has it.
        zone_offsets: seconds from there to UTC, outside of summer time and in it.
        environment: the variables that Spark gives its Python workers for the job.
    """

    stage: int = 0
    partition: int = 0
    attempt: int = 0
    task: int = 0
    cpus: int = 1
    cpu_amount: str = "1"
    zone: str = ""
    zone_offsets: tuple[int, int] = (0, 0)
    environment: dict[str, str] = {}


class _Header(msgspec.Struct, array_like=True):
    context: EvaluationContext
    groups: list[list[int]]
    """The number of batches of each group, on each side; empty where the rows are not grouped."""


_headers: Final = msgspec.msgpack.Decoder(_Header)


class Message(NamedTuple):
    """A message of a stream.

    Attributes:
        number: its place in the stream.
        batches: its batches, which may be none; None for the end of the stream.
        logs: the lines that the function has logged since the message before.
    """

    number: int
    batches: Batches | None
    logs: list[str]


_messages: Final = msgspec.msgpack.Decoder(tuple[int, int, list[str]])
_logs: Final = msgspec.json.Decoder(list[str])


def encode(context: EvaluationContext, batches: Batches) -> pa.Buffer:
    """A piece of batches without groups; there is one at least."""
    return _encoded(_Header(context, []), [batches])


def encode_groups(context: EvaluationContext, groups: Sequence[Group]) -> pa.Buffer:
    """A piece of groups; there is one at least, and each side of one has a batch, perhaps without rows."""
    sides = [[batch for side in each for batch in side] for each in zip(*groups, strict=True)]
    return _encoded(_Header(context, [[len(side) for side in group] for group in groups]), sides)


def encode_message(message: Message) -> pa.Buffer:
    """A message of a stream as it travels."""
    number, batches, logs = message
    return _encoded((number, -1 if batches is None else len(batches), logs), [batches] if batches else [])


def decode_message(data: Buffer) -> Message:
    """The message of these bytes.

    Raises:
        msgspec.MsgspecError, pyarrow.ArrowException: it is no message.
    """
    reader, head = _opened(data)
    number, count, logs = _messages.decode(head)
    if count <= 0:
        return Message(number, None if count else [], logs)
    return Message(number, list(pa.ipc.open_stream(reader)), logs)


def _encoded(header: object, sides: Iterable[Batches]) -> pa.Buffer:
    head = msgspec.msgpack.encode(header)
    sink = pa.BufferOutputStream()
    sink.write(len(head).to_bytes(8, "little"))
    sink.write(head)
    sink.write(bytes(-(len(head) + 8) % _ALIGNED))
    for batches in sides:
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return sink.getvalue()


def decode(data: Buffer) -> tuple[EvaluationContext, Iterator[Any]]:
    """The Spark task of a piece, and its batches or groups as PySpark's evaluation takes them.

    A group is an iterator of batches, a pair of groups of a cogroup two lists of them.

    Raises:
        msgspec.MsgspecError, pyarrow.ArrowException: it is no piece.
    """
    reader, head = _opened(data)
    header = _headers.decode(head)
    if not header.groups:
        return header.context, iter(pa.ipc.open_stream(reader))
    sides = [iter(list(pa.ipc.open_stream(reader))) for _ in header.groups[0]]
    return header.context, (_group(sides, counts) for counts in header.groups)


def _opened(data: Buffer) -> tuple[pa.BufferReader, bytes]:
    """A reader that stands at the first stream, and the header."""
    reader = pa.BufferReader(pa.py_buffer(data))
    size = int.from_bytes(reader.read(8), "little")
    head = reader.read(size)
    reader.seek(size + 8 + -(size + 8) % _ALIGNED)
    return reader, head


def _group(sides: list[Iterator[pa.RecordBatch]], counts: list[int]) -> Any:
    lists = [[next(side) for _ in range(count)] for side, count in zip(sides, counts, strict=True)]
    return iter(lists[0]) if len(lists) == 1 else tuple(lists)


def encode_results(batches: Batches, logs: list[str]) -> pa.Buffer:
    """The results of a piece, of which there may be none, and the lines that its functions have logged."""
    schema = batches[0].schema if batches else _NO_ROWS
    return ipc.encode(schema.with_metadata({_LOGS: msgspec.json.encode(logs)}) if logs else schema, batches)


def decode_results(data: Buffer) -> tuple[Iterator[pa.RecordBatch], list[str]]:
    """The batches that a slot sent, each of which is known to be valid, and the lines.

    Raises:
        msgspec.MsgspecError, pyarrow.ArrowException: they are not.
    """
    reader = pa.ipc.open_stream(pa.py_buffer(data))
    logs = (reader.schema.metadata or {}).get(_LOGS)
    return _valid(reader, has_logs=logs is not None), _logs.decode(logs) if logs else []


def _valid(reader: pa.RecordBatchReader, *, has_logs: bool) -> Iterator[pa.RecordBatch]:
    with reader:
        for batch in reader:
            batch.validate(full=True)
            yield batch.replace_schema_metadata(None) if has_logs else batch


def framed(frames: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Pickled batches of rows, of functions without Arrow, as batches of one frame each."""
    for frame in frames:
        yield pa.RecordBatch.from_arrays([pa.array([frame], pa.binary())], schema=_FRAMES)


def frames_of(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for frame in batch.column(0):
            yield frame.as_py()
