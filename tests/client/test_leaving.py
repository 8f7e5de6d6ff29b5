"""Programs that leave a real embedded mesh, properly or not: they end in time, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.program import outcome_of

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]
WAIT_S = 40
LEAVE_S = 2.0

HEAD = """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & inherits it ignored
from taskmesh import Mesh, MeshExecutor, task

@task
def nap(seconds):
    threading.Event().wait(seconds)
    return seconds

def told(text):
    print(text, time.time(), flush=True)
"""


def start(tmp_path, body, *options):
    """A program of its own, in a session of its own as at a terminal."""
    script = tmp_path / "program.py"
    script.write_text(HEAD + body)
    return subprocess.Popen(
        [sys.executable, *options, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(program):
    """(exit status, words of its lines by the first of them, stderr, when it ended)."""
    out, errors = program.communicate(timeout=WAIT_S)
    ended = time.time()
    return program.returncode, dict(line.split(maxsplit=1) for line in out.splitlines()), errors, ended


def test_program_that_forgets_to_close_is_warned_and_ends(tmp_path):
    program = start(
        tmp_path,
        """
mesh = Mesh(workers=1)
mesh.submit(nap, 0).result(30)
futures = [mesh.submit(nap, 60) for _ in range(10)]
told("end")
""",
    )

    status, lines, errors, ended = end(program)

    assert status == 0
    assert "RuntimeWarning" in errors
    assert "10 pending tasks were cancelled" in errors
    assert "mesh.close()" in errors
    assert ended - float(lines["end"]) < LEAVE_S + 0.5


@pytest.mark.parametrize(("options", "is_told"), [((), False), (("-W", "always::ResourceWarning"), True)])
def test_program_that_forgets_to_close_and_loses_nothing_is_told_if_it_asks(tmp_path, options, is_told):
    program = start(tmp_path, "mesh = Mesh(workers=1)\nmesh.submit(nap, 0).result(30)\n", *options)

    status, _, errors, _ = end(program)

    assert status == 0
    assert ("mesh.close()" in errors) is is_told
    assert "cancelled" not in errors


def test_program_that_never_shuts_its_executor_down_still_does_its_work(tmp_path):
    program = start(
        tmp_path,
        """
executor = MeshExecutor(1)
for _ in range(3):
    executor.submit(nap, 0.1).add_done_callback(lambda f: told(f"done{f.result()}"))
results = executor.map(nap, [0.01] * 20)
told("end")
""",
    )

    status, lines, errors, _ = end(program)

    assert (status, errors) == (0, "")
    assert float(lines["done0.1"]) > float(lines["end"])


def test_program_whose_executor_does_not_wait_still_does_its_work(tmp_path):
    program = start(
        tmp_path,
        """
executor = MeshExecutor(1)
executor.submit(nap, 0.3).add_done_callback(lambda f: told(f"done{f.result()}"))
executor.shutdown(wait=False)
told("end")
""",
    )

    status, lines, errors, _ = end(program)

    assert (status, errors) == (0, "")
    assert float(lines["done0.3"]) > float(lines["end"])


def test_program_that_uses_an_executor_at_its_end_has_that_work_done(tmp_path):
    program = start(
        tmp_path,
        """
import atexit

def late():
    executor = MeshExecutor(1)
    executor.submit(nap, 0.1).add_done_callback(lambda f: told(f"done{f.result()}"))
    executor.map(nap, [0.01] * 20)
    told("end")

atexit.register(late)
""",
    )

    status, lines, errors, _ = end(program)

    assert (status, errors) == (0, "")
    assert float(lines["done0.1"]) > float(lines["end"])


@pytest.mark.parametrize("imported", ["after the handler was registered", "in the handler"])
def test_program_that_ends_refuses_an_executor_that_nobody_would_wait_for(tmp_path, imported):
    script = tmp_path / "program.py"
    script.write_text(f"""
import atexit, threading

def late():
    from taskmesh import Mesh, MeshExecutor
    with Mesh(workers=1) as mesh:
        print(mesh.submit(pow, 2, 3).result(30), flush=True)
    executor = MeshExecutor(1)
    try:
        executor.submit(print, "lost")
    except RuntimeError as error:
        print(error, flush=True)

atexit.register(late)
{"import taskmesh.mesh" if imported.startswith("after") else ""}
""")

    done = outcome_of([sys.executable, str(script)], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("8\nthe interpreter is ending")
    assert "Import MeshExecutor before" in done.stdout


@pytest.mark.parametrize("waits", ["futures[0].result()", "pass"], ids=["in the block", "at its end"])
def test_program_with_an_executor_that_is_interrupted_ends_within_two_seconds(tmp_path, waits):
    program = start(
        tmp_path,
        f"""
with MeshExecutor(2) as executor:
    executor.submit(nap, 0).result()
    futures = [executor.submit(nap, 60) for _ in range(100)]
    told("waiting")
    {waits}
""",
    )
    line = program.stdout.readline()
    sent = time.time()
    os.killpg(program.pid, signal.SIGINT)

    status, _, errors, ended = end(program)

    assert line.startswith("waiting")
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert ended - sent < LEAVE_S


def test_program_in_an_event_loop_that_is_interrupted_ends(tmp_path):
    program = start(
        tmp_path,
        """
import asyncio

async def main():
    async with Mesh(workers=1) as mesh:
        future = mesh.submit(nap, 60)
        told("waiting")
        await future

asyncio.run(main())
""",
    )
    program.stdout.readline()
    sent = time.time()
    os.killpg(program.pid, signal.SIGINT)

    _, _, errors, ended = end(program)

    assert "KeyboardInterrupt" in errors
    assert ended - sent < LEAVE_S


@pytest.mark.parametrize("hub", ["thread", "process"])
def test_command_line_program_works(tmp_path, hub):
    code = f"""
from taskmesh import Mesh
with Mesh(workers=1, hub={hub!r}) as mesh:
    print(mesh.submit(lambda: 6 * 7).result(30))
"""

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("42\n", "")
