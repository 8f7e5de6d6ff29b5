"""The Celery application that its worker imports. All is pickled: the rows send arrays and functions."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.rates import RATE

REDIS = os.environ["BENCHMARK_REDIS"]

app = Celery("benchmarks", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(
    task_serializer="pickle",
    result_serializer="pickle",
    accept_content=["pickle"],
    broker_connection_retry_on_startup=True,
    task_acks_late=bool(os.environ.get("BENCHMARK_ACKS_LATE")),
)


@app.task(name="call")
def call(work: Any, argument: Any) -> Any:
    """Run one of the workloads."""
    return work(argument)


@app.task(name="call_limited", rate_limit=f"{RATE}/s")
def call_limited(work: Any, argument: Any) -> Any:
    """Run one of the workloads; a worker starts so many in a second."""
    return work(argument)
