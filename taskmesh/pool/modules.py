"""The modules that slots import when they start: they are checked before a pool says that it is ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from taskmesh.errors import ConfigError
from taskmesh.system.process import importable

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
    os.write(report, b"ok")
os._exit(0)
"""


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


def modules_of(references: Sequence[str]) -> list[str]:
    """Return the modules of middleware.

    Raises:
        ConfigError: a reference is not MODULE:NAME.
    """
    pairs = [reference.partition(":") for reference in references]
    for module, _, name in pairs:
        if not (module and name):
            raise ConfigError(
                f"middleware is given as MODULE:NAME, like package.module:Tracing, not {module!r}"
            )
    return [module for module, _, _ in pairs]


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
    try:
        with tempfile.TemporaryFile() as report:
            request = json.dumps([importable(sys.path), report.fileno(), list(modules)])
            outcome = subprocess.run(
                [sys.executable, "-c", _IMPORTS, request],
                stdin=subprocess.DEVNULL,
                stdout=2,  # ours is for the line that says that the worker is ready
                pass_fds=[report.fileno()],
                check=False,
            )
            report.seek(0)
            text = report.read()
    except OSError as error:
        raise ConfigError(f"modules cannot be checked: {error}") from error
    if not text:
        raise ConfigError(
            f"importing {' '.join(modules)} ended the process with status {outcome.returncode}: "
            "a module that tasks live in must not end the interpreter when it is imported"
        )
    if text != b"ok":
        raise ConfigError(_import_failure(*json.loads(text)))


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
