"""The command line: `taskmesh up`, `hub`, `worker`, `submit`, `status`, `pools`, `tasks`, `drain` and others.

Each command loads what it needs when it runs: `taskmesh --help` loads neither the mesh nor ZeroMQ.
"""

from __future__ import annotations

from taskmesh.cli.application import app

__all__ = ["app", "main"]


def main() -> int:
    """Runs the command line; returns its exit code (taskmesh.cli.exits tells which mean what)."""
    try:
        app(prog_name="taskmesh")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    return 0
