"""Purity: core and wire decide and encode, they do not touch the world; zmq and pickle stay in their places.

What is pure is a list of what may be imported, not of what may not: a new way to a clock is refused unheard.
"""

from pathlib import Path

import pytest

from tests.architecture.source import imports, package_files, python_files, roots

DATA_MODULES = frozenset({
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "copy",
    "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "inspect", "itertools",
    "json", "math", "operator", "re", "reprlib", "statistics", "string", "struct", "textwrap", "traceback",
    "types", "typing", "typing_extensions", "weakref", "zlib",
})  # fmt: skip

LEAVES = ("taskmesh.errors", "taskmesh.ids", "taskmesh.ports", "taskmesh.retry")
# The modules of wire that do more than rearrange bytes, with what each is for; the core imports none.
PICKLING = {
    "taskmesh/wire/payload.py": {"pickle", "cloudpickle"},  # arguments and results
    "taskmesh/wire/exceptions.py": {"pickle", "cloudpickle"},  # errors and their frames
    "taskmesh/wire/code.py": {"pickle", "cloudpickle", "importlib", "sys"},  # functions, by name or by value
}
WORLDLY = {**PICKLING, "taskmesh/wire/blob.py": {"mmap", "os", "tempfile"}}  # large buffers in memory files


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _outside(path: Path, packages: tuple[str, ...], libraries: frozenset[str]) -> list[str]:
    """Name the imports that are neither data modules, nor the given libraries, nor within the packages."""
    return [
        f"{path}:{found.line} imports {found.module}"
        for found in imports(path)
        if found.module != "taskmesh"  # the first half of `from taskmesh import errors`
        and roots(found.module) not in libraries
        and not _is_within(found.module, packages)
    ]


def test_core_imports_data_modules_and_lower_layers_only():
    files = package_files("taskmesh.core")

    allowed = ("taskmesh.core", "taskmesh.wire", *LEAVES)
    strays = [stray for path in files for stray in _outside(path, allowed, DATA_MODULES)]
    unpickling = [
        f"{path}:{found.line} imports {found.module}"
        for path in files
        for found in imports(path)
        if f"{found.module.replace('.', '/')}.py" in PICKLING
    ]

    assert files
    assert strays == []
    assert unpickling == [], "the core never unpickles: payload stays bytes"


def test_wire_imports_data_modules_msgspec_and_leaves_only():
    files = package_files("taskmesh.wire")

    allowed = ("taskmesh.wire", *LEAVES)
    strays = [
        stray
        for path in files
        for stray in _outside(path, allowed, DATA_MODULES | {"msgspec"} | WORLDLY.get(str(path), set()))
    ]

    assert files
    assert strays == []


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("zmq", ("taskmesh/sockets/", "taskmesh/net/")),
        ("cloudpickle", tuple(PICKLING)),
        ("pickle", tuple(PICKLING)),
        ("taskmesh_workers", ("workers/",)),
    ],
)
def test_library_is_imported_only_in_its_place(library, places):
    strays = [
        f"{path}:{found.line}"
        for path in python_files("taskmesh", "workers")
        if not str(path).startswith(places)
        for found in imports(path)
        if roots(found.module) == library
    ]

    assert strays == [], f"{library} belongs into {', '.join(places)}"
