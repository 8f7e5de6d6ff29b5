"""What goes wrong has an exit code, and a message that names the cure."""

import json
import sys
import time

import pytest

from taskmesh.cli.application import GROUPS
from tests.harness.ports import lasting_address
from tests.harness.program import outcome_of
from tests.harness.programs import Programs

TASK = f"{'0' * 31}1"
UNUSED = "ipc://nobody.here"


def test_help_names_every_command_and_the_exit_codes(programs: Programs):
    outcome = programs.run("--help")

    assert outcome.returncode == 0
    for panel, commands in GROUPS.items():
        assert f" {panel} " in outcome.stdout
        assert [name for name in commands if f" {name} " not in outcome.stdout] == []
    assert "3 no hub answered" in " ".join(outcome.stdout.split())


def test_variables_are_the_options_json_and_log_level(programs: Programs):
    level, form = {"TASKMESH_LOG_LEVEL": "loud"}, {"TASKMESH_JSON": "true"}

    wrong = programs.run("hub", env=level)
    told = programs.run(
        "status", "--address", "tcp://192.0.2.7:5550", env={**form, "TASKMESH_LOG_LEVEL": "error"}
    )

    assert (wrong.returncode, "'loud' is none of debug," in " ".join(wrong.stderr.split())) == (2, True)
    assert json.loads(told.stdout)["error"]["type"] == "InsecureBind"


@pytest.mark.usefixtures("processes")
def test_help_loads_neither_zmq_nor_the_mesh():
    heavy = {"zmq", "msgspec", "cloudpickle", "taskmesh.mesh"}
    code = (
        "import sys\nfrom taskmesh.cli import main\nsys.argv[1:] = ['--help']\nmain()\n"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    outcome = outcome_of([sys.executable, "-c", code])

    assert (outcome.returncode, outcome.stderr.strip()) == (0, "[]")


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5550", "tcp://*:5550", "tcp://192.0.2.7:5550"])
@pytest.mark.parametrize("program", ["hub", "up"])
def test_a_hub_beyond_this_machine_is_refused(programs: Programs, program, address):
    outcome = programs.run(program, "--bind", address)

    assert outcome.returncode == 2
    assert "only loopback" in outcome.stderr
    assert "SSH tunnel" in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.parametrize("arguments", [["status"], ["submit", "math:sqrt", "4"], ["worker"]])
def test_dialling_beyond_this_machine_is_refused(programs: Programs, arguments):
    outcome = programs.run(*arguments, "--address", "tcp://192.0.2.7:5550")

    assert outcome.returncode == 2
    assert "only loopback" in outcome.stderr


@pytest.mark.parametrize("option", [["--queue", ""], ["--queue", "a\nb"], ["--tags", "a,\x1b"]])
def test_names_that_cannot_be_are_told_before_a_hub_is_looked_for(programs: Programs, option):
    outcome = programs.run("submit", "math:sqrt", "4", *option, "--address", UNUSED)

    assert outcome.returncode == 2
    assert "printable characters" in outcome.stderr


@pytest.mark.parametrize(
    "arguments", [["status"], ["pool", "list"], ["tasks"], ["drain", "p"], ["cancel", "0" * 32]]
)
def test_no_hub_is_exit_code_3(programs: Programs, arguments):
    outcome = programs.run(*arguments, "--address", UNUSED, "--timeout", "0.3", "--json")

    assert outcome.returncode == 3
    error = json.loads(outcome.stdout)["error"]
    assert error["type"] == "HubUnreachable"
    assert "taskmesh hub --bind" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nosuch"], "No such command"),
        (["status", "--nosuch"], "No such option"),
        (["hub", "--bind", "tcp://127.0.0.1"], "write tcp://HOST:PORT"),
        (["hub", "--bind", "tcp://127.0.0.1:65535"], "the next two ports"),
        (["hub", "--bind", "ipc://" + "x" * 100], "choose a shorter one"),
        (
            ["up", "--concurrency", "many"],
            "--concurrency: pool.concurrency has to be a whole number of slots",
        ),
        (["up", "--name", "all"], "means every pool"),
        (["submit", "math.sqrt"], "write package.module:function"),
        (
            ["worker", "--concurrency", "many"],
            "--concurrency: pool.concurrency has to be a whole number of slots",
        ),
        (["worker", "--name", "two words"], "without spaces"),
        (["worker", "--nosuch"], "No such option"),
        (["worker", "--config", "nosuch.toml"], "cannot be read"),
    ],
)
def test_wrong_usage_is_exit_code_2(programs: Programs, arguments, complaint):
    outcome = programs.run(*arguments)

    assert outcome.returncode == 2, outcome.stderr
    assert complaint in " ".join(outcome.stderr.replace("│", " ").split())


def test_unknown_settings_name_the_nearest_key(programs: Programs):
    (programs.folder / "taskmesh.toml").write_text("[pool]\nconcurency = 3\n")

    outcome = programs.run("worker")

    assert outcome.returncode == 2
    assert "did you mean 'concurrency'?" in outcome.stderr


def test_the_address_comes_from_the_environment(programs: Programs):
    outcome = programs.run("pool", "list", "--timeout", "0.2", env={"TASKMESH_ADDRESS": UNUSED})

    assert outcome.returncode == 3
    assert UNUSED in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [["explain"], ["cancel"], ["result"], ["dead", "show"], ["dead", "purge"]],
    ids=" ".join,
)
@pytest.mark.parametrize("wrong", ["1", "x" * 32])
def test_what_is_no_task_s_id_is_wrong_usage_before_a_hub_is_looked_for(programs: Programs, arguments, wrong):
    outcome = programs.run(*arguments, wrong)

    assert outcome.returncode == 2
    assert "32 hexadecimal digits" in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--timeout", "20"],
        ["result", TASK],
        ["fulfil", "key", "1", "--timeout", "20"],
        ["submit", "math:sqrt", "16"],
        ["schedule", "put", "name", "math:sqrt", "16", "--when", "60"],
        ["dead", "replay", TASK, "--timeout", "20"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_port_of_this_machine_where_nobody_listens_is_told_at_once(programs: Programs, arguments):
    """A program's mesh goes on asking: its hub may be starting, too."""
    begin = time.monotonic()
    outcome = programs.run(*arguments, "--address", lasting_address(), env={"TASKMESH_OPEN_TIMEOUT": "20"})

    assert outcome.returncode == 3
    assert "no hub listens at" in outcome.stderr
    assert time.monotonic() - begin < 10
