"""A partition as a stream: one task runs for all of it, and batches come and go while it does.

Functions over a whole partition (`mapInArrow`, `mapInPandas`, iterators of Series or arrays, table functions)
keep state from one batch to the next. So one slot runs the function, on the batches that it takes from one
sink, and puts its results into another one. Both sinks belong to this stream alone. Messages are numbered:
each is taken once, and in order, whatever the hub had to send again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.nested_client import client_here
from taskmesh.client.sink import Sink, SinkInput
from taskmesh.context import current_task
from taskmesh.errors import TaskMeshError
from taskmesh.shm.files import Buffer
from taskmesh.spark.evaluation import command as commands
from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.evaluation import evaluator, running
from taskmesh.spark.evaluation.piece import Batches, EvaluationContext, Message

MOST_BYTES: Final = 256 << 10
MOST_BATCHES: Final = 100
MOST_HELD_S: Final = 0.05
"""Results that travel together, at most, and seconds that the first of them waits."""


class StreamOrder(msgspec.Struct, array_like=True):
    """The call of a stream's task.

    Attributes:
        context: the Spark task.
        name: of the stream; its sinks are named after it.
        window: messages that may be on their way in each direction.
        window_bytes: bytes of these; a single message may be larger.
    """

    context: EvaluationContext
    name: str
    window: int
    window_bytes: int

    @property
    def batches_sink(self) -> str:
        """The sink of what goes to the function."""
        return f"{self.name}/in"

    @property
    def results_sink(self) -> str:
        """The sink of what comes from it."""
        return f"{self.name}/out"


BEGUN_ANEW: Final = "another slot has begun this stream anew: what the first one took is lost"
_orders: Final = msgspec.msgpack.Decoder(StreamOrder)


class StreamedEvaluation:
    """Evaluates a command for a whole partition.

    Args:
        text: the command, as `command.encode` gives it.
        functions: as for `Evaluation`.
    """

    def __init__(self, text: str, *functions: bytes) -> None:
        self.text = text
        self.functions = functions

    def plain_values(self) -> tuple[str | bytes, ...]:
        """Return the parts that `dump_function` writes."""
        return self.text, *self.functions

    def __call__(self, data: Buffer) -> bytes:
        if current_task().attempt > 1:  # the record of the first one's failure says how it ended
            raise TaskMeshError(BEGUN_ANEW)
        order = _orders.decode(data)
        modules, evaluate = evaluator(commands.decode(self.text), self.functions)
        client = client_here()
        results = BatchSender(client.sink_input(order.results_sink), order.window, order.window_bytes)
        results.send([])  # a second run of the task shows by this: what the first one took is lost to it
        with client.sink(order.batches_sink, order.window_bytes) as sink:
            given = _batches(BatchReceiver(sink), results.flush)
            with modules.importable(), running(order.context) as logs:
                results.logs = logs.take
                for batch in evaluate(order.context.partition, given):
                    results.add(batch)
        results.end()
        return b""


def _batches(receiver: BatchReceiver, before_waiting: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Give the function its batches; before it waits, send what it has given."""
    while True:
        if not receiver.is_here:
            before_waiting()
        batches = receiver.take().batches
        if batches is None:
            return
        yield from batches


class StreamMessage(NamedTuple):
    """A message of a stream that has come.

    Attributes:
        data: the message as it travels.
        batches: its batches, which may be none; None for the end of the stream.
    """

    data: Buffer
    batches: Batches | None


class BatchReceiver:
    """Messages of a stream, in order.

    Args:
        sink: where they come from.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._next = 0
        self._early: dict[int, StreamMessage] = {}

    @property
    def is_here(self) -> bool:
        """True if `take` does not wait."""
        self._collect(0)
        return self._next in self._early

    def take(self) -> StreamMessage:
        """Return the next message.

        Raises:
            TaskMeshError: a message has come twice.
        """
        self._collect(None)
        message = self._early.pop(self._next)
        self._next += 1
        return message

    def _collect(self, timeout: float | None) -> None:
        """Take what has arrived in; wait for one message."""
        while self._next not in self._early:
            try:
                outcome = self._sink.get(timeout)
            except TimeoutError:
                return
            data = outcome.message()
            number, batches, _ = piece.decode_message(data)
            self._sink.ack(outcome)
            if number < self._next or number in self._early:
                raise TaskMeshError(BEGUN_ANEW)
            self._early[number] = StreamMessage(data, batches)


class BatchSender:
    """Batches that leave as messages of a stream, a window of them ahead of the one who takes them.

    Attributes:
        logs: gives the lines that go along.

    Args:
        sink_input: where they go.
        window: messages on their way, at most.
        window_bytes: bytes of these, at most; one message may be larger.
    """

    def __init__(self, sink_input: SinkInput, window: int, window_bytes: int) -> None:
        self._input = sink_input
        self._window = window
        self._window_bytes = window_bytes
        self._number = 0
        self._under_way: deque[tuple[TaskFuture[None], int]] = deque()
        self._bytes = 0
        self.logs: Callable[[], list[str]] = list
        self._held: Batches = []
        self._size = 0
        self._since = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Send a batch, with others if they are small and soon there."""
        now = time.monotonic()
        if not self._held:
            self._since = now
        self._held.append(batch)
        self._size += batch.nbytes
        is_much = self._size >= MOST_BYTES or len(self._held) >= MOST_BATCHES
        if is_much or now - self._since >= MOST_HELD_S:
            self.flush()

    def flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self.send(held)

    def end(self) -> None:
        """Send what is held, and that no more comes."""
        self.flush()
        self.send(None)

    def send(self, batches: Batches | None) -> None:
        """Send a message; wait for room."""
        data = piece.encode_message(Message(self._number, batches, self.logs()))
        while self.is_full(len(data)):
            self._under_way[0][0].result()
        _ = self.put(data)

    def put(self, data: Buffer) -> TaskFuture[None]:
        """Send an encoded message of the next number at once; return the future of its arrival."""
        future = self._input.put(data)
        self._number += 1
        self._under_way.append((future, len(data)))
        self._bytes += len(data)
        return future

    def is_full(self, size: int) -> bool:
        """Return True if a message of this size has to wait."""
        while self._under_way and self._under_way[0][0].done():
            self._bytes -= self._under_way.popleft()[1]
        under_way = len(self._under_way)
        return under_way >= self._window or (under_way > 0 and self._bytes + size > self._window_bytes)

    def cancel(self) -> None:
        """Take back what nobody has taken."""
        for future, _ in self._under_way:
            future.cancel()
        self._under_way.clear()


FRAME: Final = StreamedEvaluation
"""Loaded by name: see `taskmesh.serialize.code`."""
