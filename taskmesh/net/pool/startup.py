"""A pool's start: the modules that its slots import are checked, and the first slots are watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from taskmesh.core.events import SlotExited
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.pool.host import NO_PROCESS
from taskmesh.system.clock import monotonic
from taskmesh.system.process import importable

PATIENCE = 60.0
"""Seconds in which a program's first slot must come up: no caller waits for it, and when a machine starts
many programs at once processes may be short for a while."""
LONGEST_OUTPUT = 1000
"""Characters of a slot's last output that are reported."""

_IMPORTS = """\
import importlib, json, os, sys
path, report, modules = json.loads(sys.argv[1])
sys.path[:] = path
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        text = f"{type(error).__name__}: {error}"
        os.write(report, json.dumps([module, missing, text[:2000]]).encode())
        break
else:
    os.write(report, b"[]")
os._exit(0)
"""


class SlotStarts:
    """Watches the starts of a pool's slots.

    A shortage may pass, so a slot that did not come up is tried again. Once a slot has been up the place is
    known to be good: then the pool goes on trying for ever.

    Args:
        machine: the pool's machine.
        patience: seconds in which one slot must come up.
        complain: reports a slot that cannot be started, and why; the same reason once.
    """

    def __init__(self, machine: PoolMachine, patience: float, complain: Callable[[str], None]) -> None:
        self._machine = machine
        self._patience = patience
        self._complain = complain
        self._since = monotonic()
        self._one_was_up = False
        self._reported = ""

    def ready(self) -> None:
        """Take note that a slot is up."""
        self._one_was_up = True

    def failed(self, exited: SlotExited) -> None:
        """Report a slot that has ended before it was up.

        Raises:
            TaskMeshError: none has ever been up, each has failed again and again, and the patience is over.
        """
        machine = self._machine
        if machine.state == "draining":
            return
        reason, waited = start_failure(exited), monotonic() - self._since
        if reason != self._reported:
            self._reported = reason
            pool = machine.config.pool
            self._complain(f"pool {pool}: slot {exited.slot} cannot be started, trying again: {reason}")
        if self._one_was_up or waited < self._patience:
            return
        if all(slot.is_broken for slot in machine.slots.values()):
            raise TaskMeshError(f"no slot could be started within {waited:.0f} s: {reason}")


def start_failure(exited: SlotExited) -> str:
    """Return why a slot did not come up: how its process ended, and its last output."""
    log = exited.log[-LONGEST_OUTPUT:].strip()
    if exited.oom:
        how = "it was killed for lack of memory"
    elif exited.status < 0:
        how = f"its process was killed by {_signal_name(-exited.status)}"
    elif exited.status != NO_PROCESS or not log:
        how = f"its process ended with exit code {exited.status}"
    else:
        return log
    return f"{how} before it was ready{f': {log}' if log else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


# --- modules ----------------------------------------------------------------------------------------------


def use_current_directory() -> None:
    """Put the current directory first on this process's module search path, and so on its slots' path.

    Raises:
        ConfigError: it has been deleted.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "modules are looked for in the working directory, and it has been deleted: "
            "change to one that exists"
        ) from None
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def check_modules(modules: Sequence[str]) -> None:
    """Import modules in a process of their own, as a slot will: no user code runs in this one.

    Raises:
        ConfigError: one cannot be imported; the message says why, and what to do.
    """
    if not modules:
        return
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"{module!r} is no module name: write it as after `import`, like package.tasks")
    reading, writing = os.pipe()
    try:
        with os.fdopen(reading, "rb") as report:
            try:
                request = json.dumps([importable(sys.path), writing, list(modules)])
                outcome = subprocess.run(
                    [sys.executable, "-c", _IMPORTS, request],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # ours is for the line that says that the worker is ready
                    pass_fds=[writing],
                    check=False,
                )
            finally:
                os.close(writing)
            os.set_blocking(reading, False)  # a child that a module left may hold the other end for long
            text = report.read()
    except OSError as error:
        raise ConfigError(f"modules cannot be checked: {error}") from error
    if not text:
        raise ConfigError(
            f"importing {' '.join(modules)} ended the process with status {outcome.returncode}: "
            "a module that tasks live in must not end the interpreter when it is imported"
        )
    found = json.loads(text)
    if found:
        raise ConfigError(_import_failure(*found))


def _import_failure(module: str, missing: str | None, text: str) -> str:
    if missing is None:
        trial = f"{sys.executable} -c 'import {module}'"
        return f"module {module!r} cannot be imported here: {text}. Try `{trial}`"
    needs = "" if missing == module else f" needs {missing!r}, which"
    whole = f"module {module!r}{needs} is not"
    return (
        f"{whole} found by this worker. Start it in the folder that contains {missing.partition('.')[0]!r}, "
        f"put that folder on PYTHONPATH, or install it for {sys.executable}"
    )
