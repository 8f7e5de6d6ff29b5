"""Odd results, arguments, names and times: no traceback, no raw control character, JSON that is JSON."""

import json
from datetime import datetime

import pytest
import typer

from taskmesh import Mesh
from taskmesh.cli.command import exits
from taskmesh.cli.output import Output, encoded, harmless
from taskmesh.cli.submission import decoded
from taskmesh.cli.views import summary
from taskmesh.errors import ConfigError
from tests.harness.program import command, outcome_of
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.hosting import workload

ODD = """
class Shy:
    def __repr__(self):
        raise ValueError("no")

def shy(): return Shy()
def keyed(): return {(1, 2): 3}
def circular():
    found = [1]
    found.append(found)
    return found
def lone(): return "a\\ud800"
def accent(): return "caf\\u00e9"
def infinite(): return [float("nan"), float("-inf"), 1.5]
def lines(): return "one\\n\\n"
"""


class Shy:
    def __repr__(self) -> str:
        raise ValueError("no")

    def __str__(self) -> str:
        raise ValueError("no")


@pytest.fixture(scope="module")
def shared_programs(shared_programs: Programs) -> Programs:
    """Programs that find the module `odd`."""
    (shared_programs.folder / "odd.py").write_text(ODD)
    return shared_programs


@pytest.mark.parametrize(
    ("name", "options", "env", "printed"),
    [
        ("keyed", ["--json"], {}, "{(1, 2): 3}"),
        ("circular", ["--json"], {}, [1, "[1, [...]]"]),
        ("infinite", ["--json"], {}, ["nan", "-inf", 1.5]),
        ("shy", ["--json"], {}, "<Shy that cannot be printed: ValueError>"),
        ("shy", [], {}, "<Shy that cannot be printed: ValueError>\n"),
        ("lone", [], {}, "a\\ud800\n"),
        ("accent", [], {"PYTHONIOENCODING": "ascii"}, "caf\\xe9\n"),
        ("lines", [], {}, "one\n\n\n"),
    ],
)
@pytest.mark.usefixtures("processes")
def test_a_result_is_printed_whatever_it_is(shared_programs, address, name, options, env, printed):
    outcome = shared_programs.run("submit", f"odd:{name}", "--address", address, *options, env=env)

    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert (rows(outcome)["result"] if options else outcome.stdout) == printed
    assert not options or rows(outcome)["result_form"] == "repr"


@pytest.mark.usefixtures("processes")
def test_tasks_beyond_the_limit_and_control_characters_are_told(shared_programs, address):
    with Mesh(address) as mesh:
        surface = mesh.with_options(name="a\nb\x1b[31mRED", queue="nobody")
        futures = [surface.submit(workload.add, 1, 2) for _ in range(3)]
        wait_until(lambda: mesh.status()["tasks"]["queued"] == 3)

        outcome = shared_programs.run("tasks", "--limit", "2", "--address", address)
        exact = shared_programs.run("tasks", "--limit", "3", "--address", address)
        found = rows(shared_programs.run("tasks", "--limit", "2", "--address", address, "--json"))
        explained = shared_programs.run("explain", found[0]["task_id"], "--address", address)
        for future in futures:
            future.cancel()

    assert len(outcome.stdout.splitlines()) == 3
    assert "a\\nb\\x1b[31mRED" in outcome.stdout
    assert "\x1b" not in outcome.stdout + explained.stdout
    assert "only the first 2" in outcome.stderr
    assert exact.stderr == ""
    assert [row["name"] for row in found] == ["a\nb\x1b[31mRED"] * 2
    assert "\\x1b[31mRED" in explained.stdout
    assert len(explained.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["submit", "math:sqrt", "4", "--timeout", "nan"], "or equal to"),
        (["submit", "math:sqrt", "4", "--timeout", "-1"], "greater than or equal to 0"),
        (["submit", "math:sqrt", "4", "--timeout", "inf"], "less than or equal to 1000000000"),
        (["status", "--timeout", "inf"], "less than or equal to 1000000"),
        (["status", "--timeout", "nan"], "or equal to"),
        (["health", "--http", "127.0.0.1:9", "--timeout", "inf"], "less than or equal to 1000000"),
        (["drain", "p", "--wait", "nan"], "greater than or equal to 0"),
    ],
)
@pytest.mark.usefixtures("processes")
def test_a_time_that_is_none_is_wrong_usage(shared_programs, arguments, allowed):
    outcome = shared_programs.run(*arguments)

    assert outcome.returncode == 2
    assert allowed in " ".join(outcome.stderr.replace("│", " ").split())


def test_an_argument_nested_too_deeply_is_refused():
    with pytest.raises(ConfigError, match="nested too deeply"):
        decoded("[" * 100_000)


@pytest.mark.usefixtures("processes")
def test_a_folder_that_is_gone_is_one_line(shared_programs, address):
    line = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]
    outcome = outcome_of(
        [*line, *command("submit", "math:sqrt", "4", "--address", address)], shared_programs.folder
    )

    assert outcome.returncode in (1, 2)
    assert outcome.stderr.startswith("taskmesh: ")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_an_unforeseen_error_is_one_line_and_exit_code_1(capsys, as_json):
    with pytest.raises(typer.Exit) as ending, exits(Output(as_json=as_json)):
        raise KeyError("lost")

    assert ending.value.exit_code == 1
    told = capsys.readouterr()
    if as_json:
        assert json.loads(told.out) == {"error": {"type": "KeyError", "message": "'lost'"}}
    else:
        assert told.err == "taskmesh: error: KeyError: 'lost'\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_an_unforeseen_error_of_a_program_that_runs_keeps_its_traceback(capsys, as_json):
    with pytest.raises(typer.Exit) as ending, exits(Output(as_json=as_json, is_log=True)):
        raise KeyError("lost")

    assert ending.value.exit_code == 1
    told = capsys.readouterr()
    if as_json:
        [event] = map(json.loads, told.out.splitlines())
        assert event["event"] == "error"
        assert datetime.fromisoformat(event["time"])
        assert (event["error"]["type"], event["error"]["message"]) == ("KeyError", "'lost'")
        trace = event["error"]["traceback"]
    else:
        head, trace = told.err.split("\n", 1)
        assert head.endswith(" error: KeyError: 'lost'")
        assert datetime.fromisoformat(head.split()[1])
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("KeyError: 'lost'\n")


def test_news_and_errors_have_no_control_characters(capsys):
    out = Output(as_json=False)
    out.news("joined", "joined a\nb\x1b[1m", {})
    out.error(ConfigError("queue \x1b[1m\nis none"))
    out.error(ValueError(Shy()))

    assert capsys.readouterr().err == (
        "taskmesh: joined a\\nb\\x1b[1m\n"
        "taskmesh: queue \\x1b[1m\nis none\n"
        "taskmesh: <ValueError that cannot be printed: ValueError>\n"
    )


def test_what_a_hub_tells_is_made_harmless_at_any_depth():
    assert harmless({"a\r": ["\x9b", ("ä", 1)]}) == {"a\\r": ["\\x9b", ["ä", 1]]}
    counts = {"accepted": 0, "finished": 0, "unclaimed": 0, "tasks": {}, "ended": {}, "journal": None}
    lists: dict[str, list[object]] = {"pools": [], "clients": [], "functions": [], "sinks": []}
    told = {**counts, **lists, "verdicts": ["\x1b[1m"], "refused": {"\x1b[1m": "x"}, "warnings": {}}
    assert "\x1b" not in summary(harmless(told))


def test_json_is_json_whatever_the_value():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]

    assert json.loads(encoded({"a": float("inf"), "b": Shy()})) == {
        "a": "inf",
        "b": "<Shy that cannot be printed: ValueError>",
    }
    assert json.loads(encoded({"huge": 10**5000}))["huge"].startswith("<int")
    assert json.loads(encoded({"deep": deep, "n": 1}))["n"] == 1
