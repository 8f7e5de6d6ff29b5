"""A pool that watches the files of its modules: its slots are replaced when one has changed (`--watch`).

It looks at the times of files, which every file system has, network ones too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from taskmesh.core.events import SlotDue
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.slots import RELOAD

LOOK: Final = 0.5
"""Seconds between two looks, at least."""
SHARE: Final = 0.05
"""Share of the loop's time that looks may take: a huge folder is looked at less often."""
_INSTALLED: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
Version = tuple[int, int]
"""Time of the last change, and size."""


class CodeWatch:
    """A timer of the pool's loop: when a Python file has changed, all slots are due.

    A file that cannot be compiled, such as one that is half written, is told, and changes nothing.

    Args:
        machine: the pool's machine.
        due: takes a slot that is due.
        record: logs why the old code goes on.
        folders: where files are looked for, and in the folders below.
    """

    def __init__(
        self,
        machine: PoolMachine,
        due: Callable[[SlotDue], None],
        record: Callable[[str, dict[str, object]], None],
        folders: list[str],
    ) -> None:
        self.deadline = 0.0
        self._machine = machine
        self._due = due
        self._record = record
        self._folders = folders
        self._known = self._look()
        self._broken: set[str] = set()

    def turn(self, now: float) -> None:
        began = time.thread_time()
        found = self._look()
        self.deadline = now + max(LOOK, (time.thread_time() - began) / SHARE)
        changed = {path for path, version in found.items() if self._known.get(path) != version}
        gone = self._known.keys() - found.keys()
        self._known = found
        if not changed and not gone:
            return
        self._broken = {path for path in self._broken | changed if not self._compiles(path)}
        if self._broken:
            return
        for slot in self._machine.slots.values():
            self._due(SlotDue(slot.number, RELOAD))

    def _look(self) -> dict[str, Version]:
        return {path: version for folder in self._folders for path, version in python_files(folder)}

    def _compiles(self, path: str) -> bool:
        try:
            with open(path, "rb") as file:
                compile(file.read(), path, "exec", dont_inherit=True)
        except OSError:  # it is gone
            return True
        except (SyntaxError, ValueError) as error:
            at = f"{path}:{getattr(error, 'lineno', 0)}"
            text = f"the old code goes on: {at}: {type(error).__name__}: {error}"
            self._record("reload.failed", {"pool": self._machine.config.pool, "text": text})
            return False
        return True


def code_folders() -> list[str]:
    """Return the folders that have the user's own modules: the working directory, and those of PYTHONPATH."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.getcwd(), *(os.path.abspath(folder) for folder in given if folder)]
    return [folder for folder in dict.fromkeys(folders) if not folder.startswith(sys.prefix + os.sep)]


def python_files(folder: str) -> Iterator[tuple[str, Version]]:
    """Yield the Python files of a folder and of those below, without hidden and installed ones."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it is gone, or may not be read
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, (status.st_mtime_ns, status.st_size)
            elif (
                entry.name[0] != "." and entry.name not in _INSTALLED and entry.is_dir(follow_symlinks=False)
            ):
                yield from python_files(entry.path)
        except OSError:
            continue
