"""`taskmesh worker` becomes the worker program, without loading what the other commands are made of."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

PROGRAM = "taskmesh_workers"
HELP = {"-h", "--help"}


def succeeded(line: Sequence[str]) -> None:
    """Becomes `python -m taskmesh_workers ARGUMENTS` for `worker ARGUMENTS`.

    Returns where the line is another one or asks for help, or where that package is not installed: the
    command says so.
    """
    if not line or line[0] != "worker" or not HELP.isdisjoint(line):
        return
    if importlib.util.find_spec(PROGRAM) is None:
        return
    if sys.stdout is not None:  # started without it: >&-
        sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", PROGRAM, *line[1:]])  # noqa: S606
