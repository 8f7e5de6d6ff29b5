"""Modules that Spark brings to its Python workers, which a slot imports for functions of their job."""

from __future__ import annotations

import pkgutil
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from taskmesh.serialize.code import takes_code

File = tuple[str, bytes]
"""Name and content of a Python file, or of a zip file of packages."""
_OF_ALL: Final = sys.stdlib_module_names | {"taskmesh", "pyspark", "pyarrow", "pandas", "numpy"}
"""Modules that are the same for all jobs, as they are loaded already: also in Spark's own workers."""


class JobModules:
    """Files with modules, and what this process has imported from them.

    Another job's modules may have the same names, and so may modules of the pool. So each job has its own. A
    process that runs functions of registered modules only has none.

    Args:
        files: in the order in which Spark searches them.
    """

    def __init__(self, files: tuple[File, ...]) -> None:
        self._path: list[str] = []
        self._imported: dict[str, ModuleType] = {}
        if not files or not takes_code():
            return
        folder = Path(tempfile.mkdtemp(prefix="taskmesh-modules-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, content in files:
            (folder / name).write_bytes(content)
        packed = [str(folder / name) for name, _ in files if not name.endswith(".py")]
        self._path = [*packed, str(folder)]
        self._names = {each.name for each in pkgutil.iter_modules(self._path)} - _OF_ALL

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Put these modules before all others for a while."""
        if not self._path:
            yield
            return
        others = self._exchanged(self._imported)
        sys.path[:0] = self._path
        before = set(sys.modules)
        try:
            yield
        finally:
            self._names |= {name for name in sys.modules.keys() - before if self._holds(sys.modules[name])}
            self._imported = self._exchanged(others)
            for each in self._path:
                with suppress(ValueError):  # a function may have changed the path
                    sys.path.remove(each)

    def _exchanged(self, modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
        """Put these in place of all that have such names, and return those."""
        names = [each for each in sys.modules if each in self._names or each.partition(".")[0] in self._names]
        found = {name: sys.modules.pop(name) for name in names}
        sys.modules.update(modules)
        return found

    def _holds(self, module: ModuleType) -> bool:
        """Return True for a module from these files: a package without `__init__.py` shows once imported."""
        spec: Any = getattr(module, "__spec__", None)
        places = (spec.submodule_search_locations or [spec.origin]) if spec is not None else [None]
        return all(str(each).startswith(self._path[-1]) for each in places)


job_modules = lru_cache(maxsize=4)(JobModules)
"""The modules of a job: all its functions in this process share them."""
