"""The rows: each takes an open contender, measures, checks every answer, and gives its figures.

Two workers, default settings. The warm-up is a few no-ops, so that nothing is known yet of how long the
measured function takes.
"""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import clients, graphs, machine, rates, workloads
from benchmarks.contender import Contender

MB = 10**6
ROOT = Path(__file__).resolve().parents[1]
FAULT_LIMIT_S = 75.0


class Scale(NamedTuple):
    """The amount of work of a row; `quick` keeps the shape and a fifth of the amount."""

    workers: int = 2
    quick: bool = False

    def of(self, amount: int, least: int = 1) -> int:
        """Scale an amount."""
        return max(least, amount // 5) if self.quick else amount


class Measured(NamedTuple):
    """A row's figures, keyed as METRICS; the window of its timed part; what else is worth keeping."""

    figures: dict[str, float]
    window: machine.Window
    detail: dict[str, Any]


class WrongAnswer(Exception):
    """A contender gave back something else than what the tasks return."""


def check(
    results: Sequence[Any], expected: Sequence[Any], same: Callable[[Any, Any], bool] | None = None
) -> None:
    """Compare all answers.

    Raises:
        WrongAnswer: A number or a value differs; the message names the first place.
    """
    if len(results) != len(expected):
        raise WrongAnswer(f"{len(results)} results for {len(expected)} tasks")
    for index, (result, value) in enumerate(zip(results, expected, strict=True)):
        if not (same(result, value) if same else result == value):
            raise WrongAnswer(f"task {index} gave {result!r:.80}, not {value!r:.80}")


def warm_up(contender: Contender, scale: Scale) -> None:
    """Start every worker, and import the no-op there."""
    expected = list(range(20 * scale.workers))
    check(contender.run_each(workloads.noop, expected), expected)


def noop(contender: Contender, scale: Scale) -> Measured:
    """Throughput of tasks that do nothing, each submitted on its own with a future, all results gathered."""
    arguments = range(scale.of(contender.sizes.noops))
    with machine.Window() as window:
        results = contender.run_each(workloads.noop, arguments)
    check(results, arguments)
    return Measured({"noop": len(arguments) / window.seconds}, window, {"tasks": len(arguments)})


def bulk(contender: Contender, scale: Scale) -> Measured:
    """Throughput of the bulk call."""
    arguments = range(scale.of(contender.sizes.mapped))
    with machine.Window() as window:
        results = contender.run_chunked(workloads.noop, arguments, 100)
    check(results, arguments)
    detail = {"tasks": len(arguments), "call": contender.bulk}
    return Measured({"map": len(arguments) / window.seconds}, window, detail)


def round_trip(contender: Contender, scale: Scale) -> Measured:
    """Time of one task after the other, each awaited."""
    count = scale.of(contender.sizes.trips)
    times, results = [], []
    with machine.Window() as window:
        for index in range(count):
            start = time.perf_counter_ns()
            results.append(contender.round_trip(workloads.noop, index))
            times.append((time.perf_counter_ns() - start) / 1000)
    check(results, range(count))
    times.sort()
    figures = {"p50": statistics.median(times), "p99": times[math.ceil(0.99 * count) - 1]}
    return Measured(figures, window, {"trips": count})


def skew(contender: Contender, scale: Scale) -> Measured:
    """Every tenth of 200 naps takes 100 ms, the others 2 ms: round-robin gives one worker all long ones."""
    naps = [0.1 if index % 10 == 0 else 0.002 for index in range(200)]
    with machine.Window() as window:
        results = contender.run_each(workloads.nap, naps)
    check(results, naps)
    return Measured({"skew": window.seconds / (sum(naps) / scale.workers)}, window, {"naps": len(naps)})


def distant(contender: Contender, scale: Scale) -> Measured:
    """5,000 naps of 10 ms on slots far away: what is under way has to cover the way there and back.

    The detail tells the same over the time that the naps really took.
    """
    count, each_s, slots = scale.of(5_000), 0.010, 2 * scale.workers
    with machine.Window() as window:
        taken = contender.run_each(workloads.timed_nap, [each_s] * count)
    check([seconds >= each_s for seconds in taken], [True] * count)
    figures = {"distant": window.seconds / (count * each_s / slots)}
    return Measured(figures, window, {"naps": count, "over_naps": window.seconds / (sum(taken) / slots)})


def fault(contender: Contender, scale: Scale) -> Measured:
    """One executing process is killed once 500 of 2,000 tasks of 5 ms have begun; the log tells the rest."""
    count, each_s = 2_000, 0.005
    with tempfile.TemporaryDirectory(prefix="benchmark") as folder:
        log = os.path.join(folder, "executions")
        Path(log).touch()
        jobs = [workloads.LoggedNap(number, each_s, log) for number in range(count)]
        killer = Killer(log, after=count // 4)
        killer.start()
        try:
            with machine.Window() as window:
                outcomes = contender.run_until(workloads.logged_nap, jobs, FAULT_LIMIT_S)
        finally:
            killer.stop()
        executions = workloads.read_log(log)
    if killer.victim is None:
        raise WrongAnswer("no process was killed: fewer tasks began than the row waits for")
    errors = Counter(type(outcome).__name__ for outcome in outcomes if isinstance(outcome, Exception))
    lost = sum(outcome != number for number, outcome in enumerate(outcomes))
    figures: dict[str, float] = {
        "lost": lost,
        "repeated": len(executions) - len({number for number, _ in executions}),
    }
    if not lost:  # giving up early is no speed
        figures["fault"] = window.seconds / (count * each_s / scale.workers)
    detail = {"errors": dict(errors), "executions": len(executions), "seconds": window.seconds}
    return Measured(figures, window, detail)


class Killer(threading.Thread):
    """Kills the process that began the latest task, once so many have begun."""

    def __init__(self, log: str, after: int) -> None:
        super().__init__(name="killer", daemon=True)
        self._log = log
        self._size = after * workloads.RECORD.size
        self._stopped = threading.Event()
        self.victim: int | None = None

    def run(self) -> None:
        """Look at the log's size every 2 ms."""
        while not self._stopped.wait(0.002):
            if os.path.getsize(self._log) >= self._size:
                self.victim = workloads.read_log(self._log)[-1][1]
                os.kill(self.victim, signal.SIGKILL)
                return

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()


def busy(contender: Contender, scale: Scale) -> Measured:
    """500 tasks of 2 ms of processor time, while the thread that submitted them computes in pure Python.

    The floor is what a fair share of the processors allows: 0.75 s with two workers on two cores, where
    workers and caller get two thirds of a core each.
    """
    count, each_s = 500, 0.002
    cores = len(os.sched_getaffinity(0)) if machine.LINUX else os.cpu_count() or 1
    share = min(1.0, cores / (scale.workers + 1))
    floor = count * each_s / scale.workers / share
    with machine.Window() as window:
        results = contender.run_beside(workloads.spin, [each_s] * count, compute)
    check(results, [each_s] * count)
    return Measured({"busy": window.seconds / floor}, window, {"floor_s": floor, "seconds": window.seconds})


def compute() -> None:
    """Compute for about a tenth of a millisecond, in bytecode that never offers the GIL."""
    total = 0
    for number in range(2_000):
        total += number * number


def start(name: str, scale: Scale) -> Measured:
    """From before exec of a fresh interpreter to its first result, then the memory of everything, idle.

    The first of the two starts only fills the file cache.
    """
    idle_s = 0.5 if scale.quick else 2.0
    first_result(name, scale.workers, None)
    with machine.Window() as window:
        seconds, memory = first_result(name, scale.workers, idle_s)
    figures = {"start": seconds}
    if memory is not None:
        figures["idle"] = memory
    return Measured(figures, window, {"idle_s": idle_s})


def first_result(name: str, workers: int, idle_s: float | None) -> tuple[float, float | None]:
    """Start benchmarks.startup; give the seconds to its first result and the memory in MB after `idle_s`.

    Raises:
        WrongAnswer: The program ended without a first result.
    """
    command = [sys.executable, "-m", "benchmarks.startup", name, str(workers)]
    before = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        line = program.stdout.readline()
        while line and not line.startswith("first result "):  # some peers greet on standard output
            line = program.stdout.readline()
        memory = None
        if line and idle_s is not None:
            time.sleep(idle_s)
            memory = machine.memory_mb(machine.descendants()) if machine.LINUX else None
        program.stdin.close()
        program.stdout.read()
    if not line:
        raise WrongAnswer(f"a fresh interpreter ended with {program.returncode} and no result")
    return float(line.split()[-1]) - before, memory


def byte_echo(contender: Contender, scale: Scale) -> Measured:
    """Bytes there and back, all submitted, then all gathered."""
    return payload_echo(contender, scale, "bytes", lambda content: content, None)


def numpy_echo(contender: Contender, scale: Scale) -> Measured:
    """The same with arrays, whose buffers need not go through the pickle stream."""
    import numpy

    def make(content: bytes) -> Any:
        return numpy.frombuffer(content, numpy.uint8).copy()

    return payload_echo(contender, scale, "numpy", make, numpy.array_equal)


def inference(contender: Any, scale: Scale) -> Measured:
    """Tasks of 1 ms of processor time with 2 MB each, eight a worker under way, beside a direct loop.

    A worker's pause is what it does between the end of a task's function and the start of the next one's.
    """
    import numpy

    array = numpy.frombuffer(random.randbytes(MB) * 2, numpy.uint8).copy()
    count, most = scale.of(1_000), 8 * scale.workers
    for future in [contender.submit(workloads.infer, array) for _ in range(2 * most)]:
        future.result()
    began = time.monotonic()
    for _ in range(count // 4):
        workloads.infer(array)
    direct = count // 4 / (time.monotonic() - began)
    taken, spans, under_way = [], [], deque[Any]()
    with machine.Window() as window:
        for _ in range(count):
            if len(under_way) == most:
                spans.append(under_way.popleft().result())
            start = time.perf_counter_ns()
            under_way.append(contender.submit(workloads.infer, array))
            taken.append((time.perf_counter_ns() - start) / 1000)
        spans += [future.result() for future in under_way]
    spans.sort()
    pauses = [
        (following[1] - span[2]) * 1e6 for span, following in pairwise(spans) if span[0] == following[0]
    ]
    figures = {"handed": statistics.median(taken), "pause": statistics.median(pauses)}
    return Measured(figures | {"infer": count / window.seconds / direct}, window, {"direct": direct})


def payload_echo(
    contender: Contender,
    scale: Scale,
    key: str,
    make: Callable[[bytes], Any],
    same: Callable[[Any, Any], bool] | None,
) -> Measured:
    """Echo 200 payloads of 1 MB, then 5 of 64 MB: different objects with different contents."""
    figures: dict[str, float] = {}
    small = [make(random.randbytes(MB)) for _ in range(scale.of(200))]
    warm = [make(bytes(MB)) for _ in range(2 * scale.workers)]
    check(contender.run_each(workloads.echo, warm), warm, same)
    with machine.Window() as window:
        results = contender.run_each(workloads.echo, small)
    check(results, small, same)
    figures[f"{key}1"] = len(small) / window.seconds
    del results, small
    large = [make(random.randbytes(MB) * 64) for _ in range(scale.of(5, 2))]
    with machine.Window() as window_of_large:
        results = contender.run_each(workloads.echo, large)
    check(results, large, same)
    figures[f"{key}64"] = 64 * len(large) / window_of_large.seconds
    foreign = [used for used in (window.foreign_cpus, window_of_large.foreign_cpus) if used is not None]
    window.foreign_cpus = max(foreign, default=None)
    return Measured(figures, window, {"seconds": [window.seconds, window_of_large.seconds]})


MEASURE: dict[str, Callable[[Contender, Scale], Measured]] = {
    "noop": noop,
    "map": bulk,
    "roundtrip": round_trip,
    "skew": skew,
    "distant": distant,
    "fault": fault,
    "busy": busy,
    "bytes": byte_echo,
    "numpy": numpy_echo,
    "infer": inference,
}


def graph_row(
    measured: Callable[[Any, int], tuple[dict[str, float], machine.Window, dict[str, Any]]], share: int
) -> Callable[[Contender, Scale], Measured]:
    """Make a row of tasks that depend on others; `share` of the contender's nodes."""

    def row(contender: Any, scale: Scale) -> Measured:
        return Measured(*measured(contender, scale.of(contender.nodes // share)))

    return row


MEASURE |= {
    "dag": graph_row(graphs.dag, 1),
    "chain": graph_row(graphs.chain, 10),
    "blocked": graph_row(graphs.blocked, 1),
}


def rate(contender: Any, scale: Scale) -> Measured:
    """Count the tasks that start under a limit of 50/s: see `rates.rate`."""
    return Measured(*rates.rate(contender, scale.of(rates.SECONDS)))


MEASURE["rate"] = rate


def several_clients(contender: Any, scale: Scale) -> Measured:
    """Four clients together, beside one alone: see `clients.clients`."""
    return Measured(*clients.clients(contender, clients.CLIENTS * scale.of(contender.sizes.noops)))


MEASURE["clients"] = several_clients


def measure(name: str, contender: Contender, row: str, scale: Scale) -> Measured:
    """Run one row of one contender, which is opened and closed here.

    Raises:
        WrongAnswer: The contender returned something else than its tasks did.
    """
    if row == "start":
        return start(name, scale)
    contender.open(scale.workers)
    try:
        warm_up(contender, scale)
        return MEASURE[row](contender, scale)
    finally:
        contender.close()
