"""docs/how-to/keys.md: its five commands make a mesh with keys that runs a task."""

from pathlib import Path

import pytest

from tests.harness.program import ROOT
from tests.harness.programs import Programs

MARK = "<!-- five commands: a test runs them -->"


def five_commands() -> list[str]:
    page = Path(ROOT, "docs/how-to/keys.md").read_text()
    block = page.partition(MARK)[2].partition("```\n")[2].partition("```")[0]
    return block.splitlines()


@pytest.mark.smoke
def test_the_five_commands_of_the_page_make_a_mesh_with_keys(programs: Programs):
    commands = five_commands()
    for line in commands:
        program, *arguments = line.split()
        assert program == "taskmesh"
        outcome = programs.run(*arguments)
        assert outcome.returncode == 0, outcome.stderr

    hub = programs.start("hub", "--bind", "tcp://127.0.0.1:0", "--keys", "HUB", "--json")
    address = hub.ready()["gateway"]
    programs.worker(address, "--keys", "POOL")
    outcome = programs.run(
        "submit", "math:sqrt", "16", env={"TASKMESH_KEYS": "MINE", "TASKMESH_ADDRESS": address}
    )

    nested = programs.run(
        "submit",
        "tests.hosting.nested:squares",
        "9",
        env={"TASKMESH_KEYS": "MINE", "TASKMESH_ADDRESS": address},
    )

    assert len(commands) == 5
    assert (outcome.stdout, outcome.returncode) == ("4.0\n", 0), outcome.stderr
    assert (nested.stdout, nested.returncode) == ("204\n", 0), "a task with tasks of its own"


def test_the_cure_for_a_bind_without_keys_works_as_printed(programs: Programs):
    refusal = programs.run("hub", "--bind", "tcp://0.0.0.0:5550").stderr
    commands = [line.split() for line in refusal.splitlines() if line.startswith("  taskmesh keys")]

    outcomes = [programs.run(*words[1:]) for words in commands]

    assert len(commands) == 5
    assert [outcome.returncode for outcome in outcomes] == [0] * 5, [outcome.stderr for outcome in outcomes]
