"""`taskmesh worker`: reads its settings, checks its modules, runs a pool until that has drained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from taskmesh.cli.event_log import EventLog
from taskmesh.cli.output import Output
from taskmesh.cli.worker_arguments import Arguments, read
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.net.pool.modules import check_modules, use_current_directory

DRAINED, FAILED, USAGE = 0, 1, 2
"""Exit codes."""


def main(line: Sequence[str]) -> int:
    """Run the worker; return its exit code."""
    out = Output(as_json="--json" in line, program="taskmesh worker")
    try:
        arguments = read(line)
        use_current_directory()
        check_modules((*arguments.modules, *arguments.config.pool.only_registered))
        return _run(arguments, out)
    except KeyboardInterrupt:  # before the pool's own handler was there, or after it had gone
        return FAILED
    except ConfigError as error:
        _tell(out, "error", str(error))
        return USAGE
    except TaskMeshError as error:
        _tell(out, "error", str(error))
        return FAILED


def _tell(out: Output, event: str, text: str) -> None:
    out.news(event, text, {"message": text})


def _run(arguments: Arguments, out: Output) -> int:
    config = arguments.config
    slots = config.pool.slots
    addresses = arguments.addresses

    def ready(pool: str, address: str) -> None:
        queues = ", ".join(config.pool.queues)
        plural = "s" if slots != 1 else ""
        out.ready(
            {
                "event": "ready",
                "pool": pool,
                "slots": slots,
                "queues": list(config.pool.queues),
                "tags": list(config.pool.tags),
                "address": address,
                "pid": os.getpid(),
            },
            f"taskmesh worker: ready: pool {pool}, {slots} slot{plural}, queues {queues}, hub {address}",
        )

    from taskmesh.net.pool.program import run_pool

    drained = run_pool(
        config,
        addresses,
        slots=slots,
        name=arguments.name,
        modules=arguments.modules,
        ready=ready,
        news=partial(_tell, out),
        record=EventLog(out.news, arguments.log_level).record,
        stay=arguments.stay,
    )
    return DRAINED if drained else FAILED
