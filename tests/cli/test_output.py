"""What commands print: JSON for programs, aligned columns for people."""

import json

from taskmesh.cli.output import Output
from taskmesh.errors import HubUnreachable

ROWS = [{"pool": "a", "queues": ["x", "y"], "busy": 0}, {"pool": "longer", "queues": [], "busy": 12}]


def test_rows_are_aligned_columns_where_no_terminal_is(capsys):
    Output(as_json=False).rows(ROWS, ("pool", "queues", "busy"), "nothing")

    assert capsys.readouterr().out.splitlines() == [
        "POOL    QUEUES  BUSY",
        "a       x,y     0",
        "longer          12",
    ]


def test_no_rows_are_told_on_stderr(capsys):
    Output(as_json=False).rows([], ("pool",), "no pools here")

    assert capsys.readouterr() == ("", "no pools here\n")


def test_rows_as_json_have_every_field(capsys):
    Output(as_json=True).rows(ROWS, ("pool",), "nothing")

    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_value_that_json_lacks_is_printed_as_python_would(capsys):
    Output(as_json=True).value({"result": {1, 2}}, "unused")

    assert json.loads(capsys.readouterr().out) == {"result": "{1, 2}"}


def test_an_error_as_json_tells_its_type(capsys):
    Output(as_json=True).error(HubUnreachable("nobody"), {"task_id": "x"})

    assert json.loads(capsys.readouterr().out) == {
        "error": {"type": "HubUnreachable", "message": "nobody", "task_id": "x"}
    }
