"""The first hour of a new user: README, tutorial and a how-to, followed in empty environments.

    python -m tests.examples.first_hour

Each page is followed in a folder of its own, with the interpreter and the `taskmesh` of a new environment.
Into that goes what the page says: each `pip install` in its text is typed in the clone. Every step is
printed with its seconds. The lesson about Spark is left out where there is no Java.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.page import Reader
from tests.harness.program import ROOT
from tests.harness.programs import Programs

README = [ROOT / "README.md"]
LESSONS = [
    ROOT / f"docs/tutorial/{name}.md"
    for name in ("first-tasks", "three-machines", "model-behind-a-queue", "spark-step")
]
INSTALL = re.compile(r"`(pip install [^`]+)`")
PREFECT = [ROOT / "docs/how-to/prefect.md"]
SPARK = {"PYSPARK_SUBMIT_ARGS": "--conf spark.taskmesh.address=tcp://127.0.0.1:5550 pyspark-shell"}
"""README's job has its address as a comment: an option of the command that starts it."""


def install(page: str, python: Path) -> None:
    """Type every `pip install` of a page, in the clone."""
    for line in dict.fromkeys(INSTALL.findall(page)):
        start = time.monotonic()
        words = [str(python), "-m", *shlex.split(line), "-qq", "--disable-pip-version-check", "--no-input"]
        subprocess.run(words, cwd=ROOT, check=True)
        print(f"{time.monotonic() - start:6.1f} s  {line}", flush=True)


def follow(page: Path, python: Path, folder: Path) -> None:
    """Follow a page in a new folder."""
    text = page.read_text(encoding="utf-8")
    print(f"--- {page.relative_to(ROOT)}", flush=True)
    install(text, python)
    folder.mkdir()
    programs = Programs(folder, {"PYTHONPATH": "", "PREFECT_HOME": f"{folder}/prefect"}, str(python))
    try:
        Reader(programs, SPARK if page.name == "README.md" else None, prints=True).follow(text)
    finally:
        programs.end()


def main() -> None:
    """Follow README, the lessons in their order, and Prefect's page, each in a new environment."""
    began = time.monotonic()
    for pages in (README, LESSONS, PREFECT):
        with tempfile.TemporaryDirectory() as there:
            subprocess.run([sys.executable, "-m", "venv", f"{there}/venv"], check=True)
            for page in pages:
                if page.name == "spark-step.md" and not shutil.which("java"):
                    print(f"--- {page.relative_to(ROOT)} is left out: there is no Java")
                    continue
                follow(page, Path(there, "venv/bin/python"), Path(there, page.stem))
    print(f"{time.monotonic() - began:6.1f} s in all")


if __name__ == "__main__":
    main()
