"""The memory of processes, as the kernel tells it, and Spark workers that have done nothing else before."""

import contextlib
import re
import uuid
from pathlib import Path
from typing import Any, Self

import psutil

from tests.harness.programs import marked
from tests.spark.conftest import WORKERS_MARK

MIB = 1 << 20
_VARIABLE = "TEST_OF_MEMORY"


def memory(process: int, name: str = "VmRSS") -> int:
    """A line of a process's status, in bytes; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


class Workers:
    """New Python workers of Spark's for what is planned in a `with` block.

    Spark keeps workers for later tasks, and a worker keeps what memory it once had. It starts others, from a
    daemon of their own, for functions that want another environment.
    """

    def __init__(self, spark: Any) -> None:
        self._environment: dict[str, str] = spark.sparkContext.environment
        self._name = uuid.uuid4().hex

    def __enter__(self) -> Self:
        self._environment[_VARIABLE] = self._name
        return self

    def __exit__(self, *_: object) -> None:
        del self._environment[_VARIABLE]

    def all(self) -> dict[int, int]:
        """The workers' process ids, each with its daemon's, of which it is a fork."""
        found = {}
        for process in marked(WORKERS_MARK):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_VARIABLE) == self._name:
                    found[process.pid] = process.ppid()
        return {process: parent for process, parent in found.items() if parent in found}

    def grown(self) -> dict[int, int]:
        """By how many bytes the peak of each worker is above what the daemon handed down to it."""
        return {worker: memory(worker, "VmHWM") - memory(daemon) for worker, daemon in self.all().items()}
