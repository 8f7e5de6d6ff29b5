"""`taskmesh top` and `timeline`: what runs, in a terminal and elsewhere."""

import json
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.cli.top import Screen, frame
from taskmesh.cli.views import trace_events
from tests.harness.program import command, environment
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")


def status(**more: object) -> dict[str, object]:
    """Return what a hub answers that has run 100 tasks of f."""
    times = {"p50": 0.1, "p95": 0.2, "p99": 0.3}
    function = {"name": "f", "succeeded": 90, "failed": 10, "run": times, "wait": times}
    return {
        "epoch": 1,
        "verdicts": [],
        "finished": 100,
        "tasks": {"queued": 5, "running": 0},
        "queues": [],
        "pools": [],
        "functions": [function],
        **more,
    }


def text_of(screen: Screen, width: int = 80, height: int = 24) -> str:
    from rich.console import Console

    console = Console(width=width, height=height, no_color=True)
    with console.capture() as captured:
        console.print(frame(screen, width, height))
    return captured.get()


def test_rates_are_what_has_ended_between_two_answers_of_one_hub():
    screen = Screen()
    screen.take(status(), [], 10.0)
    assert screen.rates == {}
    later = status(finished=150)
    later["functions"][0]["succeeded"] += 40  # type: ignore[index]
    screen.take(later, [], 14.0)

    assert screen.rates == {"": 12.5, "f": 10.0}
    assert "150 finished, 12/s; 5 queued" in text_of(screen)
    screen.take(status(epoch=2, finished=0), [], 15.0)
    assert screen.rates == {"": 12.5, "f": 10.0}, "another hub counts anew"


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10)])
def test_a_frame_fits_whatever_there_is(size):
    pool = {"pool": "p" * 60, "state": "ready", "slots": 4, "busy": 3, "outstanding": 9, "heard": 0.1}
    queue = {
        "queue": "[red]q",
        "tags": ["gpu"],
        "waiting": 9,
        "oldest": 100.0,
        "pools": 1,
        "slots": 4,
        "busy": 3,
    }
    screen = Screen()
    screen.take(status(verdicts=["wide \u6f22 " * 30], pools=[pool] * 100, queues=[queue] * 20), [], 1.0)
    lines = text_of(screen, *size).splitlines()

    assert all(len(line) <= size[0] for line in lines)
    assert len(lines) <= max(size[1], 26)
    assert "[red]q gpu" in "\n".join(lines) or size[0] == 40


def test_keys_choose_parts_sort_and_end():
    screen = Screen()
    screen.take(status(), [], 1.0)
    assert screen.press("3")
    assert "QUEUE" not in text_of(screen)
    assert screen.press("0")
    assert "QUEUE" in text_of(screen)
    assert screen.press("s")
    assert "FUNCTION, BY P95" in text_of(screen)
    assert screen.press("p")
    assert "paused" in text_of(screen)
    assert not screen.press("q")


def test_bars_of_a_slot_do_not_overlap_and_failures_are_marks():
    def end(task: str, ended: float, seconds: float, count: int = 1) -> dict[str, object]:
        about = {
            "task_id": task,
            "attempt": 1,
            "state": "succeeded",
            "worker": "p/1",
            "queue": "q",
            "name": "f",
        }
        return {**about, "ended": ended, "seconds": seconds, "count": count}

    failed = {
        "task_id": "z",
        "attempt": 2,
        "state": "failed",
        "worker": "?",
        "queue": "q",
        "name": "g",
        "ended": 9.0,
    }
    events = trace_events([end("b", 10.0, 2.0), end("a", 10.0, 0.5, 3)], [failed])

    assert [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"] == [
        ("f", 8e6, 2e6),
        ("f x 3", 7.5e6, 0.5e6),
    ]
    (mark,) = [event for event in events if event["ph"] == "i"]
    assert (mark["name"], mark["ts"]) == ("g: failed", 9e6)


@pytest.mark.smoke
def test_top_prints_frames_where_there_is_no_terminal(shared_programs, address):
    with Mesh(address) as mesh:
        mesh.submit(workload.add, 1, 2).result(20)
        line = mesh.with_options(queue="nowhere").submit(workload.add, 1, 2)
        mesh.flush()
        people = shared_programs.run("top", "--once", "--interval", "0.2", "--address", address)
        programs = shared_programs.run("top", "--once", "--json", "--interval", "0.2", "--address", address)
        traced = shared_programs.run("timeline", "--address", address)
        line.cancel()
    wrong = shared_programs.run("top", "--sort", "colour", "--address", address)

    assert people.returncode == 0, people.stderr
    assert (
        "! queue 'nowhere': 1 task waits, and no pool serves it: taskmesh worker --queues nowhere"
        in people.stdout
    )
    assert f"{workload.add.__module__}.add" in people.stdout
    assert "\x1b" not in people.stdout
    assert json.loads(programs.stdout)["rates"].keys() >= {"", "tests.hosting.workload.add"}
    names = [event["name"] for event in json.loads(traced.stdout)["traceEvents"]]
    assert "tests.hosting.workload.add" in names
    assert wrong.returncode == 2
    assert "choose from rate, p95, errors, name" in wrong.stderr


def test_top_leaves_the_terminal_as_it_was(shared_programs, address, tmp_path: Path):
    controller, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        for end in (b"q", b"\x03"):
            arguments = command("top", "--interval", "0.1", "--address", address)
            process = subprocess.Popen(
                arguments, stdin=terminal, stdout=terminal, stderr=terminal, env=environment()
            )
            shown = b""

            def seen(text: bytes) -> bool:
                nonlocal shown
                shown += os.read(controller, 1 << 16)
                return text in shown

            wait_until(lambda: seen(b"RUNNING LONGEST"), 20)
            os.write(controller, b"1")
            if end == b"q":
                os.write(controller, end)
            else:
                process.send_signal(signal.SIGINT)
            wait_until(lambda: seen(b"\x1b[?1049l"), 20)
            assert process.wait(20) in (0, 130)
            assert termios.tcgetattr(terminal)[3] == before[3]
    finally:
        os.close(controller)
        os.close(terminal)
