"""Starting an interpreter like our own one, in a session of its own where that is possible."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence


def importable(path: Sequence[object]) -> list[str]:
    """A module search path as text, without what is no path: imports pass that over, too."""
    return [os.fsdecode(entry) for entry in path if isinstance(entry, str | bytes | os.PathLike)]


def interpreter(code: str, name: str, path: Sequence[object]) -> list[str]:
    """The command line of an interpreter with our own one's options that runs `code`.

    Args:
        name: for `ps`.
        path: its module search path. It travels as arguments of their own, since one alone may not be long.
    """
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    argv = "__import__('sys').argv"
    prepare = f"__import__('sys').path[:] = {argv}[2:]; del {argv}[2:]; "
    return [sys.executable, *options, "-c", prepare + code, name, *importable(path)]


def started(line: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a program with these descriptors, so that a terminal's Ctrl-C does not reach it.

    In a sandbox without setsid it stays in our session. Then what its grandchildren start may outlive it.

    Raises:
        OSError: there is no process for it.
    """
    try:
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=descriptors, start_new_session=True)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOSYS}:
            raise
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=descriptors)
