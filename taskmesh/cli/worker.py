"""`taskmesh worker`: reads its settings, checks its modules, runs a pool until that has drained."""

from __future__ import annotations

import os
from collections.abc import Sequence

from taskmesh.cli.worker_arguments import Arguments, read
from taskmesh.cli.worker_reports import Reports
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.net.event_log import EventLog
from taskmesh.net.pool.modules import check_modules, use_current_directory

DRAINED, FAILED, USAGE = 0, 1, 2
"""Exit codes."""


def main(line: Sequence[str]) -> int:
    """Runs the worker; returns its exit code."""
    reports = Reports(as_json="--json" in line)
    try:
        arguments = read(line)
        use_current_directory()
        check_modules((*arguments.modules, *arguments.config.pool.only_registered))
        return _run(arguments, reports)
    except KeyboardInterrupt:  # before the pool's own handler was there, or after it had gone
        return FAILED
    except ConfigError as error:
        reports.news("error", str(error))
        return USAGE
    except TaskMeshError as error:
        reports.news("error", str(error))
        return FAILED


def _run(arguments: Arguments, reports: Reports) -> int:
    config = arguments.config
    slots = config.pool.slots
    addresses = arguments.addresses

    def ready(pool: str, address: str) -> None:
        queues = ", ".join(config.pool.queues)
        reports.ready(
            f"ready: pool {pool}, {slots} slot{'s' if slots != 1 else ''}, queues {queues}, hub {address}",
            {
                "pool": pool,
                "slots": slots,
                "queues": list(config.pool.queues),
                "tags": list(config.pool.tags),
                "address": address,
                "pid": os.getpid(),
            },
        )

    from taskmesh.net.programs import run_pool

    drained = run_pool(
        config,
        addresses,
        slots=slots,
        name=arguments.name,
        modules=arguments.modules,
        ready=ready,
        news=reports.news,
        record=EventLog(reports.event, arguments.log_level).record,
        stay=arguments.stay,
    )
    return DRAINED if drained else FAILED
