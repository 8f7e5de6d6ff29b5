"""The project's own source as the architecture tests read it: files, trees, imports."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("taskmesh", "workers")
EVERYTHING = (*PACKAGES, "tests", "benchmarks", "examples")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported module as the source names it, with where that stands."""

    module: str
    line: int
    late: bool  # inside a function


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below the folders, as paths from the project's root."""
    return sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package_files(package: str) -> list[Path]:
    """Return the files of a dotted package or module; none while it does not exist."""
    path = package.replace(".", "/")
    return python_files(path) or [Path(f"{path}.py")] * (ROOT / f"{path}.py").exists()


@cache
def tree(path: Path) -> ast.Module:
    """Parse a file given from the project's root."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a file: half a dozen tests look at each of them."""
    return tuple(ast.walk(tree(path)))


def forget() -> None:
    """Drop all trees: a million objects would make every later garbage collection slow."""
    for cached in (tree, nodes, functions, imports):
        cached.cache_clear()


def line_count(path: Path) -> int:
    """Count a file's lines."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


@cache
def functions(path: Path) -> tuple[FunctionNode, ...]:
    """Return every function and method of a file, nested ones too."""
    return tuple(node for node in nodes(path) if isinstance(node, FunctionNode))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Return every import of a file; `from a import b` counts as a and a.b, since b may be a module."""
    late = {id(node) for function in functions(path) for node in ast.walk(function)}
    found = []
    for node in nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and _called_name(node) in {"__import__", "import_module"}:
            names = [
                arg.value
                for arg in node.args[:1]
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
        found += [Import(name, node.lineno, id(node) in late) for name in names]
    return tuple(found)


def _called_name(call: ast.Call) -> str:
    """Return the last part of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def calls(path: Path, name: str) -> list[ast.Call]:
    """Return the calls of a function or method of that name."""
    return [node for node in nodes(path) if isinstance(node, ast.Call) and _called_name(node) == name]


def roots(module: str) -> str:
    """Return the top-level package of a dotted name."""
    return module.partition(".")[0]
