"""Spark drivers as processes, and a standalone cluster for them, as tests hold them."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.harness import leaks
from tests.harness.program import ROOT, environment
from tests.harness.waiting import wait_until
from tests.spark.conftest import QUICK_JAVA, WORKERS_MARK

START_S = 300.0
JOB_S = 240.0
PLAIN = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def spark_environment() -> dict[str, str]:
    """For programs that start JVMs and Python workers."""
    return environment({
        leaks.MARK: WORKERS_MARK,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "SPARK_NO_DAEMONIZE": "1",
    })  # fmt: skip


class Driver:
    """A driver; its jobs run beside each other."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.errors = folder / "driver.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps({**PLAIN, **settings})],
                cwd=ROOT,
                env=spark_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        self._answers: dict[int, Future[Any]] = {0: Future()}
        self._reader = threading.Thread(target=self._read, name="a driver's answers", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            answer = json.loads(line)
            future = self._answers[answer["number"]]
            if "error" in answer:
                future.set_exception(AssertionError(answer["error"]))
            else:
                future.set_result(answer["value"])
        for future in self._answers.values():
            if not future.done():
                future.set_exception(AssertionError(f"the driver ended:\n{self.errors.read_text()[-4000:]}"))

    def ready(self) -> "Driver":
        self._answers[0].result(START_S)
        return self

    def start(self, job: str, **arguments: Any) -> Future[Any]:
        """Starts a job of tests.spark.driven."""
        assert self.process.stdin
        number = len(self._answers)
        future = self._answers[number] = Future()
        self.process.stdin.write(
            json.dumps({"number": number, "job": job, "arguments": arguments}, default=str) + "\n"
        )
        return future

    def run(self, job: str, **arguments: Any) -> Any:
        """A job's value."""
        return self.start(job, **arguments).result(JOB_S)

    def end(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()


@contextmanager
def driving(folder: Path, settings: dict[str, str]) -> Iterator[Driver]:
    """A driver while a block runs."""
    driver = Driver(folder, settings)
    try:
        yield driver.ready()
    finally:
        driver.end()


def executors(root: int) -> list[psutil.Process]:
    """The executor JVMs below a process."""
    below = psutil.Process(root).children(recursive=True)
    return [each for each in below if "CoarseGrainedExecutorBackend" in " ".join(_line(each))]


def _line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


class Standalone:
    """A Master and two Workers that count as two hosts, made of spark-class: pip has no start scripts.

    Attributes:
        url: of the Master.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "Standalone":
        deploy = "org.apache.spark.deploy"
        log = self._start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = wait_until(lambda: _found(r"spark://[\d.]+:\d+", log), START_S, "the Master's address")
        logs = [
            self._start(
                f"worker-{host}",
                f"{deploy}.worker.Worker",
                *("--host", host, "--cores", "2", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(self._folder / f"work-{host}"), self.url),
            )
            for host in ("127.0.0.1", "localhost")
        ]
        for log in logs:
            wait_until(
                lambda log=log: _found("Successfully registered with master", log), START_S, "a Worker"
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    @property
    def workers(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def _start(self, name: str, *command: str) -> Path:
        log = self._folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [home / "bin" / "spark-class", *command],
                    env={**spark_environment(), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        return log


def _found(pattern: str, log: Path) -> str:
    match = re.search(pattern, log.read_text(errors="replace"))
    return match.group(0) if match else ""


def settled(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    return path.read_text().splitlines() if os.path.exists(path) else []
