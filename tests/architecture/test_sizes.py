"""Sizes: a module, a function or a class that outgrows these has more than one job."""

import ast
from collections import Counter

import pytest

from tests.architecture.source import EVERYTHING, PACKAGES, functions, line_count, nodes, python_files

MODULE_LINES = 600
FUNCTION_LINES = 60
EXAMPLE_LINES = 60
PUBLIC_METHODS = 20
PARAMETERS = 7
MORE_PARAMETERS = {
    "taskmesh/cli/schedule.py": "each option of a command is a parameter",
    "taskmesh/client/submitter.py": "starmap: a function, its items, and six keywords that say how",
}
FOLDER_FILES = 20
ATTRIBUTES = 25
# Classes with more, how many, and why. The numbers may only become smaller.
MORE_ATTRIBUTES = {
    "HubSettings": (27, "a list of settings"),
    "Lane": (
        39,
        "what the hub knows of a session: objects for parts of it take no branch away",
    ),
    "Spec": (29, "a message: what calls of a function have in common, a field for each option"),
}
ARGUMENTS = 4
# Classes whose constructors have more, how many, and why. The numbers may only become smaller.
_PARTS = "joins parts that its caller has made"
_OPTIONS = "each is an option of its users"
MORE_ARGUMENTS = {
    "CachedOutcome": (6, "a record: each is a field of the journal's entry"),
    "Client": (5, _PARTS),
    "ClientShell": (5, _PARTS),
    "Dialer": (7, "a link of client and pool: they differ in each"),
    "FunctionTable": (7, _PARTS),
    "GatewayLink": (6, _PARTS),
    "Handshakes": (5, "a link of client and pool: they differ in each"),
    "HubWatchdog": (5, "three times and two callbacks"),
    "Lane": (6, "what the hub learns of a session at its start"),
    "Limit": (5, _OPTIONS),
    "ListeningHub": (6, _PARTS),
    "LocalPool": (6, _PARTS),
    "Loop": (5, "system calls that tests replace"),
    "MapJob": (7, _PARTS),
    "Mesh": (7, _OPTIONS),
    "MeshExecutor": (6, _OPTIONS),
    "MeshUDF": (6, _OPTIONS),
    "Offloaded": (5, _PARTS),
    "OpenRun": (5, "what calls of a run have in common"),
    "Pipe": (6, _PARTS),
    "Stream": (6, _PARTS),
    "TaskGroup": (7, _OPTIONS),
    "ZapHandler": (5, _PARTS),
}


def test_modules_are_short_enough():
    files = python_files(*EVERYTHING)

    long = [f"{path}: {line_count(path)} lines" for path in files if line_count(path) > MODULE_LINES]

    assert files
    assert long == []


def test_functions_are_short_enough():
    long = [
        f"{path}:{function.lineno} {function.name}: {lines} lines"
        for path in python_files(*EVERYTHING)
        for function in functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
    ]

    assert long == []


def test_functions_have_few_parameters():
    long = {
        str(path)
        for path in python_files("taskmesh")
        for function in functions(path)
        if _parameters(function.args) > PARAMETERS
    }

    assert long == set(MORE_PARAMETERS)


def _parameters(args: ast.arguments) -> int:
    named = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    others = (args.vararg is not None) + (args.kwarg is not None)
    return len(named) - (named[:1] in (["self"], ["cls"])) + others


def test_classes_have_few_public_methods():
    crowded = [
        f"{path}:{node.lineno} {node.name}: {count} public methods"
        for path in python_files(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and (count := _public_methods(node)) > PUBLIC_METHODS
    ]

    assert crowded == []


def _public_methods(node: ast.ClassDef) -> int:
    return len(
        {
            member.name
            for member in node.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_")
        }
    )


def test_classes_have_few_attributes():
    counts = {(node.name, len(_attributes(node))) for node in _classes()}

    assert {(name, count) for name, count in counts if count > ATTRIBUTES} == {
        (name, count) for name, (count, _) in MORE_ATTRIBUTES.items()
    }


def _attributes(of: ast.ClassDef) -> set[str]:
    """The names that its methods assign to `self`, and its fields."""
    assigned = (node for node in ast.walk(of) if isinstance(node, ast.Attribute))
    own = {
        node.attr
        for node in assigned
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    fields = {
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return own | fields


def test_constructors_have_few_arguments():
    counts = {
        (node.name, _parameters(member.args))
        for node in _classes()
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name == "__init__"
    }

    assert {(name, count) for name, count in counts if count > ARGUMENTS} == {
        (name, count) for name, (count, _) in MORE_ARGUMENTS.items()
    }


def _classes() -> list[ast.ClassDef]:
    found = (node for path in python_files("taskmesh") for node in nodes(path))
    return [node for node in found if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize(
    "path", [p for p in python_files("examples") if p.parent.name == "examples"], ids=str
)
def test_example_is_short_and_numbered(path):
    assert line_count(path) <= EXAMPLE_LINES
    assert path.name[:2].isdigit()
    assert path.name[2] == "_"


def test_a_folder_has_no_more_files_than_one_sees_at_a_glance():
    """Issue 39: 42 files stood in the folder of the hub's machine."""
    counts = Counter(str(path.parent) for path in python_files("taskmesh"))

    assert {folder: count for folder, count in counts.items() if count > FOLDER_FILES} == {}
