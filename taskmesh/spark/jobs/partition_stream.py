"""A partition of a function that sees all of it: a stream to one slot and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from taskmesh.client.group import TaskGroup
from taskmesh.client.promises import SinkInput
from taskmesh.client.sink import Sink
from taskmesh.client.submitter import client_of
from taskmesh.errors import TaskMeshError
from taskmesh.future import TaskFuture
from taskmesh.retry import Retry
from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.stream import BatchReceiver, BatchSender, StreamOrder
from taskmesh.spark.jobs.connection import mesh_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import speed_up_of, task_error
from taskmesh.spark.jobs.evaluation_partitions import EvaluatedPartition, here
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import SparkTask
from taskmesh.spark.jobs.watchdog import LOOK_S, Watchdog
from taskmesh.spark.steps.errors import MeshTaskError
from taskmesh.wire.runs import ARROW_IPC


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

    If its slot dies, the mesh runs the task again elsewhere, without what the first one has taken: then the
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
        given = SinkInput(client, self._order.batches_sink, ARROW_IPC, on_client_loss="cancel")
        self._sender = BatchSender(given, settings.window, settings.window_bytes)
        self._receiver = BatchReceiver(self._sink)
        self._watchdog = Watchdog(client, settings, remote_task.options, speed_up)
        self._is_over = False

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send batches, and give results as they come.

        Raises:
            MeshTaskError: the function failed, or its slot is gone.
            NoMeshWorkers, MeshGatewayLost: nobody is there who could run it.
        """
        with self._sink:
            task = self._group.submit(msgspec.msgpack.encode(self._order))
            task.add_done_callback(self._wake)
            try:
                for batch in batches:
                    yield from self._sent(task, [batch])
                    if self._is_over:
                        return  # the function wants no more
                yield from self._sent(task, None)
                while not self._is_over:
                    yield from self._arrived(task, task.done)
            finally:
                self._sender.cancel()
                if not self._is_over:  # else the task ends by itself, and its slot lives on
                    self._group.cancel([task])

    def _sent(self, task: TaskFuture[Any], batches: list[pa.RecordBatch] | None) -> Iterator[pa.RecordBatch]:
        """Send a message as soon as there is room; give what comes meanwhile."""
        data, sender = piece.encode_message(self._sender.number, batches), self._sender

        def is_ready() -> bool:
            return task.done() or not sender.is_full(data.size)

        while not (self._is_over or not sender.is_full(data.size)):
            yield from self._arrived(task, is_ready)
        if not self._is_over:
            sender.put(data).add_done_callback(self._wake)
            self._tally.pieces += 1
            self._tally.bytes_in += data.size
            self._tally.rows_in += sum(batch.num_rows for batch in batches or [])
            yield from self._here(task)

    def _arrived(self, task: TaskFuture[Any], is_ready: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Wait for results, or something else; give the results."""
        self._watchdog.begin()
        while not self._sink.wait(is_ready, LOOK_S):
            self._watchdog.look()
        yield from self._here(task)

    def _here(self, task: TaskFuture[Any]) -> Iterator[pa.RecordBatch]:
        """Give what has come."""
        while not self._is_over and self._has_more():
            batches = self._receiver.take()
            self._is_over = batches is None
            for batch in batches or []:
                batch.validate(full=True)
                self._tally.rows_out += batch.num_rows
                yield batch
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
