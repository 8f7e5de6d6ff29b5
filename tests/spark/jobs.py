"""Spark jobs that a test watches: run in a thread of their own, named, with what they ended with."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from taskmesh import Mesh

WAIT_S = 60.0


class Job:
    """An action that runs while the test goes on."""

    def __init__(self, spark: Any, action: Callable[[], Any]) -> None:
        self.group = uuid.uuid4().hex
        self.value: Any = None
        self.error: Exception | None = None
        self._spark = spark
        self._action = action
        self._thread = threading.Thread(target=self._run, name="a spark job", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context = self._spark.sparkContext
        context.setJobGroup(self.group, "a test's job", interruptOnCancel=True)
        try:
            self.value = self._action()
        except Exception as error:  # noqa: BLE001  what it is, is what the test asks
            self.error = error
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = WAIT_S) -> Any:
        """The action's result; raises its error."""
        self._thread.join(timeout)
        assert self.over, "the job still runs"
        if self.error is not None:
            raise self.error
        return self.value

    def failure(self, timeout: float = WAIT_S) -> str:
        """The text of the error that it ended with."""
        self._thread.join(timeout)
        assert self.over, "the job still runs"
        assert self.error is not None, self.value
        return str(self.error)

    @property
    def failed_tasks(self) -> int:
        """The number of executions of Spark tasks that have failed."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = [
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(self.group)
            for stage in tracker.getJobInfo(job).stageIds
        ]
        return sum(info.numFailedTasks for info in stages if info is not None)


def values(df: Any) -> list[tuple]:
    """The rows of a DataFrame."""
    return [tuple(row) for row in df.collect()]


def failure(action: Callable[[], Any]) -> str:
    """The text of the error that an action ends with."""
    with pytest.raises(Exception, match="Error") as caught:
        action()
    return str(caught.value)


def left(address: str) -> int:
    """Tasks that the hub has not ended."""
    with Mesh(address) as mesh:
        return sum(mesh.status()["tasks"].values())


class Journal:
    """A file in which tasks note each execution: the ids they got."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.path.touch()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def task(self, seconds: float = 0.0) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """A task that notes the batch's first id, waits, and gives the ids back."""
        return noting(str(self.path), seconds)


def noting(path: str, seconds: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A task that notes the batch's first id, waits, and gives the ids back."""

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        note(path, batch["id"][0])
        threading.Event().wait(seconds)
        return batch.select(["id"])

    return noted


def note(path: str, what: object) -> int:
    """Adds a line to a file that many write; gives how often it had been there before."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        before = os.pread(descriptor, 1 << 20, 0).decode().splitlines().count(str(what))
        os.write(descriptor, f"{what}\n".encode())
    finally:
        os.close(descriptor)
    return before


class Timed:
    """A DataFrame for bridges; notes how long each try of a partition of theirs lasts in Spark's worker."""

    def __init__(self, df: Any, path: Path) -> None:
        self._df = df
        self._path = path
        self.schema = df.schema
        self.sparkSession = df.sparkSession

    def mapInArrow(self, function: Callable[..., Any], schema: Any) -> Any:  # noqa: N802  Spark's name
        """As the DataFrame's own."""
        path = str(self._path)

        def timed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            began = time.monotonic()
            try:
                yield from function(batches)
            finally:
                note(path, time.monotonic() - began)

        return self._df.mapInArrow(timed, schema)

    @property
    def seconds(self) -> list[float]:
        """Of each try."""
        return [float(line) for line in self._path.read_text().splitlines()]


def within(limit: float, timed: Timed) -> None:
    """Each try of a partition that failed took about a time limit at most, all tries together twice that."""
    assert len(timed.seconds) == 3, "as many as the session allows"
    assert max(timed.seconds) <= 1.5 * limit
    assert sum(timed.seconds) <= 2 * limit
