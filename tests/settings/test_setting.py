"""One setting: the values that it takes, and the words in which it refuses others."""

import enum
from typing import Annotated, Literal

import numpy as np
import pytest
from msgspec import Meta

from taskmesh.settings.setting import PositiveSeconds, Setting, SettingError, Size, suggestion


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (Size, "1.5KiB", 1536),
        (Size, np.int64(3), 3),
        (PositiveSeconds, np.float32(0.5), 0.5),
        (PositiveSeconds, " 3 ", 3.0),
        (Literal["red", "blue"], Colour.RED, "red"),
        (bool, " True ", True),
        (bool, False, False),
        (tuple[str, ...], {"a"}, ("a",)),
        (tuple[str, ...], "a, b,", ("a", "b")),
    ],
)
def test_values_are_taken_as_people_and_libraries_write_them(kind, value, found):
    read = Setting(kind).read(value)

    assert (read, type(read)) == (found, type(found))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Size, True, "has to be bytes, as a number or like '256MiB', not True"),
        (Size, 2.5, "not 2.5"),
        (Annotated[bool, Meta(description="true or false")], "yes", "has to be true or false, not 'yes'"),
        (Annotated[bool, Meta(description="true or false")], 1, "has to be true or false, not 1"),
        (PositiveSeconds, "nan", "has to be seconds, more than 0, not 'nan'"),
        (Literal["a", "b", "c"], "d", "has to be 'a', 'b' or 'c', not 'd'"),
        (Annotated[int, Meta(le=5, extra={"why": " (a hand)"})], 6, r"may be 5 at most \(a hand\), not 6"),
    ],
)
def test_other_values_are_refused_in_words(kind, value, words):
    with pytest.raises(SettingError, match=words):
        Setting(kind).read(value)


def test_text_is_no_number_where_values_are_written_in_python():
    with pytest.raises(SettingError, match="not '3'"):
        Setting(Size).read("3", as_text=False)


def test_a_suggestion_names_the_nearest_word_or_all():
    assert suggestion("leas", ["lease", "beat"]) == "; did you mean 'lease'?"
    assert suggestion("zzz", ["lease", "beat"]) == "; known are beat, lease"
