"""`.ci/run` beside a Makefile of its own: what it has started ends with it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.harness.requirement import require
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")

CI = Path(__file__).parents[1] / ".ci"
MAKEFILE = """
.venv/ready-dev types test test-all test-kube:
	@true
lint:
	@{lint}
.venv/ready-kube .venv/ready-box:
	@{build}
"""
WAITS = "tail -f /dev/null & wait"


@pytest.fixture
def started(tmp_path):
    """Starts it, in a session of its own, with these recipes of lint and of the build in the background."""
    require(bool(shutil.which("make") and shutil.which("bash") and shutil.which("setsid")), "make and bash")
    runs = []

    def start(lint, build, tested="no cluster yet"):
        for folder in (".ci", ".venv", "tests/kube"):
            (tmp_path / folder).mkdir(parents=True)
        shutil.copy(CI / "run", tmp_path / ".ci" / "run")
        (tmp_path / ".ci" / "cluster-inputs").write_text("#!/bin/sh\necho what there is\n")
        (tmp_path / ".ci" / "cluster-inputs").chmod(0o755)
        (tmp_path / "tests/kube/passed").write_text(f"{tested}\n")
        (tmp_path / "Makefile").write_text(MAKEFILE.format(lint=lint, build=build))
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with (tmp_path / "told").open("w") as told:
            runs.append(
                subprocess.Popen(
                    # What is ignored here, as under nohup, bash could not trap.
                    [shutil.which("env"), "--default-signal", tmp_path / ".ci" / "run"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=told,
                    start_new_session=True,
                )
            )
        return runs[-1]

    yield start
    for run in runs:
        run.terminate()  # killed, it would leave behind what it has started
        run.wait(20)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_its_make_and_its_build_end_with_it_when_it_alone_is_signalled(started, tmp_path, sent):
    run = started(WAITS, WAITS)
    family = wait_until(lambda: all_of(run.pid), 30)

    run.send_signal(sent)

    assert run.wait(20) == 128 + sent
    wait_until(lambda: not any(map(name, family)))


def all_of(pid):
    """Its children and theirs, once the last ones of both recipes are there."""
    family = psutil.Process(pid).children(recursive=True)
    return family if [name(process) for process in family].count("tail") == 2 else None


def name(process):
    """Its name, "" once it has ended."""
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    ("lint", "status", "told"),
    [
        ("true", 0, ["lint: passed", "types: passed", "test: passed", "test-all: passed"]),
        ("false", 1, ["lint: failed (2)", "types: passed", "test: passed", "failed: lint"]),
    ],
)
def test_every_phase_is_told_and_a_failed_one_fails_it(started, tmp_path, lint, status, told):
    assert started(lint, "true").wait(20) == status

    text = (tmp_path / "told").read_text()
    assert [line for line in told if line not in text] == []


@pytest.mark.parametrize(("tested", "runs"), [("what there was", True), ("what there is", False)])
def test_the_cluster_is_tried_when_the_chart_or_the_images_have_changed(started, tmp_path, tested, runs):
    assert started("true", "true", tested).wait(20) == 0

    assert ("test-kube: passed" in (tmp_path / "told").read_text()) == runs
