"""`taskmesh submit` without a hub: functions by name, arguments as JSON or text."""

import math
import os.path
from datetime import UTC, datetime

import pytest

from taskmesh.cli.submission import decoded, moment_of, parse, resolve
from taskmesh.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ('"two"', "two"),
        ("two", "two"),
        ("[1, null]", [1, None]),
        ("true", True),
        ("True", "True"),
        ("", ""),
        ("2026-01-31", "2026-01-31"),
        ("{half", "{half"),
    ],
)
def test_arguments_are_json_or_else_text(text, value):
    assert decoded(text) == value


def test_arguments_with_a_name_are_passed_by_name():
    assert parse(["1", '"two"', "key=3", "text=a=b"]) == ([1, "two"], {"key": 3, "text": "a=b"})


def test_an_equals_sign_after_no_name_is_text():
    assert parse(["https://x/?a=b", "="]) == (["https://x/?a=b", "="], {})


def test_arguments_by_position_come_first():
    with pytest.raises(ConfigError, match="put those last"):
        parse(["key=1", "2"])


def test_an_argument_by_name_is_given_once():
    with pytest.raises(ConfigError, match="'key' is given twice"):
        parse(["key=1", "key=2"])


def test_a_function_is_found_by_module_and_path():
    assert resolve("math:sqrt") is math.sqrt
    assert resolve("os:path.join") is os.path.join


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("math.sqrt", "write package.module:function"),
        ("math:", "write package.module:function"),
        ("nosuchmodule:f", "cannot be imported here: ModuleNotFoundError"),
        ("math:nosuch", "'math' has no 'nosuch'"),
        ("math:pi", "is a float, not a function"),
    ],
)
def test_what_is_no_function_is_refused_with_the_cure(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        resolve(text)


def test_a_time_without_a_zone_is_in_utc():
    assert moment_of("2026-12-01T09:00:00") == datetime(2026, 12, 1, 9, tzinfo=UTC)
    assert moment_of("2026-12-01T09:00:00+01:00") == datetime(2026, 12, 1, 8, tzinfo=UTC)
    with pytest.raises(ConfigError, match="'tomorrow' is no time"):
        moment_of("tomorrow")
