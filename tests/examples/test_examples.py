"""Each example runs as its user runs it: a program of its own, with the exit code and words it promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SURVEY = ROOT / "examples" / "01_stdlib_survey.py"

# A row for each program: its arguments, and what its standard output has to contain (regular expressions).
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "01_stdlib_survey.py": (
        ["--limit", "60", "--workers", "2"],
        [
            r"\d+ functions in \d+\.\d MB",
            r"longest +│ \d+ lines, \d+ paths",
            r"most complex +│ \d+ lines, \d+ paths",
            r"mesh +│ \d+\.\d s, \d+\.\d s of CPU +│ [\d,]+ files/s",
            r"one process +│ \d+\.\d s, \d+\.\d s of CPU",
            r"Worker process \d+ was killed halfway",
            r"Same answer as one process, nothing lost: 60 of 60 files",
            r"Processor time: \d+\.\d s in one process, \d+\.\d s in each of 2 workers:",
            r"\d+\.\d\d times the speed of one process",
        ],
    ),
    "02_raw_pipeline.py": ([], [r"17984 primes below 200000, counted by 2 workers in 200 pieces"]),
}

GOOD = """\
def short(a):
    return a


def tangled(a):
    if a:
        for b in a:
            print(b)
"""
COPY = """\
def other_name(a):
    # a comment makes no difference
    return a
"""
TREE = {
    "good.py": GOOD.encode(),
    "copy.py": COPY.encode(),
    "deep/unreadable.py": b"x = '\xff'\n",
    "wrong.py": b"def broken(:\n",
    "site-packages/installed.py": b"def not_of_the_library():\n    pass\n",
}
SITECUSTOMIZE = """\
import sysconfig

original = sysconfig.get_path


def get_path(name, *arguments, **options):
    return {library!r} if name == "stdlib" else original(name, *arguments, **options)


sysconfig.get_path = get_path
"""
LIAR = """\
import subprocess

class Mesh:
    def __init__(self, **options): self.process = subprocess.Popen(["sleep", "60"])
    def submit(self, fn): return self
    def result(self): return self.process.pid
    def __enter__(self): return self
    def __exit__(self, *error): self.process.kill(); self.process.wait()
    def map(self, fn, files): return ([] if file == "good.py" else fn(file) for file in files)

def task(fn): return fn
"""


def run(
    program: Path, *arguments: str, ahead: Path | None = None, timeout: float = 50.0
) -> subprocess.CompletedProcess[str]:
    """Run a program from the repository's folder; what lies in `ahead` is imported first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKMESH_")}
    environment["COLUMNS"] = "200"  # so that no cell of a table is folded
    environment["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in (ahead, ROOT) if folder)
    return subprocess.run(
        [sys.executable, "-W", "error", str(program), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def plant(folder: Path) -> Path:
    """Make a small 'standard library' and what makes a program run with `ahead=folder` use it."""
    library = folder / "library"
    for name, content in TREE.items():
        file = library / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(library=str(library)))
    return folder


def test_every_example_has_a_row_and_at_most_90_lines() -> None:
    names = [example.name for example in EXAMPLES]
    lengths = {example.name: len(example.read_text().splitlines()) for example in EXAMPLES}

    assert names == sorted(RUNS)
    assert {name: lines for name, lines in lengths.items() if lines > 90} == {}


@pytest.mark.smoke
@pytest.mark.parametrize("name", sorted(RUNS))
def test_example_when_run_ends_well_and_says_what_it_did(name: str) -> None:
    arguments, expected = RUNS[name]

    done = run(ROOT / "examples" / name, *arguments)

    assert done.returncode == 0, done.stderr
    assert [pattern for pattern in expected if not re.search(pattern, done.stdout)] == []


def test_survey_names_the_longest_function_that_another_count_finds() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    parts = (path.relative_to(library) for path in library.rglob("*.py") if "site-packages" not in path.parts)
    every = sorted(map(str, parts))
    counted = []
    for file in every[:: len(every) // 12][:12]:
        text = (library / file).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = len(text.splitlines()[node.lineno - 1 : node.end_lineno])
                counted.append((length, f"{file}:{node.lineno} {node.name}"))
    lines, place = max(counted)

    done = run(SURVEY, "--limit", "12", "--workers", "1")

    first = next(line for line in done.stdout.splitlines() if "longest" in line)
    assert re.search(rf"longest +│ {lines} lines, \d+ paths +│ {re.escape(place)} ", first)


def test_survey_counts_what_does_not_parse_and_finds_copies(tmp_path: Path) -> None:
    done = run(SURVEY, "--workers", "2", ahead=plant(tmp_path))

    assert done.returncode == 0, done.stderr
    assert "3 functions in 0.0 MB" in done.stdout
    assert "2 files have a syntax error" in done.stdout
    assert re.search(r"most complex +│ 4 lines, 3 paths +│ good\.py:5 tangled ", done.stdout)
    assert re.search(
        r"1 of 1 copied +│ 2 lines +│ good\.py:1 short .*\n.* copy\.py:1 other_name ", done.stdout
    )
    assert "nothing lost: 4 of 4 files" in done.stdout


def test_survey_when_the_mesh_answers_otherwise_ends_with_1_and_the_difference(tmp_path: Path) -> None:
    plant(tmp_path)
    (tmp_path / "taskmesh.py").write_text(LIAR)

    done = run(SURVEY, ahead=tmp_path)

    assert done.returncode == 1
    assert "1 files differ between mesh and one process" in done.stderr
    assert "tangled" in done.stderr


@pytest.mark.timeout(240)
def test_the_incident_is_told_by_all_in_the_same_sentences_and_is_over_when_it_is_mended() -> None:
    outcome = run(ROOT / "examples" / "incident" / "demo.py", timeout=200)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert re.findall(r"^(\d)\. ", outcome.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5", "6"]
    assert outcome.stdout.rstrip().endswith("All is mended, and nothing is said any more.")
