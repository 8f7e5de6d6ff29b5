"""Survey the standard library with a task for each file, kill a worker halfway, compare with one process."""

import argparse
import ast
import hashlib
import os
import resource
import signal
import sysconfig
import time
import warnings
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from taskmesh import Mesh, task

STDLIB = Path(sysconfig.get_path("stdlib"))
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


@task
def survey(file: str) -> list[tuple[int, int, str, str]] | str:
    """Return lines, cyclomatic complexity, digest and place of each function, or the reason for none."""
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
        return f"{file}: {type(error).__name__}"
    return found


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, help="processes (default: one a core)")
parser.add_argument("--limit", type=int, help="take so many files, spread over the library (default: all)")
options = parser.parse_args()
paths = (path.relative_to(STDLIB) for path in STDLIB.rglob("*.py") if "site-packages" not in path.parts)
every = sorted(map(str, paths))
files = every[:: max(1, len(every) // (options.limit or len(every)))][: options.limit]
size = sum(len((STDLIB / file).read_bytes()) for file in files)  # from now on they are in the system's memory
answers: list[list[tuple[int, int, str, str]] | str] = []
with Mesh(workers=options.workers) as mesh:
    victim = mesh.submit(os.getpid).result()  # from now on the workers are there
    start = time.perf_counter()
    for answer in track(mesh.map(survey, files), "mesh       ", len(files)):
        answers.append(answer)
        if len(answers) == len(files) // 2:
            os.kill(victim, signal.SIGKILL)
    mesh_s = time.perf_counter() - start
used, workers = resource.getrusage(resource.RUSAGE_CHILDREN), options.workers or len(os.sched_getaffinity(0))
share = (used.ru_utime + used.ru_stime) / workers
start, cpu = time.perf_counter(), time.process_time()
alone = list(track(map(survey, files), "one process", len(files)))
alone_s, alone_cpu = time.perf_counter() - start, time.process_time() - cpu
if wrong := [pair for pair in zip(answers, alone, strict=True) if pair[0] != pair[1]]:
    raise SystemExit(f"{len(wrong)} files differ between mesh and one process, the first: {wrong[0]}")
broken = [answer for answer in answers if isinstance(answer, str)]
functions = sorted(f for answer in answers if not isinstance(answer, str) for f in answer)
tangled = sorted(functions, key=lambda f: f[1], reverse=True)
groups = (list(group) for _, group in groupby(sorted(functions, key=lambda f: f[2]), key=lambda f: f[2]))
copies = sorted((group for group in groups if len(group) > 1), reverse=True)
table = Table(show_header=False, title=f"{len(functions):,} functions in {size / 1e6:.1f} MB")
for kind, found in (("longest", functions[:-4:-1]), ("most complex", tangled[:3])):
    for f in found:
        table.add_row(kind, f"{f[0]} lines, {f[1]} paths", f[3])
for g in copies[:3]:
    table.add_row(f"1 of {len(copies)} copied", f"{g[0][0]} lines", f"{g[0][3]}\n{g[1][3]}")
table.add_section()
for name, took, used_s in (("mesh", mesh_s, share * workers), ("one process", alone_s, alone_cpu)):
    table.add_row(name, f"{took:.1f} s, {used_s:.1f} s of CPU", f"{len(files) / took:,.0f} files/s")
Console().print(table)
if broken:
    print(f"{len(broken)} files have a syntax error, as some tests of Python's own want it.")
print(f"Worker process {victim} was killed halfway.")
print(f"Same answer as one process, nothing lost: {len(files)} of {len(files)} files.")
print(f"Processor time: {alone_cpu:.1f} s in one process, {share:.1f} s in each of {workers} workers:")
print(f"{alone_cpu / share:.2f} times the speed of one process, on a machine that does nothing else.")
