"""One setting: the values that it takes, and how a value is read.

A class declares settings as annotated fields: a type with msgspec's `Meta` (bounds, description), or a
`Literal`. msgspec checks the value; this module reads it as people write it and words the error.
"""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

MOST_SECONDS = 1e9
"""The longest time that clocks and waits can take."""
MOST = 1 << 60
"""The largest number that messages and limits can take."""
UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}
"""Units of a size that is written as text, such as "64MiB"."""

Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS, description="seconds")]
PositiveSeconds = Annotated[float, Meta(ge=1e-3, le=MOST_SECONDS, description="seconds, more than 0")]
Size = Annotated[int, Meta(ge=0, le=MOST, description="bytes, as a number or like '256MiB'")]
PositiveSize = Annotated[int, Meta(ge=1, le=MOST, description="bytes, as a number or like '256MiB'")]
FilePath = Annotated[str, Meta(description="the path of a file")]
Directory = Annotated[str, Meta(description="the path of a directory")]


class SettingError(ValueError):
    """A value that a setting does not take. The text is the end of a sentence that begins with its name."""


class Setting:
    """The type of one setting.

    Args:
        kind: the field's annotation. A callable in its metadata is a further check: it returns True for a
            value that the setting takes.

    Attributes:
        expects: the values that it takes, in words.
        most: the largest number that it takes, None for any.
        why: the reason for that number, in words, or "".
    """

    __slots__ = ("_base", "_checks", "_kind", "_read", "expects", "most", "why")

    def __init__(self, kind: Any) -> None:
        base, *metadata = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        rules = [each for each in metadata if isinstance(each, Meta)]
        self._kind = kind
        self._base = get_origin(base) or base
        self._checks = [each for each in metadata if callable(each)]
        self._read = _READERS.get(self._base, _text)
        self.expects = _choices(get_args(base))
        self.most = None
        self.why = ""
        for rule in rules:
            self.expects = rule.description or self.expects
            self.most = self.most if rule.le is None else rule.le
            self.why = (rule.extra or {}).get("why", self.why)

    def read(self, value: object, *, as_text: bool = True) -> Any:
        """Return the value in the type of the setting.

        Args:
            value: the value as a user writes it.
            as_text: numbers and lists may be given as text, as the environment has them.

        Raises:
            SettingError: the setting does not take the value.
        """
        try:
            plain = _text(value) if isinstance(value, str) and not as_text else self._read(value)
        except (TypeError, ValueError, OverflowError, KeyError):  # OverflowError: sizes such as "infMiB"
            raise self._refusal(value) from None
        try:
            found = msgspec.convert(plain, self._kind)
        except msgspec.ValidationError as error:
            if self.most is not None and "<=" in str(error):
                raise SettingError(f"may be {self.most:,.0f} at most{self.why}, not {value!r:.200}") from None
            raise self._refusal(value) from None
        if not all(check(found) for check in self._checks):
            raise self._refusal(value)
        return found

    def _refusal(self, value: object) -> SettingError:
        return SettingError(f"has to be {self.expects}, not {value!r:.200}")


def settings_of(declaration: type, **names: object) -> Mapping[str, Setting]:
    """Return the settings that a class declares, by name.

    Args:
        declaration: the class.
        names: names in its annotations that its module does not know when the program runs.
    """
    return {
        name: Setting(kind)
        for name, kind in get_type_hints(declaration, localns=names, include_extras=True).items()
    }


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the nearest known word, or else all of them, as the end of a sentence."""
    known = list(known)
    near = nearest(word, known)
    return f"; did you mean '{prefix}{near}'?" if near else f"; known are {', '.join(sorted(known))}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like another; "" if none is."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def _choices(values: tuple[Any, ...]) -> str:
    *others, last = map(repr, values) if values else ("text",)
    return f"{', '.join(others)} or {last}" if others else last


def _whole(value: Any) -> Any:
    """Return a whole number, or a size such as '256MiB', as an int."""
    if isinstance(value, str):
        text = value.strip().lower().replace("_", "")
        for unit, factor in UNITS.items():
            if text.endswith(unit):
                return int(float(text.removesuffix(unit)) * factor)
        return int(text)
    return value if isinstance(value, bool) else operator.index(value)


def _fraction(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | Real):
        return value
    return float(value)


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for text in value.split(",") if (part := text.strip()))
    return tuple(map(_text, value)) if isinstance(value, list | tuple | set | frozenset) else value


def _truth(value: Any) -> Any:
    """Return "true" and "false" as a bool."""
    return {"true": True, "false": False}[value.strip().lower()] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    """Return text of a subclass, such as a member of an enum, as plain text."""
    return str.__str__(value) if isinstance(value, str) else value


def _path_or_text(value: Any) -> Any:
    return _text(os.fspath(value) if isinstance(value, os.PathLike) else value)


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    int: _whole,
    bool: _truth,
    float: _fraction,
    tuple: _listed,
    str: _path_or_text,
    Literal: _text,
}
