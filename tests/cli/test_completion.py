"""The shell completes commands and options."""

import shlex

import pytest

from tests.harness.program import command, outcome_of


@pytest.mark.usefixtures("processes")
def test_a_shell_can_complete_commands_and_options():
    def completed(words: str, at: int) -> list[str]:
        env = {"_TASKMESH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return outcome_of(command(), env=env).stdout.split()

    assert completed("taskmesh stat", 1) == ["status"]
    assert "--concurrency" in completed("taskmesh worker --con", 2)
    # It is written for the shell that it is started from: make starts tests from one that has no completion.
    shown = outcome_of(["bash", "-c", f"{shlex.join(command('--show-completion'))}; exit $?"])
    assert shown.returncode == 0
    assert "_TASKMESH_COMPLETE" in shown.stdout
