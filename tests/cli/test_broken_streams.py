"""stdout or stderr closed, full or without a reader: programs go on, commands say so, no tracebacks."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskmesh.cli.output import Output
from tests.harness.program import END_S, command, environment, outcome_of
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")

BROKEN = ["2>/dev/full", ">/dev/full", "2>&-", ">&-", ">&- 2>&-", ">/dev/full 2>/dev/full"]


def redirected(redirection: str, *arguments: str) -> list[str]:
    """The command line of `taskmesh ARGUMENTS` with a redirection of the shell."""
    return ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*arguments)]


@contextmanager
def started(
    folder: Path, line: list[str], stderr: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended with the block."""
    program = subprocess.Popen(
        line,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    try:
        yield program
    finally:
        program.terminate()
        program.wait(END_S)


def serves(programs: Programs, hub: subprocess.Popen[bytes], bind: str) -> None:
    """A worker joins the hub, leaves it, and the hub lives and ends as it should."""
    wait_until(lambda: programs.run("status", "--address", bind).returncode == 0, 20)
    worker = programs.worker(bind)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert programs.run("status", "--address", bind).returncode == 0
    hub.terminate()
    assert hub.wait(END_S) == 0


@pytest.mark.parametrize("redirection", BROKEN)
def test_a_hub_that_cannot_write_serves_on(programs: Programs, tmp_path: Path, redirection):
    bind = f"ipc://{tmp_path}/hub"
    with started(tmp_path, redirected(redirection, "hub", "--bind", bind)) as hub:
        serves(programs, hub, bind)


def test_a_hub_whose_reader_has_gone_serves_on(programs: Programs, tmp_path: Path):
    bind = f"ipc://{tmp_path}/hub"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with started(tmp_path, command("hub", "--bind", bind, "--json"), writing) as hub:
            serves(programs, hub, bind)
    finally:
        os.close(writing)


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_worker_that_cannot_write_serves_on(programs: Programs, tmp_path: Path, redirection):
    (programs.folder / "loud.py").write_text("def loud():\n    print('loud')\n    return 42\n")
    address = programs.hub()[1]
    with started(tmp_path, redirected(redirection, "worker", "--address", address)):
        outcome = programs.run("submit", "loud:loud", "--timeout", "20", "--address", address)

        assert (outcome.returncode, outcome.stdout) == (0, "42\n"), outcome.stderr


def test_a_worker_without_streams_reports_to_nobody(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    out = Output(as_json=False)

    out.ready("worker", "pool a", {})
    out.news("http", "side port", {})


@pytest.mark.parametrize("option", [[], ["--json"]])
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_command_that_cannot_print_its_result_is_exit_code_1(tmp_path: Path, redirection, option):
    outcome = outcome_of(
        redirected(redirection, "keys", "new", "client", "--keys", str(tmp_path / "keys"), *option)
    )

    assert outcome.returncode == 1
    assert outcome.stderr.count("\n") == 1
    told = json.loads(outcome.stderr)["text"] if option else outcome.stderr
    assert told.startswith("taskmesh: the result cannot be printed")


@pytest.mark.parametrize("redirection", BROKEN)
def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path: Path, redirection):
    line = redirected(
        redirection, "status", "--address", f"ipc://{tmp_path}/no", "--timeout", "0.1", "--json"
    )
    outcome = outcome_of(line)

    assert outcome.returncode == 3
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("asked", ["--help", "--version", "hub --help"])
def test_help_that_cannot_be_printed_is_one_line_and_exit_code_1(asked):
    line = redirected(">/dev/full", *asked.split())
    outcome = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=30, check=False)

    assert outcome.returncode == 1
    assert outcome.stderr.startswith("taskmesh: this cannot be printed on stdout: ")
    assert outcome.stderr.count("\n") == 1


def test_a_usage_error_that_cannot_be_told_keeps_its_exit_code():
    line = redirected("2>/dev/full", "nosuch")
    outcome = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=30, check=False)

    assert outcome.returncode == 2
