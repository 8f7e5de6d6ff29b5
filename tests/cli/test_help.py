"""Help pages: each has an example that the command takes, and flags have no word for a value."""

import shlex

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from taskmesh.cli.application import app, example_of
from taskmesh.cli.command import ADVANCED
from taskmesh.cli.programs import OF_HUBS, OF_POOLS
from tests.harness.programs import Programs

ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)


def commands_below(group: TyperGroup, *path: str) -> list[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    """Return all commands with the words before them, those that have commands of their own too."""
    found: list[tuple[tuple[str, ...], TyperCommand | TyperGroup]] = []
    for name, each in group.commands.items():
        found.append(((*path, name), each))
        if isinstance(each, TyperGroup):
            found += commands_below(each, *path, name)
    return found


COMMANDS = commands_below(ROOT)
LEAVES = [(path, each) for path, each in COMMANDS if isinstance(each, TyperCommand)]


def parsed(line: str) -> str:
    """Return the name of the command that a line is for, once that has read its options and arguments."""
    program, *words = shlex.split(line.partition(" > ")[0])
    assert program == "taskmesh"
    command, path = ROOT, []
    while isinstance(command, TyperGroup):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    command.make_context(path[-1], words)
    return " ".join(path)


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_the_example_on_a_page_is_a_line_that_its_command_takes(path, command):
    assert parsed(example_of(command.callback)) == " ".join(path)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_flags_have_no_word_for_a_value(path, command):
    with typer.Context(command, info_name=path[-1]) as context:
        page = command.get_help(context)
        flags = [each.opts for each in command.get_params(context) if getattr(each, "is_flag", False)]

    assert flags
    assert "bool" not in page.lower()


@pytest.mark.parametrize("path", [(), ("pool",), ("dead",), ("up",)])
def test_pages_show_their_examples(programs: Programs, path):
    outcome = programs.run(*path, "--help")

    assert outcome.returncode == 0
    assert "Example: taskmesh " in outcome.stdout
    assert "<bool>" not in outcome.stdout


def test_up_has_the_options_of_hub_and_worker():
    hub, worker, up = (
        {option for each in ROOT.commands[name].params for option in each.opts}
        for name in ("hub", "worker", "up")
    )

    assert hub < up
    assert worker - up == {"--slot-user"}, "which a pool beside its hub refuses"
    assert {*OF_HUBS, *OF_POOLS} <= {each.name for each in ROOT.commands["up"].params}


@pytest.mark.parametrize("name", ["up", "hub", "worker", "submit"])
def test_eight_options_or_so_come_first_and_the_others_below(name):
    command = ROOT.commands[name]
    with typer.Context(command, info_name=name) as context:
        options = [each for each in command.get_params(context) if each.param_type_name == "option"]
    first = {each.name for each in options if each.name not in ADVANCED}

    assert {each.name for each in options if each.rich_help_panel == "Advanced options"} == {
        each.name for each in options
    } - first
    assert 6 <= len(first) <= 12
