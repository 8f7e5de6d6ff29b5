"""The line of `taskmesh worker`, which is read without what the other commands load."""

import re
import shlex

import pytest
from typer.main import get_command

from taskmesh.cli import HELP
from taskmesh.cli.application import app
from taskmesh.cli.worker_arguments import parser
from tests.harness.program import command, outcome_of


@pytest.mark.usefixtures("processes")
def test_it_loads_neither_the_other_commands_nor_the_mesh():
    python, *line = command("worker", "--nosuch")

    outcome = outcome_of([python, "-X", "importtime", *line])

    loaded = {row.rpartition("|")[2].strip() for row in outcome.stderr.splitlines()}
    assert outcome.returncode == 2
    assert "unrecognized arguments: --nosuch" in outcome.stderr
    assert "taskmesh.cli" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in ("typer", "zmq", "msgspec")}


@pytest.mark.usefixtures("processes")
def test_its_help_looks_like_that_of_the_other_commands_and_has_every_option_of_the_program():
    told = outcome_of(command("worker", "--help"))

    assert told.returncode == 0
    assert "Usage: taskmesh worker [OPTIONS] [MODULE]..." in told.stdout
    known = {option for action in parser()._actions for option in action.option_strings}
    assert known <= set(re.findall(r"--?[a-z][a-z-]*", told.stdout))
    declared = {name for param in get_command(app).commands["worker"].params for name in param.opts}
    assert {name for name in declared if name[0] == "-"} == known - HELP


@pytest.mark.usefixtures("processes")
def test_a_shell_can_complete_commands_and_options():
    def completed(words: str, at: int) -> list[str]:
        env = {"_TASKMESH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return outcome_of(command(), env=env).stdout.split()

    assert completed("taskmesh st", 1) == ["status"]
    assert "--concurrency" in completed("taskmesh worker --con", 2)
    # It is written for the shell that it is started from: make starts tests from one that has no completion.
    shown = outcome_of(["bash", "-c", f"{shlex.join(command('--show-completion'))}; exit $?"])
    assert shown.returncode == 0
    assert "_TASKMESH_COMPLETE" in shown.stdout
