"""A true fake of a SubmitPort: its thread drains the table, runs the tasks and resolves with real bytes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from taskmesh.client.port.shell import OpenTasks
from taskmesh.config import Config
from taskmesh.errors import SerializationError
from taskmesh.messages.runs import CHUNK, DoneRun, Failed, Progress, Run, Spec
from taskmesh.messages.slot_messages import SlotFailure
from taskmesh.serialize.chunks import BadItem
from taskmesh.serialize.code import load_function
from taskmesh.serialize.exceptions import dumps_exception
from taskmesh.serialize.payload import dumps, dumps_chunk_result, loads_call, loads_chunk

WORKER = "inline/0"


class InlinePort:
    """Runs tasks in submission order, one batch for each turn of its thread.

    Attributes:
        gate: clear it and nothing runs (tasks are still drained and accepted).
        accepting: whether the hub confirms tasks. crashes: arguments whose task kills its worker.
        ran: arguments in the order in which they ran. runs, cancelled: what the client sent.
    """

    def __init__(self, open_tasks: OpenTasks, config: Config) -> None:
        self.client = 0x1234
        self.sleeping = False
        self.connected = True
        self.gate = threading.Event()
        self.gate.set()
        self.accepting = True
        self.crashes: Callable[[tuple[object, ...]], bool] = lambda args: False
        self.ran: list[tuple[object, ...]] = []
        self.runs: list[Run] = []
        self.cancelled: list[int] = []
        self.closed_with: list[bool] = []
        self.was_forked = False
        self.max_batch = 1000
        self._open_tasks = open_tasks
        self._config = config
        self._specs: dict[int, Spec] = {}
        self._todo: deque[Run] = deque()
        self._bell = threading.Event()
        self._unwanted: deque[Sequence[int]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="taskmesh-inline", daemon=True)

    def start(self, timeout: float) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._bell.set()

    def cancel(self, seqs: Sequence[int], *, unstarted: bool = False) -> None:
        if not unstarted:
            self.cancelled += seqs
            return
        self._unwanted.append(seqs)
        self._bell.set()

    def query(self, what: str, argument: str = "", limit: int = 100, timeout: float = 5.0) -> object:
        if what == "tasks":
            return []
        return {"what": what, "argument": argument, "limit": limit}

    def command(self, verb: str, target: str, timeout: float = 5.0) -> object:
        return None

    def close(self, *, cancel: bool, timeout: float) -> None:
        self.closed_with.append(cancel)
        self._closing = True
        self.gate.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def forked(self) -> None:
        self.was_forked = True

    def release(self) -> None:
        """Lets everything run."""
        self.gate.set()
        self._bell.set()

    def _work(self) -> None:
        while not self._closing:
            self.sleeping = True
            told = self._open_tasks.queued or self._unwanted
            if not told and not (self._todo and self.gate.is_set()):
                self._bell.wait(1.0)
            self.sleeping = False
            self._bell.clear()
            # What is added from here on may be of tasks that are not taken in now.
            unwanted = len(self._unwanted)
            self._take()
            for _ in range(unwanted):
                self._cancel_unstarted(set(self._unwanted.popleft()))
            if self.gate.is_set() and self._todo:
                self._run_some()

    def _take(self) -> None:
        specs, runs = self._open_tasks.drain()
        self._specs.update(specs)
        for run in runs:
            self._todo.append(run)
        self.runs += [Run(run.spec, run.group, run.seqs, [], run.key, run.again) for run in runs]
        if self.accepting:
            self._open_tasks.accepted([seq for run in runs for seq in run.seqs])

    def _cancel_unstarted(self, unwanted: set[int]) -> None:
        for run in self._todo:
            ended = [Failed(self.client, seq, 0, "cancelled") for seq in run.seqs if seq in unwanted]
            pairs = zip(run.seqs, run.payloads, strict=True)
            left = [(seq, payload) for seq, payload in pairs if seq not in unwanted]
            run.seqs, run.payloads = [seq for seq, _ in left], [payload for _, payload in left]
            self._open_tasks.resolve([], ended)

    def _run_some(self) -> None:
        done: list[DoneRun] = []
        failed: list[Failed] = []
        budget = self.max_batch
        while self._todo and budget > 0 and not self._closing:
            run = self._todo.popleft()
            spec = self._specs[run.spec]
            for seq, payload in zip(run.seqs, run.payloads, strict=True):
                if budget == 0 or not self.gate.is_set():
                    done_so_far = run.seqs.index(seq)
                    rest = Run(run.spec, run.group, run.seqs[done_so_far:], run.payloads[done_so_far:])
                    self._todo.appendleft(rest)
                    budget = 0
                    break
                budget -= 1
                started = time.perf_counter()
                outcome = self._outcome(spec, seq, payload)
                if isinstance(outcome, Failed):
                    failed.append(outcome)
                else:
                    elapsed = time.perf_counter() - started
                    done.append(DoneRun(run.spec, self.client, 1, WORKER, [seq], [outcome], elapsed))
        self._open_tasks.resolve(done, failed)

    def _outcome(self, spec: Spec, seq: int, payload: bytes) -> object:
        fn = load_function(spec.function)
        if spec.kind == CHUNK:
            items, starred, trailers = loads_chunk(payload)
            items = [
                item if type(item) is BadItem else (*(item if starred else (item,)), *trailers)
                for item in items
            ]
            if any(isinstance(args, tuple) and self.crashes(args) for args in items):
                return Failed(self.client, seq, 1, "crash", worker=WORKER, history=["attempt 1: crash"])
            return self._chunk(fn, items, spec.name)
        args, kwargs = loads_call(payload)
        if self.crashes(args):
            history = [f"attempt {attempt}: crash" for attempt in (1, 2, 3)]
            return Failed(self.client, seq, 3, "crash", worker=WORKER, history=history)
        self.ran.append(args)
        try:
            return dumps(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001
            return Failed(self.client, seq, 1, "exception", *dumps_exception(error), worker=WORKER)

    def _chunk(self, fn: Callable[..., object], items: list[object], name: str) -> object:
        values: list[object] = []
        failures: dict[int, SlotFailure] = {}
        for index, args in enumerate(items):
            try:
                if not isinstance(args, tuple):
                    raise SerializationError(args.text)  # could not be pickled or rebuilt
                self.ran.append(args)
                values.append(fn(*args))
            except Exception as error:  # noqa: BLE001
                values.append(None)
                failures[index] = SlotFailure(index, "exception", *dumps_exception(error))
        return dumps_chunk_result(values, failures, where=name)


def progress(seq: int, done: float, total: float) -> Progress:
    """News of a running task."""
    return Progress(0x1234, seq, 1, done, total, WORKER)
