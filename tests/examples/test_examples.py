"""Each example runs as its user runs it: a program of its own, with the exit code and words it promises."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.harness.program import READY_S, check_printed
from tests.harness.programs import Programs
from tests.harness.side_port import ask
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("[0-9]*.py"))}
PAGE = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
WEB_APP = "07_web_app"
SURVEY = ROOT / "examples" / "survey" / "survey.py"
SAID = (
    r"\d+ functions in \d+\.\d MB",
    r"longest +│ \d+ lines, \d+ paths",
    r"most complex +│ \d+ lines, \d+ paths",
    r"mesh +│ \d+\.\d s, \d+\.\d s of CPU +│ [\d,]+ files/s",
    r"one process +│ \d+\.\d s, \d+\.\d s of CPU",
    r"Worker process \d+ was killed halfway",
    r"Same answer as one process, nothing lost: 60 of 60 files",
    r"Processor time: \d+\.\d s in one process, \d+\.\d s in each of 2 workers:",
    r"\d+\.\d\d times the speed of one process",
)

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


@pytest.mark.smoke
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != WEB_APP])
def test_an_example_prints_what_its_comments_say(name: str, tmp_path: Path) -> None:
    assert check_printed(EXAMPLES[name].read_text(encoding="utf-8"), tmp_path, "-W", "error")


@pytest.mark.smoke
def test_the_web_app_answers_while_tasks_run_and_ends_when_it_is_told(programs: Programs) -> None:
    app = programs.launch(WEB_APP, ["-W", "error", str(EXAMPLES[WEB_APP])], {"PORT": "0"})
    serving = re.compile(r"running on (http://\S+)")
    found = wait_until(lambda: serving.search(app.errors), READY_S, "the address of the web app")

    assert ask(f"{found[1]}/primes/1000") == (200, '{"primes":168}')
    status, text = ask(f"{found[1]}/jobs/100", "POST")
    assert (status, ask(f"{found[1]}/jobs/{json.loads(text)['id']}")) == (200, (200, '{"primes":25}'))
    assert [ask(f"{found[1]}/jobs/{unknown}")[0] for unknown in ("7", "7" * 32)] == [404, 404]
    app.terminate()
    assert app.wait() in (0, -signal.SIGTERM)
    assert "Application shutdown complete" in app.errors


def test_the_page_of_examples_is_whole() -> None:
    listed = re.findall(r"^\| \[(\d\d_\w+)\.py\]", PAGE, re.MULTILINE)
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}

    assert listed == list(EXAMPLES)
    assert {name for name in folders if f"[{name}](" not in PAGE} - {"__pycache__"} == set()


@pytest.mark.smoke
def test_survey_when_run_ends_well_and_says_what_it_did() -> None:
    done = run(SURVEY, "--limit", "60", "--workers", "2")

    assert done.returncode == 0, done.stderr
    assert [pattern for pattern in SAID if not re.search(pattern, done.stdout)] == []


def test_pipeline_of_sockets_counts_the_primes() -> None:
    done = run(ROOT / "examples" / "sockets" / "raw_pipeline.py")

    assert done.returncode == 0, done.stderr
    assert "17984 primes below 200000, counted by 2 workers in 200 pieces" in done.stdout


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
