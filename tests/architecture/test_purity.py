"""Purity: core decides and wire says, they do not touch the world; zmq and pickle stay in their places.

What is pure is a list of what may be imported, not of what may not: a new way to a clock is refused unheard.
"""

from pathlib import Path

import pytest

from tests.architecture.source import calls, imports, package_files, python_files, roots

DATA_MODULES = frozenset({
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "copy",
    "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "inspect", "itertools",
    "json", "math", "operator", "re", "reprlib", "statistics", "string", "struct", "textwrap", "traceback",
    "types", "typing", "typing_extensions", "weakref", "zlib",
})  # fmt: skip

PARENTS = ("taskmesh", "taskmesh.messages")
"""The first halves of `from taskmesh import errors` and the like."""
LEAVES = ("taskmesh.errors",)
MACHINES = ("taskmesh.core", "taskmesh.hub.machine", "taskmesh.pool.machine", "taskmesh.client.machine")
MESSAGES = tuple(
    f"taskmesh.messages.{name}"
    for name in (
        *("journal_entries", "limit_rules", "mesh_messages", "runs", "schedules", "slot_messages"),
        "status",
    )
)
"""Those that are pure data; the others are frames."""
# The modules that rebuild objects: only clients and slots use them.
PICKLING = tuple(
    f"taskmesh/serialize/{name}.py" for name in ("payload", "values", "chunks", "exceptions", "code")
)
PICKLING_NEEDS = frozenset({"pickle", "cloudpickle", "importlib", "io", "sys"})
SPECIAL_NEEDS = {
    "taskmesh/hub/machine/books/ticks.py": frozenset(
        {"cronsim", "datetime", "zoneinfo"}
    ),  # calendars, no clock
    "taskmesh/pool/machine/slots.py": frozenset({"signal"}),  # what a signal is called
    "taskmesh/shm/blob.py": frozenset({"mmap", "os"}),  # payloads in memory files
    "taskmesh/shm/files.py": frozenset({"errno", "fcntl", "mmap", "os", "resource", "tempfile"}),  # the files
    "taskmesh/serialize/exceptions.py": frozenset({"os"}),  # path arithmetic: which frames are our own
    "taskmesh/serialize/fingerprint.py": frozenset(
        {"dis", "logging", "marshal"}
    ),  # what a function refers to
    "taskmesh/serialize/annotation.py": frozenset(
        {"annotationlib", "sys"}
    ),  # which Python defers annotations
    "taskmesh/serialize/encoding.py": frozenset({"sys"}),  # the module that a function is of
    "taskmesh/serialize/sources.py": frozenset({"os", "pathlib", "sys"}),  # the files of imported modules
    # a random name; threads unpickle, and each runs a function
    "taskmesh/serialize/namespaces.py": frozenset({"contextvars", "threading", "uuid"}),
    "taskmesh/serialize/dependencies.py": frozenset({"contextvars"}),  # the call that a thread encodes
    "taskmesh/serialize/reducers.py": frozenset({"gc"}),  # which function a cache calls: nothing else tells
}


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _outside(path: Path, packages: tuple[str, ...], libraries: frozenset[str]) -> list[str]:
    """Name the imports that are neither data modules, nor the given libraries, nor within the packages."""
    return [
        f"{path}:{found.line} imports {found.module}"
        for found in imports(path)
        if found.module not in PARENTS
        and roots(found.module) not in libraries
        and not _is_within(found.module, packages)
    ]


def test_machines_import_data_modules_and_lower_layers_only():
    files = [path for room in MACHINES for path in package_files(room)]

    allowed = (*MACHINES, *MESSAGES, "taskmesh.link.link", *LEAVES)
    libraries = DATA_MODULES | {"msgspec"}  # data only: the ledger's records are its structs
    strays = [
        stray
        for path in files
        for stray in _outside(path, allowed, libraries | SPECIAL_NEEDS.get(str(path), frozenset()))
    ]
    unpickling = [
        f"{path}:{found.line} imports {found.module}"
        for path in files
        for found in imports(path)
        if f"{found.module.replace('.', '/')}.py" in PICKLING
    ]

    assert files
    assert strays == []
    assert unpickling == [], "the core never unpickles: payload stays bytes"


def _of_room(path: str) -> frozenset[str]:
    """Return the libraries that a module of messages, shm or serialize may import."""
    pickling = PICKLING_NEEDS if path in PICKLING else frozenset()
    return DATA_MODULES | {"msgspec"} | pickling | SPECIAL_NEEDS.get(path, frozenset())


@pytest.mark.parametrize(
    ("room", "below"),
    [("shm", ()), ("messages", ("shm",)), ("serialize", ("messages", "shm"))],
)
def test_rooms_of_messages_and_payloads_import_data_modules_and_what_is_below(room, below):
    files = package_files(f"taskmesh.{room}")

    allowed = (*(f"taskmesh.{name}" for name in (room, *below)), *LEAVES)
    strays = [stray for path in files for stray in _outside(path, allowed, _of_room(str(path)))]

    assert files
    assert strays == []


@pytest.mark.parametrize(
    ("library", "places"),
    [
        (
            "zmq",
            (
                "taskmesh/sockets/",
                "taskmesh/client/port/",
                "taskmesh/hosting/",
                "taskmesh/hub/",
                "taskmesh/link/",
                "taskmesh/pool/",
            ),
        ),
        ("cloudpickle", PICKLING),
        ("pickle", PICKLING),
        ("redis", ("taskmesh/hub/journal/redis.py",)),
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


def test_nothing_is_ever_decompressed():
    """Abuse list, A22: what cannot be unpacked cannot grow while it is."""
    unpackers = {"bz2", "gzip", "lzma", "tarfile", "zipfile", "zstandard", "compression"}
    found = [
        f"{path}: {one.module}"
        for path in python_files("taskmesh")
        for one in imports(path)
        if one.module.partition(".")[0] in unpackers
    ]
    inflating = [path for path in python_files("taskmesh") if calls(path, "decompress")]

    assert found == []
    assert inflating == []
