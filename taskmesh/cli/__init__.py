"""The command line; taskmesh/cli/application.py is the list of its commands.

Each command loads what it needs when it runs: `taskmesh --help` loads neither the mesh nor ZeroMQ, and a
probe (`taskmesh health`, which Kubernetes runs every few seconds in every pod) not even the other commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taskmesh.http.client import PROBES, SideClient, SidePortUnreachable

__all__ = ["main"]


def main() -> int:
    """Run the command line; return its exit code (taskmesh.cli.command explains them)."""
    code = probed(sys.argv[1:])
    if code is not None:
        return code
    from taskmesh.cli.application import app
    from taskmesh.cli.command import unprinted
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


def probed(line: Sequence[str]) -> int | None:
    """Return the exit code of a probe as Kubernetes has it: `health VERB --http HOST:PORT`.

    None when this is no plain one, or got no plain answer: the command is for these.
    """
    match line:
        case ["health", verb, "--http", address] if verb in PROBES:
            host, _, port = address.rpartition(":")
        case _:
            return None
    if not host.replace(".", "").isdigit() or not port.isdigit():
        return None
    try:
        status, text = SideClient(host, int(port)).ask("GET", PROBES[verb])
    except SidePortUnreachable:
        return None
    if status not in (200, 503):
        return None
    sys.stdout.write(f"{text}\n")
    return 0 if status == 200 else 1
