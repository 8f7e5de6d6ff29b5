"""The versions that hellos and status state of this process."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import platform
import re
from pathlib import Path

PYTHON = platform.python_version()


@functools.cache
def cloudpickle_version() -> str:
    """The version of the cloudpickle that is installed, read from its source: loading it is slow."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", Path(spec.origin).read_text(encoding="utf-8"))
        return found.group(1) if found else ""
    return ""
