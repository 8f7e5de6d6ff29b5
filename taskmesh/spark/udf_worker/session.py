"""One session of Spark's UDF worker protocol: a partition's way through the mesh, as one Execute stream."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import traceback
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

import grpc
import pyarrow as pa

from taskmesh.errors import TaskMeshError
from taskmesh.serialize.payload import dumps_bytes, loads
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import Engine
from taskmesh.spark.jobs.partitions import ArrowPartition
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.errors import MeshSchemaError, MeshTaskError
from taskmesh.spark.udf_worker.protocol import Protocol

FORMAT: Final = "taskmesh-partition"
"""The format of the function: what `payload_of` makes."""
VERSION: Final = 1
AHEAD: Final = 4
"""Batches that are read before the partition takes them; gRPC's flow control holds back the rest."""
_ARROW: Final = 1


def payload_of(partition: ArrowPartition) -> bytes:
    """The payload of a UDF, made on the driver: what the closure of `mapInArrow` holds."""
    return dumps_bytes(partition, what="the partition")


class ProtocolViolation(TaskMeshError):
    """The engine has sent something that the protocol does not allow, or not at this point."""


class _Cancelled(Exception):
    """The engine has cancelled the session, or is gone."""


@dataclasses.dataclass(frozen=True)
class _SessionPartition(ArrowPartition):
    """A partition that ends when the session is stopped, also while it waits for the mesh."""

    stopped: Future[None] = dataclasses.field(default_factory=Future)

    def _engine(self) -> Engine:
        engine = super()._engine()
        wait = engine.wait

        def wait_or_stop(pieces: Sequence[Any]) -> None:
            wait([*pieces, self.stopped])
            if self.stopped.done():
                self.stopped.result()

        engine.wait = wait_or_stop  # type: ignore[method-assign]
        return engine


class Session:
    """The worker's side of one Execute stream.

    A thread reads the requests, because a Cancel has to be seen while batches are computed. It holds a few of
    them, so a Cancel behind many batches is seen late; one that ends the call itself is seen at once.

    Args:
        protocol: the messages.
        requests: of the engine; they end with the stream.
    """

    def __init__(self, protocol: Protocol, requests: Iterator[Any]) -> None:
        self._response = protocol.message("UdfResponse")
        self._requests = requests
        self._taken: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._over = threading.Event()
        self._stopped: Future[None] = Future()
        self._tally = Tally()
        self._reader = threading.Thread(target=self._read, name="taskmesh-udf-session", daemon=True)

    def responses(self) -> Iterator[Any]:
        """The worker's messages, to the last one of the stream."""
        self._reader.start()
        try:
            yield from self._init_and_data()
        finally:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Stop the session from any thread: what is under way is given up, and no Cancel is waited for.

        Args:
            error: for the engine; without one the session counts as cancelled.
        """
        self._over.set()
        self._stop(error or _Cancelled())
        self._room.release()

    def _stop(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):  # the first reason counts
            self._stopped.set_exception(error)
        self._taken.put(("stop", None))  # wakes whoever waits for a request

    def _check(self) -> None:
        if self._stopped.done():
            self._stopped.result()

    # --- what comes ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        finished = False
        try:
            for request in self._requests:
                kind, message = _content(request)
                if kind == "cancel":
                    break
                if finished:
                    self._stop(ProtocolViolation(f"{kind} after Finish"))
                    continue
                finished = kind == "finish"
                self._taken.put((kind, message))
                if kind == "data":
                    self._room.acquire()
                if self._over.is_set():
                    break
        except grpc.RpcError:
            pass  # the engine is gone, which is as good as a Cancel
        finally:
            self.end()

    def _next(self) -> tuple[str, Any]:
        kind, message = self._taken.get()
        self._check()
        if kind == "data":
            self._room.release()
        return kind, message

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            kind, message = self._next()
            if kind == "finish":
                return
            if kind != "data":
                raise ProtocolViolation(f"{kind} among the batches")
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(message.data), schema)
            except (pa.ArrowException, OSError) as error:
                raise ProtocolViolation(
                    f"a batch is no Arrow record batch of the input schema: {error}"
                ) from error
            yield batch

    def _await_cancel(self) -> None:
        """Drop what still comes: the engine has to answer an error with a Cancel."""
        while not self._over.is_set():
            self._taken.get()
            self._room.release()

    # --- what goes ----------------------------------------------------------------------------------------

    def _init_and_data(self) -> Iterator[Any]:
        failed = "init"
        try:
            partition, schema = self._initialized()
            yield self._control("init")
            failed = "error"
            with contextlib.closing(partition.results(self._batches(schema), self._tally)) as results:
                for batch in results:
                    self._check()  # no batch may follow a Cancel
                    yield self._response(data={"data": batch.serialize().to_pybytes()})
            self._check()
            yield self._control("finish", metrics=self._metrics())
            return
        except _Cancelled:
            pass
        except Exception as error:  # noqa: BLE001  the engine gets to know of any
            yield self._control(failed, error=_told(error))
            self._await_cancel()
        yield self._control("cancel", metrics=self._metrics())

    def _initialized(self) -> tuple[ArrowPartition, pa.Schema]:
        """The partition that Init asks for, and the schema of its input."""
        kind, init = self._next()
        if kind != "init":
            raise ProtocolViolation(f"{kind} before Init")
        if init.protocol_version > VERSION:
            raise ProtocolViolation(f"version {init.protocol_version}: this worker speaks version {VERSION}")
        if init.data_format != _ARROW:
            raise ProtocolViolation(f"data format {init.data_format}: this worker speaks Arrow ({_ARROW})")
        if init.udf.format != FORMAT:
            raise ProtocolViolation(f"a function of format {init.udf.format!r}: this worker runs {FORMAT!r}")
        if not init.input_schema:
            raise ProtocolViolation("no input_schema: batches come without one")
        partition = loads(self._payload(init), what="the partition")
        declared, made = (
            ipc.schema_of(init.output_schema or partition.schema),
            ipc.schema_of(partition.schema),
        )
        if declared.types != made.types:
            raise ProtocolViolation(f"output_schema is {declared.types}, and the function's is {made.types}")
        return _SessionPartition(**vars(partition), stopped=self._stopped), ipc.schema_of(init.input_schema)

    def _payload(self, init: Any) -> bytes:
        """The function's bytes; large ones come in chunks."""
        payload, last = bytearray(init.udf.payload), not init.is_chunking_payload
        while not last:
            kind, chunk = self._next()
            if kind != "payload":
                raise ProtocolViolation(f"{kind} before the last chunk of the function")
            payload += chunk.data
            last = chunk.last
        if init.udf.HasField("payload_size") and len(payload) != init.udf.payload_size:
            raise ProtocolViolation(f"{len(payload)} bytes of {init.udf.payload_size} came of the function")
        if init.udf.HasField("payload_crc32") and zlib.crc32(payload) != init.udf.payload_crc32:
            raise ProtocolViolation("the function's bytes do not have its CRC32")
        return bytes(payload)

    def _control(self, name: str, **fields: Any) -> Any:
        return self._response(control={name: fields})

    def _metrics(self) -> dict[str, str]:
        return {name: str(value) for name, value in dataclasses.asdict(self._tally).items()}


def _content(request: Any) -> tuple[str, Any]:
    """A request's kind, as the protocol names it, and its message."""
    kind = request.WhichOneof("request")
    message = getattr(request, kind) if kind else None
    if message is not None and kind == "control":
        kind = message.WhichOneof("control")
        message = getattr(message, kind) if kind else None
    return kind or "an empty request", message


def _told(error: Exception) -> dict[str, Any]:
    """An error as an ExecutionError: the user's, the engine's, or this worker's and the mesh's."""
    if isinstance(error, ProtocolViolation):
        return {"protocol": {"message": str(error)}}
    if isinstance(error, MeshTaskError | MeshSchemaError):
        return {"user": {"message": str(error), "error_class": type(error).__name__}}
    text = "".join(traceback.format_exception(error))
    return {"worker": {"message": f"{type(error).__name__}: {error}", "traceback": text}}
