"""A page followed to the letter: its programs are saved or run, its commands typed, its output compared.

A block of Python is saved if the paragraph before it says as what ("... as `first.py`"), else run, as
`program.py`. Lines of a block of `sh` are commands; one that starts a program which stays, such as
`taskmesh hub`, goes on while the page is followed. A block of `text` is what the commands before it print.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.ports import free_ports
from tests.harness.program import Program, check_printed, outcome_of
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"\bas\s+`([\w/]+\.py)`")
STAY = {"taskmesh up": "ready", "taskmesh hub": "ready", "taskmesh worker": "ready", "uvicorn": "running on"}
"""Programs that go on, and a word of the line by which each says that it is there."""
READY_S = 40


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        kind: python, sh or text.
        text: what stands in it.
        file: the name under which a program is saved; empty for none.
    """

    kind: str
    text: str
    file: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page that can be followed, in its order."""
    found, end = [], 0
    for fence in FENCE.finditer(page):
        kind, text = fence.groups()
        names = SAVED.findall(page[end : fence.start()].strip().rpartition("\n\n")[2])
        end = fence.end()
        if kind in {"python", "sh", "text"}:
            found.append(Block(kind, text, names[-1] if names and kind == "python" else ""))
    return found


def programs_of(page: str) -> list[str]:
    """The programs of a page that stand for themselves."""
    return [block.text for block in blocks(page) if block.kind == "python" and not block.file]


class Reader:
    """Somebody who follows a page in one folder, on one machine in place of all that the page speaks of.

    Args:
        programs: where programs that stay are started, and the interpreter beside which `taskmesh` stands.
        env: variables besides those that the page sets; what stands for the page's addresses is put in.
        prints: steps are printed, with the seconds that each took.
    """

    def __init__(
        self, programs: Programs, env: Mapping[str, str] | None = None, *, prints: bool = False
    ) -> None:
        self._programs = programs
        self._folder = programs.folder
        self._bins = Path(programs.python).parent
        self._prints = prints
        self._here = {
            "10.0.0.1": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",  # noqa: S104  what a page says is bound on loopback here
            "5550": str(free_ports(3)),
            "8000": str(free_ports(1)),
        }
        self._default = f"tcp://127.0.0.1:{self._here['5550']}"
        self._env = {"PATH": f"{self._bins}:/usr/local/bin:/usr/bin:/bin", **programs.env}
        self._env |= {name: self._here_is(value) for name, value in (env or {}).items()}
        self._said = ""

    def follow(self, page: str) -> int:
        """Do all that a page says; return the number of commands."""
        count = 0
        for kind, text, file in blocks(self._here_is(page)):
            if kind == "text":
                assert self._said.splitlines() == text.splitlines()
            elif file:
                (self._folder / file).write_text(text, encoding="utf-8")
            elif kind == "python":
                start = time.monotonic()
                check_printed(text, self._folder, env=self._env, python=self._programs.python, timeout=100)
                self._tell("python program.py", start)
            else:
                self._said = ""
                for line in text.splitlines():
                    count += 1
                    start = time.monotonic()
                    self._type(line)
                    self._tell(line, start)
        return count

    def _here_is(self, text: str) -> str:
        for name, ours in self._here.items():
            text = text.replace(name, ours)
        return text

    def _tell(self, step: str, start: float) -> None:
        if self._prints:
            print(f"{time.monotonic() - start:6.1f} s  {step}", flush=True)  # noqa: T201  for `make first-hour`

    def _type(self, line: str) -> None:
        ready = next((word for start, word in STAY.items() if line.startswith(start)), "")
        if ready:
            is_told = line.startswith("uvicorn") or "--bind" in line or "--address" in line
            self._start(shlex.split(line) + ([] if is_told else ["--bind", self._default]), ready)
            return
        if line.startswith("export "):
            self._env |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
        default = {"TASKMESH_ADDRESS": self._default} if line.startswith("taskmesh") else {}
        done = outcome_of(["bash", "-e", "-c", line], self._folder, {**default, **self._env}, timeout=100)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self._said += done.stdout

    def _start(self, words: list[str], ready: str) -> None:
        line = [str(self._bins / words[0]), *words[1:]]
        program = self._programs.launch("-".join(words[:2]).replace(":", "-"), line, self._env)

        def is_ready(program: Program = program) -> bool:
            assert program.alive, program.report()
            return ready in program.text() + program.errors

        wait_until(is_ready, READY_S, f"{' '.join(words)} is ready")
