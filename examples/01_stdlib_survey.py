"""Survey the functions of this Python's standard library, a task a file, and check the answer on one core."""

import argparse
import ast
import hashlib
import sysconfig
import time
import warnings
from itertools import groupby
from pathlib import Path

from rich.progress import track

from taskmesh import Mesh, task

STDLIB = Path(sysconfig.get_path("stdlib"))
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


@task
def survey(file: str) -> list[tuple[int, int, str, str]] | str:
    """Give lines, cyclomatic complexity, digest and place of each function, or why a file has none."""
    found = []
    try:
        with warnings.catch_warnings(record=True):
            tree = ast.parse((STDLIB / file).read_bytes())
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
            lines, place = (node.end_lineno or 0) - node.lineno + 1, f"{file}:{node.lineno} {node.name}"
            complexity = 1 + sum(isinstance(n, BRANCHES) for n in ast.walk(node))
            node.name = "_"  # a copy is a copy under any name; the dump has no positions and no comments
            found.append((lines, complexity, hashlib.sha256(ast.dump(node).encode()).hexdigest(), place))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return f"{file}: {type(error).__name__}: {error}"
    return found


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, help="processes (default: one a core)")
parser.add_argument("--limit", type=int, help="take only the first files")
options = parser.parse_args()
paths = (path.relative_to(STDLIB) for path in STDLIB.rglob("*.py") if "site-packages" not in path.parts)
files = sorted(map(str, paths))[: options.limit]
start = time.perf_counter()
with Mesh(workers=options.workers) as mesh:
    answers = list(track(mesh.map(survey, files), "mesh    ", len(files)))
mesh_s = time.perf_counter() - start
alone = list(track(map(survey, files), "one core", len(files)))
ratio = (time.perf_counter() - start - mesh_s) / mesh_s
if wrong := [pair for pair in zip(answers, alone, strict=True) if pair[0] != pair[1]]:
    raise SystemExit(f"{len(wrong)} files differ between mesh and one core, the first: {wrong[0]}")
broken = [answer for answer in answers if isinstance(answer, str)]
functions = sorted(f for answer in answers if not isinstance(answer, str) for f in answer)
tangled = sorted(functions, key=lambda f: f[1], reverse=True)
groups = (list(group) for _, group in groupby(sorted(functions, key=lambda f: f[2]), key=lambda f: f[2]))
copies = sorted((group for group in groups if len(group) > 1), reverse=True)
print(f"{len(functions)} functions; {len(broken)} files not parsed", *broken, sep="\n  ")
print("longest", *(f"{f[0]:5} lines  {f[3]}" for f in functions[:-6:-1]), sep="\n")
print("most complex", *(f"{f[1]:5} paths  {f[3]}" for f in tangled[:5]), sep="\n")
print(f"{len(copies)} copied", *(f"{g[0][0]:5} lines  {g[0][3]}, {g[1][3]}" for g in copies[:5]), sep="\n")
print(f"{len(files)} files, {len(files) / mesh_s:.0f} files/s, {ratio:.2f} times one core, same answer")
