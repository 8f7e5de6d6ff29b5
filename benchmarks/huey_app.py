"""The Huey application that its workers import: a queue in an SQLite file."""

from __future__ import annotations

import os
from typing import Any

from huey import SqliteHuey

huey = SqliteHuey(filename=os.environ["BENCHMARK_FILE"])


@huey.task()
def call(work: Any, argument: Any) -> Any:
    """Run one of the workloads; a result of None is not kept, so it is told as True."""
    result = work(argument)
    return True if result is None else result
