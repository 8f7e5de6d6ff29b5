"""Sources of modules: a function that travels by reference says which source its module has at the caller.

A slot compares that with what it has imported. A module is known by the digest of its file as it was when
the module was first looked at since its import, so that a later edit of the file changes nothing here.
"""

from __future__ import annotations

import os
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Final

from taskmesh.messages.runs import LONGEST_NAME

LOGGER: Final = "taskmesh.sources"
"""The logger of what a caller is told of other sources."""
REFERENCE: Final = b"R"
"""The first byte of a function that travels by reference; the names of its module and itself follow."""
_NOT_THE_USERS: Final = sys.stdlib_module_names | {"taskmesh"}
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_known: dict[str, tuple[object, str]] = {}
"""By the module's name: its import spec, of which a reload makes a new one, and its source."""


def source_of(name: str) -> str:
    """Return the digest and the path of a module's source; empty if it is not of the user's own files."""
    try:
        spec = object.__getattribute__(sys.modules[name], "__spec__")  # it does not load lazy ones
    except (KeyError, AttributeError):
        spec = None
    known = _known.get(name)
    if known is None or known[0] is not spec:
        known = _known[name] = spec, _read(name, getattr(spec, "origin", None))
    return known[1]


def _read(name: str, path: object) -> str:
    if name.partition(".")[0] in _NOT_THE_USERS or not isinstance(path, str) or not path.endswith(".py"):
        return ""
    if not _INSTALLED.isdisjoint(Path(path).parts):
        return ""
    try:
        data = Path(path).read_bytes()
    except OSError:  # it is in an archive, or gone
        return ""
    digest = blake2b(data, digest_size=8).hexdigest()
    return f"{digest} {os.fsencode(path).decode(errors='backslashreplace')}"[:LONGEST_NAME]


def look_at_imports() -> None:
    """Look at all modules of this process, before their files are edited."""
    for name in list(sys.modules):
        source_of(name)


def module_of(function: bytes) -> str:
    """Return the module of a function's bytes; empty if they hold the function itself."""
    return function[1:].partition(b"\0")[0].decode() if function.startswith(REFERENCE) else ""


def difference(function: bytes, theirs: str) -> str:
    """Return what a caller has to know whose module has another source than here; empty if it has not.

    Args:
        function: the function's bytes.
        theirs: the source of its module at the caller, as `source_of` gives it there.
    """
    module = module_of(function)
    ours = source_of(module) if theirs and module else ""
    digest, _, path = ours.partition(" ")
    other, _, their_path = theirs.partition(" ")
    if not ours or digest == other:
        return ""
    return (
        f"workers run another source of the module {module} than this program has: they have imported {path} "
        f"as of digest {digest}, and here it is {their_path} as of digest {other}. Restart the workers (an "
        f"embedded mesh: open a new one), or call taskmesh.register_by_value({module}) in the program"
    )
