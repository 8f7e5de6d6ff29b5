"""Sizes: a module, a function or a class that outgrows these has more than one job."""

import ast
from collections import Counter

import pytest

from tests.architecture.source import EVERYTHING, PACKAGES, functions, line_count, nodes, python_files

MODULE_LINES = 600
FUNCTION_LINES = 60
EXAMPLE_LINES = 90
PUBLIC_METHODS = 20
PARAMETERS = 7
MORE_PARAMETERS = {
    "taskmesh/cli/schedule.py": "each option of a command is a parameter",
}
FOLDER_FILES = 20


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
