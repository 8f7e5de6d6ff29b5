"""Values as text: as JSON whatever they are, and without what would move a terminal's cursor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
JSON_FAILS = (TypeError, ValueError, RecursionError)
DEEPEST = 100
"""Levels of a value that JSON cannot carry as it is that are looked into; what is below is text."""


def encoded(value: object) -> str:
    """Return a value as JSON that every reader takes; parts that JSON lacks, nan too, as their repr."""
    try:
        return json.dumps(value, default=rendered, allow_nan=False)
    except JSON_FAILS:
        return json.dumps(carried(value))


def is_carried(value: object) -> bool:
    """Return True if JSON can carry the value without turning a part of it into text."""
    try:
        json.dumps(value, allow_nan=False)
    except JSON_FAILS:
        return False
    return True


def carried(value: object, above: frozenset[int] = frozenset()) -> object:
    """Return a value with text for each part that JSON lacks; `above`: the ids of the objects around it."""
    if id(value) in above or len(above) >= DEEPEST:
        return rendered(value)
    below = above | {id(value)}
    try:
        if isinstance(value, dict):
            json.dumps(dict.fromkeys(value), allow_nan=False)  # keys only: tuples, for example, cannot be any
            return {key: carried(part, below) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [carried(part, below) for part in value]
        return json.loads(json.dumps(value, default=rendered, allow_nan=False))
    except JSON_FAILS:
        return rendered(value)


def rendered(value: object, how: Callable[[object], str] = repr) -> str:
    """Return the repr of a value, or a text if that raises."""
    try:
        return how(value)
    except Exception as error:  # noqa: BLE001  the user's class may fail as it likes
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"


def printable(text: str, keep: str = "") -> str:
    """Return a text with its control characters escaped, save those to keep."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def harmless(value: Value) -> Value:
    """Return a hub's answer with the control characters of all its texts escaped."""
    found: object = value
    if isinstance(found, str):
        found = printable(found)
    elif isinstance(found, dict):
        found = {harmless(key): harmless(part) for key, part in found.items()}
    elif isinstance(found, list | tuple):
        found = [harmless(part) for part in found]
    return found  # type: ignore[return-value]  # of the same type, but mypy cannot tell
