"""Spark's Python daemon, in whose workers functions of `MeshSpark.offload` run on the mesh.

With the conf entry `spark.python.daemon.module=taskmesh.spark.daemon` executors start this module instead of
`pyspark.daemon`. It is the same daemon, except that each worker, once it is forked, replaces the part of
PySpark's that reads commands (`taskmesh.spark.jobs.command_reader`). No more is imported before the fork.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_work = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """Run Spark tasks that come over a socket, in a forked worker."""
    from taskmesh.spark.jobs.offload import is_supported

    if is_supported():  # else it is PySpark's daemon, and marked functions say what is missing
        from taskmesh.spark.jobs.command_reader import install

        install()
    return int(_work(sock, authenticated))


daemon.worker = worker

if __name__ == "__main__":
    daemon.manager()
