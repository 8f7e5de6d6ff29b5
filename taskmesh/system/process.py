"""This process, and others like it: versions, limits, and starting an interpreter with the same options."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from taskmesh.errors import TaskMeshError

PYTHON = platform.python_version()
_GREEN = {"gevent", "eventlet"}


@functools.cache
def cloudpickle_version() -> str:
    """Return the version of the installed cloudpickle, read from its source: loading it is slow."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", Path(spec.origin).read_text(encoding="utf-8"))
        return found.group(1) if found else ""
    return ""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def provided(lacking: str = "a mesh cannot be opened here") -> Iterator[None]:
    """Surround code that takes descriptors, memory, threads and processes from the system.

    Args:
        lacking: what fails if the system refuses them, as the first words of the error text.

    Raises:
        TaskMeshError: the system refuses one; the message says which limits to raise.
    """
    try:
        yield
    except TaskMeshError:
        raise
    except (OSError, RuntimeError) as error:  # the latter: "can't start new thread"
        raise TaskMeshError(
            f"{lacking}: {error}. Raise the limit that was met (`ulimit -n` of open files, "
            "`-u` of processes and threads, `-v` of memory, or the container's), or have the sandbox "
            "allow it"
        ) from error


def importable(path: Sequence[object]) -> list[str]:
    """Return a module search path as text, without entries that are no path: imports skip those, too."""
    return [os.fsdecode(entry) for entry in path if isinstance(entry, str | bytes | os.PathLike)]


def interpreter_command(code: str, name: str, path: Sequence[object]) -> list[str]:
    """Return the command line of an interpreter with this one's options that runs `code`.

    Args:
        code: the program.
        name: for `ps`.
        path: its module search path. Each entry is an argument of its own, since one alone may not be long.
    """
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    argv = "__import__('sys').argv"
    prepare = f"__import__('sys').path[:] = {argv}[2:]; del {argv}[2:]; "
    return [sys.executable, *options, "-c", prepare + code, name, *importable(path)]


def hashing_alike(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of an interpreter that hashes text as all slots do.

    Tasks of one job run in several pools: `hash(text)` and the order of a set have to be the same in all of
    them. The seed is a variable of the environment, so an interpreter that was told to ignore it (`-E`, `-I`)
    gets one without Python's other variables.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (sys.flags.ignore_environment and name.startswith("PYTHON"))
    }
    alike = {"-E": [], "-I": ["-s", "-P"]}
    end = command.index("-c")
    options = [option for given in command[1:end] for option in alike.get(given, [given])]
    return [command[0], *options, *command[end:]], {**environment, "PYTHONHASHSEED": "0"}


def start_in_session(
    command: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program with these descriptors, in a session of its own: a terminal's Ctrl-C must not reach it.

    In a sandbox without setsid it stays in our session. Then processes that it starts may outlive it.

    Args:
        command: its command line.
        descriptors: those that it inherits.
        environment: its environment; None for this process's.

    Raises:
        OSError: no process can be had.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": descriptors, "env": environment}
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOSYS}:
            raise
        return subprocess.Popen(command, **options)


def refuse_green_threads() -> None:
    """Refuse a program whose threads are coroutines of one thread: where one waits, all stand still.

    Raises:
        TaskMeshError: gevent or eventlet has replaced the standard library's threads.
    """
    if sys.modules.keys().isdisjoint(_GREEN):
        return
    import _thread
    import queue
    import select
    import socket
    import subprocess

    parts = {
        "thread": _thread.start_new_thread,
        "select": select.select,
        "socket": socket.socket,
        "subprocess": subprocess.Popen,
        "queue": queue.SimpleQueue,
    }
    makers = {part.__module__.partition(".")[0] for part in parts.values()} & _GREEN
    if makers:
        left_out = ", ".join(f"{name}=False" for name in parts)
        raise TaskMeshError(
            f"a mesh cannot be opened here: {makers.pop()} has replaced Python's threads, or what they wait "
            f"with. Use monkey.patch_all({left_out}), or open the mesh in a program that is not patched"
        )
