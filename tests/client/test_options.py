"""Task options are checked where they are written."""

import pytest

from taskmesh import Retry, task
from taskmesh.client.options import TaskOptions
from taskmesh.errors import ConfigError


def test_options_take_what_users_write():
    options = TaskOptions().with_changes(
        {"retries": 3, "timeout": 2, "expires": None, "tags": ["gpu", "big"], "key": "k", "queue": "slow"}
    )

    assert options.retries == Retry(max=3)
    assert (options.timeout, options.expires, options.tags) == (2.0, 0.0, ("gpu", "big"))
    assert options.with_changes({"tags": "gpu"}).tags == ("gpu",)
    assert options.with_changes({}) is options


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("queue", "", "name of a queue"),
        ("queue", "q" * 1025, "name of a queue, of up to 1024 printable characters, not 'qqq"),
        ("queue", "\ud800", "name of a queue"),
        ("queue", "a\nb", "printable characters, not 'a"),
        ("tags", ["gpu", "\x1b[0m"], "a list of tags, at most 1000, each of up to 1024 printable characters"),
        ("name", "\ud800", "text of up to 1024 characters"),
        ("key", "\ud800", "text, or a function"),
        ("priority", 1.5, "whole number"),
        ("priority", True, "whole number"),
        ("retries", -1, "retries"),
        ("retries", "3", "retries"),
        ("timeout", 0, "seconds > 0, or None"),
        ("hard_timeout", "1s", "seconds > 0, or None"),
        ("expires", float("nan"), "seconds > 0, or None"),
        ("timeout", float("inf"), "seconds > 0, or None"),
        ("acks", "never", "'late' or 'early'"),
        ("acks", ["late"], "'late' or 'early'"),
        ("on_client_loss", {}, "'run' or 'cancel'"),
        ("key", "", "text, or a function"),
        ("key", 7, "text, or a function"),
        ("tags", [1], "list of tags"),
        ("tags", 1, "list of tags"),
        ("on_client_loss", "stop", "'run' or 'cancel'"),
        ("name", 3, "text"),
        ("name", "caf\udce9.txt", "UTF-8"),
        ("queue", "caf\udce9", "printable characters"),
        ("key", "caf\udce9.txt", "UTF-8"),
        ("tags", ["gpu", "caf\udce9"], "printable characters"),
        ("priority", 2**70, "64 bits"),
        ("priority", -(2**70), "64 bits"),
        ("retries", 2**70, "below 2"),
        ("retries", Retry(max=2**70), "below 2"),
        ("timeout", 10**400, "seconds > 0, or None"),
    ],
)
def test_option_with_a_bad_value_is_refused_in_words(option, value, words):
    with pytest.raises(ConfigError, match=words):
        task(**{option: value})


def test_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        TaskOptions().with_changes({"prioritty": 1})


def test_options_that_belong_to_each_call_forbid_chunks():
    assert TaskOptions().is_chunkable
    assert TaskOptions().with_changes({"timeout": 1}).is_chunkable, "a slot keeps it for each item"
    assert TaskOptions().with_changes({"retries": 1}).is_chunkable, "a map tries items again alone"
    for change in ({"hard_timeout": 1}, {"key": "k"}):
        assert not TaskOptions().with_changes(change).is_chunkable
