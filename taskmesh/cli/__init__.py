"""The command line: `taskmesh up`, `hub`, `worker`, `submit`, `status`, `pools`, `tasks`, `drain` and others.

Each command loads what it needs when it runs: `taskmesh --help` loads neither the mesh nor ZeroMQ, and a
probe (`taskmesh health`, which Kubernetes runs every few seconds in every pod) not even the other commands.
"""

from __future__ import annotations

import sys

from taskmesh.cli.probe import probed

__all__ = ["main"]


def main() -> int:
    """Run the command line; return its exit code (taskmesh.cli.exits explains them)."""
    code = probed(sys.argv[1:])
    if code is not None:
        return code
    from taskmesh.cli.application import app
    from taskmesh.cli.exits import unprinted
    from taskmesh.cli.output import settle

    try:
        app(prog_name="taskmesh")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    except OSError as error:
        return unprinted(error)
    finally:
        settle()
    return 0
