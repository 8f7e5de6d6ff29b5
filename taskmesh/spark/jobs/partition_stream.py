"""A partition of a function that sees all of it: a stream to one slot and back."""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any

import msgspec
import pyarrow as pa

from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.group import TaskGroup
from taskmesh.client.sink import Sink, SinkInput
from taskmesh.client.submitter import client_of
from taskmesh.errors import TaskMeshError
from taskmesh.messages.runs import ARROW_IPC
from taskmesh.retry import Retry
from taskmesh.shm.files import Buffer
from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.piece import Message
from taskmesh.spark.evaluation.stream import BatchReceiver, BatchSender, StreamOrder
from taskmesh.spark.jobs.connection import mesh_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import speed_up_of, task_error
from taskmesh.spark.jobs.evaluation_partitions import EvaluatedPartition, here, relay
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import SparkTask
from taskmesh.spark.jobs.watchdog import LOOK_S, Watchdog
from taskmesh.spark.steps.errors import MeshTaskError


@dataclass(frozen=True)
class StreamedPartition(EvaluatedPartition):
    """Batches that go to one slot in order, each as Spark has cut it."""

    def run(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Run the partition, with what its function gives as soon as it is there."""
        tally = Tally()
        with self._counted(tally):
            yield from PartitionStream(self.settings, self.remote_task, tally).run(rows)


class PartitionStream:
    """One execution of a Spark task as a stream.

    Its slot waits for nobody but this process: all rows are here before the task is submitted, and a thread
    takes the results whether Spark wants them yet or not. For what makes the rows, or what Spark does with
    the results, may need that slot.

    If the slot dies, the mesh runs the task again elsewhere, without what the first one has taken: then the
    stream fails, and Spark tries the partition again.

    Args:
        settings: of the job.
        remote_task: the task that runs the function.
        tally: where the stream counts.
    """

    def __init__(self, settings: Settings, remote_task: RemoteTask, tally: Tally) -> None:
        self._spark_task = SparkTask.here(remote_task.app)
        self._tally = tally
        speed_up = speed_up_of(self._spark_task)
        mesh = mesh_of(settings, speed_up, max(0, self._spark_task.partition))
        client = client_of(mesh)
        once = remote_task.options.with_changes({"retries": Retry(max=0)})
        self._group = TaskGroup(mesh, remote_task.function, remote_task.name, once, ARROW_IPC)
        self._order = StreamOrder(
            here(), f"taskmesh.spark/{uuid.uuid4().hex}", settings.window, settings.window_bytes
        )
        self._sink = Sink(client, self._order.results_sink, settings.window_bytes, "manual")
        given = SinkInput(client, self._order.batches_sink)
        self._sender = BatchSender(given, settings.window, settings.window_bytes)
        self._receiver = BatchReceiver(self._sink)
        self._watchdog = Watchdog(client, settings, remote_task.options, speed_up)
        self._given = RowSpool(settings.window_bytes)
        self._results = RowSpool(settings.window_bytes)
        self._is_over = self._is_stopped = False

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take all batches, and give results as they come.

        Raises:
            MeshTaskError: the function failed, or its slot is gone.
            NoMeshWorkers, MeshGatewayLost: nobody is there who could run it.
        """
        with closing(self._given), closing(self._results):
            self._take(batches)
            exchange = threading.Thread(target=self._exchange, name="taskmesh-spark-stream", daemon=True)
            exchange.start()
            try:
                for data in self._results:
                    message = piece.decode_message(data)
                    relay(message.logs)
                    for batch in message.batches or []:
                        batch.validate(full=True)
                        self._tally.rows_out += batch.num_rows
                        yield batch
            finally:
                self._is_stopped = True
                self._sink.wake()
                exchange.join()

    def _take(self, batches: Iterable[pa.RecordBatch]) -> None:
        number = 0
        for batch in batches:
            self._give(piece.encode_message(Message(number, [batch], [])))
            self._tally.rows_in += batch.num_rows
            number += 1
        self._give(piece.encode_message(Message(number, None, [])))
        self._given.end()

    def _give(self, data: pa.Buffer) -> None:
        self._given.put(data)
        self._tally.pieces += 1
        self._tally.bytes_in += data.size

    def _exchange(self) -> None:
        """Run the task, in a thread of its own."""
        error: BaseException | None = None
        try:
            with self._sink:
                self._run_task()
        except BaseException as caught:  # noqa: BLE001  raised where the results are waited for
            error = caught
        self._results.end(error)

    def _run_task(self) -> None:
        task = self._group.submit(msgspec.msgpack.encode(self._order))
        task.add_done_callback(self._wake)
        try:
            for data in self._given:
                if not self._goes_on(task, partial(self._has_room, len(data))):
                    return  # the function wants no more, or Spark does not
                self._sender.put(data).add_done_callback(self._wake)
            while self._goes_on(task, task.done):
                pass
        finally:
            self._sender.cancel()
            if not self._is_over:  # else the task ends by itself, and its slot lives on
                self._group.cancel([task])

    def _has_room(self, size: int) -> bool:
        return not self._sender.is_full(size)

    def _goes_on(self, task: TaskFuture[Any], is_ready: Callable[[], bool]) -> bool:
        """Take results until something else is ready; return False once the stream has ended."""
        self._watchdog.begin()
        while True:
            self._take_results(task)
            if self._is_over or self._is_stopped:
                return False
            if is_ready():
                return True
            while not self._sink.wait(lambda: self._is_stopped or task.done() or is_ready(), LOOK_S):
                self._watchdog.look()
            self._watchdog.begin()

    def _take_results(self, task: TaskFuture[Any]) -> None:
        while not self._is_over and self._has_more():
            message = self._receiver.take()
            self._is_over = message.batches is None
            self._results.put(message.data)
        if not self._is_over and (failed := self._group.failure(task)) is not None:
            raise task_error(failed, self._group.name, f"the partition's stream, {self._spark_task}")

    def _has_more(self) -> bool:
        try:
            return self._receiver.is_here
        except TaskMeshError as error:
            raise MeshTaskError(
                f"task {self._group.name}: its slot is gone, and the state of its function with it. Spark "
                f"tries the partition again ({self._spark_task}): {error}"
            ) from error

    def _wake(self, _: object) -> None:
        self._sink.wake()


class RowSpool:
    """Messages on their way from one thread to another: in memory up to a bound, on Spark's disk beyond it.

    Args:
        most: bytes in memory.
    """

    def __init__(self, most: int) -> None:
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        self._file = SpooledTemporaryFile(most, dir=folder or None)  # noqa: SIM115  closed by `close`
        self._sizes: deque[int] = deque()
        self._read = self._written = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._error: BaseException | None = None

    def put(self, data: Buffer) -> None:
        with self._changed:
            self._file.seek(self._written)
            self._file.write(data)
            self._written += len(data)
            self._sizes.append(len(data))
            self._changed.notify()

    def end(self, error: BaseException | None = None) -> None:
        """No more messages come; an error is raised where they are taken, after the last one."""
        with self._changed:
            self._has_ended, self._error = True, error
            self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        """Give messages, and wait for them, until the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._sizes or self._has_ended)
                if not self._sizes:
                    break
                self._file.seek(self._read)
                data = self._file.read(self._sizes.popleft())
                self._read += len(data)
                if not self._sizes:
                    self._read = self._written = 0  # the space is used again
            yield data
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Drop what is left."""
        self._file.close()
