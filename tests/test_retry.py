import pickle

import pytest

from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.retry import NoRetry, Retry, RetryAfter, verdict


def test_defaults_are_three_retries_of_any_exception_with_growing_waits():
    retry = Retry()

    assert (retry.max, retry.on, retry.never) == (3, (Exception,), ())
    assert (retry.backoff, retry.factor, retry.max_backoff, retry.jitter) == (1.0, 2.0, 600.0, True)


def test_one_class_is_as_good_as_a_tuple_and_the_policy_is_a_frozen_value():
    retry = Retry(on=OSError, never=(FileNotFoundError,))

    assert (retry.on, retry.never) == ((OSError,), (FileNotFoundError,))
    assert retry == Retry(on=(OSError,), never=FileNotFoundError)
    assert hash(retry) == hash(Retry(on=(OSError,), never=FileNotFoundError))
    with pytest.raises(AttributeError):
        retry.max = 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max": -1}, r"Retry\(max=\) has to be a whole number of retries >= 0, not -1"),
        ({"max": 1.5}, "whole number"),
        ({"max": True}, "whole number"),
        ({"on": "ValueError"}, r"Retry\(on=\) takes an exception class or a tuple of them, not 'ValueError'"),
        ({"on": [ValueError]}, "tuple of them"),
        ({"never": (int,)}, r"Retry\(never=\)"),
        ({"backoff": -1}, r"Retry\(backoff=\) has to be a finite number of seconds >= 0, not -1"),
        ({"backoff": float("nan")}, "finite"),
        ({"backoff": "1"}, "finite"),
        ({"max_backoff": float("inf")}, r"Retry\(max_backoff=\)"),
        ({"factor": 0.5}, "a finite number >= 1, as waits must not shrink, not 0.5"),
        ({"backoff": 10, "max_backoff": 5}, "below backoff=10: raise the one or lower the other"),
        ({"jitter": 0.5}, r"Retry\(jitter=\) has to be True or False, not 0.5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_values_are_named(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Retry(**wrong)


def test_the_filter_decides_by_class():
    error, missing = OSError(5), FileNotFoundError(2)
    on, never = (OSError,), (FileNotFoundError,)

    assert verdict(error, on, never) == (error, True, -1.0)
    assert verdict(missing, on, never) == (missing, False, -1.0)
    assert verdict(ValueError(), on, never)[1] is False
    assert verdict(SystemExit(1))[1] is False, "no Exception"


def test_a_task_can_ask_for_a_wait_and_for_an_end():
    after, inner = RetryAfter(2.5, "rate limit"), ValueError("final")

    assert verdict(after, (ValueError,), (Exception,)) == (after, True, 2.5)
    assert verdict(NoRetry(inner)) == (inner, False, -1.0)
    plain = NoRetry("give up")
    assert verdict(plain) == (plain, False, -1.0)
    assert (str(after), str(RetryAfter(3)), str(plain)) == ("rate limit", "try again after 3 s", "give up")


@pytest.mark.parametrize("exc", [RetryAfter(2.5, "rate limit"), NoRetry("text"), NoRetry(ValueError("x"))])
def test_both_travel_and_belong_to_the_tree(exc):
    copy = pickle.loads(pickle.dumps(exc))

    assert isinstance(exc, TaskMeshError)
    assert (type(copy), str(copy)) == (type(exc), str(exc))
    assert getattr(copy, "seconds", None) == getattr(exc, "seconds", None)


@pytest.mark.parametrize("seconds", [-1, float("inf"), "soon", None])
def test_an_impossible_wait_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"RetryAfter\(seconds\) has to be a finite number of seconds >= 0"):
        RetryAfter(seconds)
