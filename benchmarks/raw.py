"""Raw pyzmq, the physical limit: PUSH bind -> PULL workers -> PUSH -> PULL bind over tcp, and nothing else.

No futures, no retries, no bound on what a worker holds (high-water mark 0): all is sent, then all received.
Arrays travel as a header and a frame for each out-of-band buffer, three times as fast; bytes in the pickle.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from benchmarks.contender import ALL_ROWS, Sizes, Work

STALL_S = 10.0  # raw never notices a loss: so long without any result means that none will come


def apply_all(job: tuple[Work, Sequence[Any]]) -> list[Any]:
    """Do one chunk."""
    work, arguments = job
    return [work(argument) for argument in arguments]


class Raw:
    """The reference of every ratio."""

    sizes = Sizes(noops=100_000, mapped=1_000_000, trips=1_000)
    rows = ALL_ROWS - {"busy"}
    bulk = "100 tasks a message"

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._buffers = False

    @classmethod
    def missing(cls) -> str:
        """Nothing is ever missing: taskmesh needs pyzmq as well."""
        return ""

    def open(self, workers: int) -> None:
        """Fork the workers before there is a context, since a context must not cross a fork."""
        ends = [os.pipe() for _ in range(workers)]
        self._pids = [fork_worker(*end) for end in ends]
        self._context = zmq.Context()
        self._push, self._pull = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._push.hwm = self._pull.hwm = 0
        monitor = self._push.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self._push, self._pull)]
        for reading, writing in ends:
            os.close(reading)
            os.write(writing, f"{ports[0]} {ports[1]}".encode())
            os.close(writing)
        for _ in range(workers):  # tasks sent earlier would all go to the worker that connected first
            if not monitor.poll(10_000):
                raise TimeoutError("a raw worker did not connect within 10 s")
            monitor.recv_multipart()
        self._push.disable_monitor()
        monitor.close(0)

    def close(self) -> None:
        """End the workers and the context."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._context.destroy(linger=0)

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """Send each in a message of its own."""
        if arguments and self.in_frames(arguments[0]):
            return self._run_frames(work, arguments)
        send, dumps = self._push.send, pickle.dumps
        for index, argument in enumerate(arguments):
            send(dumps((index, work, argument)))
        return self._gather(len(arguments))

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """Send `chunk` tasks in each message."""
        send, dumps = self._push.send, pickle.dumps
        starts = range(0, len(arguments), chunk)
        for index, start in enumerate(starts):
            send(dumps((index, apply_all, (work, arguments[start : start + chunk]))))
        return [value for values in self._gather(len(starts)) for value in values]

    def round_trip(self, work: Work, argument: Any) -> Any:
        """Send one, receive one."""
        self._push.send(pickle.dumps((0, work, argument)))
        return pickle.loads(self._pull.recv())[1]

    def run_until(self, work: Work, arguments: Sequence[Any], timeout_s: float) -> list[Any]:
        """Send all, then receive until nothing more comes."""
        for index, argument in enumerate(arguments):
            self._push.send(pickle.dumps((index, work, argument)))
        results: list[Any] = [TimeoutError("lost")] * len(arguments)
        for _ in arguments:
            if not self._pull.poll(int(1000 * min(timeout_s, STALL_S))):
                break
            index, value = pickle.loads(self._pull.recv())
            results[index] = value
        return results

    def _gather(self, count: int) -> list[Any]:
        results: list[Any] = [None] * count
        recv, loads = self._pull.recv, pickle.loads
        for _ in range(count):
            index, value = loads(recv())
            results[index] = value
        return results

    def in_frames(self, argument: Any) -> bool:
        """True if a payload travels out of band and uncopied: arrays do."""
        return hasattr(argument, "__array_interface__")

    def _run_frames(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        if not self._buffers:
            for _ in self._pids:  # one each, as PUSH goes round
                self._push.send(b"")
            self._buffers = True
        for index, argument in enumerate(arguments):
            self._push.send_multipart(to_frames((index, work, argument)), copy=False)
        results: list[Any] = [None] * len(arguments)
        for _ in arguments:
            index, value = from_frames(self._pull.recv_multipart(copy=False))
            results[index] = value
        return results


class RawUncopied(Raw):
    """The same where bytes too are handed to libzmq without a copy: what the last bit of care is worth."""

    rows = frozenset({"bytes"})

    def in_frames(self, argument: Any) -> bool:
        """True if a payload travels uncopied: all large ones do."""
        return not isinstance(argument, int)


def to_frames(message: object) -> list[Any]:
    """Pickle with every large buffer beside the stream, uncopied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def from_frames(frames: Sequence[zmq.Frame]) -> Any:
    """Undo to_frames."""
    return pickle.loads(frames[0].buffer, buffers=[frame.buffer for frame in frames[1:]])


def fork_worker(reading: int, writing: int) -> int:
    """Start one worker, which learns the two ports from the pipe."""

    def work() -> None:
        os.close(writing)
        task_port, result_port = os.read(reading, 64).split()
        serve(int(task_port), int(result_port))

    return fork(work)


def fork(program: Callable[[], None]) -> int:
    """Run a program in a child that never gets back into its parent's code."""
    pid = os.fork()
    if pid:
        return pid
    try:
        program()
    except BaseException:  # noqa: BLE001 (see above)
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def serve(task_port: int, result_port: int) -> None:
    """Work until killed; an empty message says that from now on messages have several frames."""
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.hwm = push.hwm = 0
    pull.connect(f"tcp://127.0.0.1:{task_port}")
    push.connect(f"tcp://127.0.0.1:{result_port}")
    recv, send, loads, dumps = pull.recv, push.send, pickle.loads, pickle.dumps
    while frame := recv():
        index, work, argument = loads(frame)
        send(dumps((index, work(argument))))
    while True:
        index, work, argument = from_frames(pull.recv_multipart(copy=False))
        push.send_multipart(to_frames((index, work(argument))), copy=False)
