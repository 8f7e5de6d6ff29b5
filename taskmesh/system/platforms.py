"""Which implementation of `system.System` is used here."""

from __future__ import annotations

import os
import sys

from taskmesh.system.linux import Linux
from taskmesh.system.portable import Portable
from taskmesh.system.services import System


def is_portable() -> bool:
    """Whether the portable implementation was asked for, or is all that there is."""
    return os.environ.get("TASKMESH_OS") == "portable" or not sys.platform.startswith("linux")


def here() -> System:
    """A new instance for this process."""
    return Portable() if is_portable() else Linux()
