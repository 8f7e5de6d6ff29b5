import asyncio
import json
import os
import sys
import threading
from dataclasses import dataclass

import msgspec
import pytest

from taskmesh.errors import RemoteError, TaskTimeout
from taskmesh.serialize import exceptions
from taskmesh.serialize.exceptions import RemoteTraceback, dumps_exception, load_exception
from tests.serialize.echo_slot import call_in_slot


class Odd(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")
        self.left = left


class OddPath(OSError):
    def __init__(self, path):
        super().__init__(2, "nowhere", path)


class KeywordOnly(Exception):
    def __init__(self, *, code):
        self.code = code


class OddUnicode(UnicodeDecodeError):
    def __init__(self):
        super().__init__("utf8", b"abc", 0, 1, "bad")


class OddNew(Exception):
    def __new__(cls, a, b):
        return super().__new__(cls, a)

    def __init__(self, a, b):
        super().__init__(a, b, "third")


class Holder(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()
        self.code = 7


class BrokenText(Exception):
    def __str__(self):
        raise ValueError("no text")


class Tag:
    """Whose text holds its address."""


class Numbered(Exception):
    def __init__(self, number):
        super().__init__(f"number {number}")
        self.number = number


class NoLongerAnException(Exception):
    def __reduce__(self):
        return str, ("text",)


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


@dataclass(slots=True)
class Slotted(Exception):
    code: int
    text: object = "t"


def raised(make, cause=None):
    """The exception as a task would raise it, from a function of its own."""

    def users_code():
        raise make() from cause

    try:
        users_code()
    except BaseException as error:  # noqa: BLE001
        return error


def sent(exc):
    return load_exception(*dumps_exception(exc), task="parse 00ab", worker="pool-1/2", attempt=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("bad", 3),
        lambda: KeyError("k"),
        lambda: FileNotFoundError(2, "none", "file"),
        lambda: ImportError("x", name="n", path="p"),
        lambda: StopIteration(4),
        lambda: Odd(1, 2),
        lambda: OddPath("/nowhere"),
        lambda: KeywordOnly(code=3),
        OddUnicode,
        lambda: OddNew(1, 2),
        lambda: Numbered(404),
        lambda: json.JSONDecodeError("bad", "document", 2),
        lambda: TaskTimeout("too long"),
    ],
    ids=lambda make: repr(make()),
)
def test_the_users_exception_comes_back_as_itself(make):
    original = raised(make)

    exc = sent(original)

    assert type(exc) is type(original)
    assert (str(exc), exc.args) == (str(original), original.args)
    assert {**vars(exc), "__notes__": None} == {**vars(original), "__notes__": None}
    for name in ("filename", "errno", "name", "path", "value", "doc", "reason"):
        assert getattr(exc, name, None) == getattr(original, name, None)


def test_the_cause_shows_the_remote_traceback_and_notes_say_where():
    original = raised(lambda: Odd(1, 2), cause=KeyError("root"))
    original.add_note("the user's own note")

    exc = sent(original)

    assert isinstance(exc.__cause__, RemoteTraceback)
    text = str(exc.__cause__)
    assert "in users_code" in text
    assert "raise make() from cause" in text
    assert "KeyError: 'root'" in text
    assert "direct cause" in text
    assert exc.__notes__ == ["the user's own note", "task parse 00ab, attempt 3, worker pool-1/2"]


def test_notes_survive_exceptions_that_pickle_without_them():
    original = raised(lambda: json.JSONDecodeError("bad", "document", 2))
    original.add_note("line of the file")

    exc = sent(original)

    assert type(exc) is json.JSONDecodeError
    assert exc.__notes__[0] == "line of the file"


def test_taskmesh_and_asyncio_frames_are_left_out():
    source = (
        "import asyncio\n"
        "def run(users_code):\n"
        "    async def main():\n"
        "        await users_code()\n"
        "    try:\n"
        "        asyncio.run(main())\n"
        "    except Exception as error:\n"
        "        return error\n"
    )
    ours = exceptions.__file__.replace("serialize/exceptions.py", "pool/slots/runner.py")
    scope = {}
    exec(compile(source, ours, "exec"), scope)  # noqa: S102 -- frames that say they are ours

    async def users_code():
        await asyncio.wait_for(1 / 0, 1)

    text = dumps_exception(scope["run"](users_code))[2]

    frames = [line.split(", ")[-1] for line in text.splitlines() if line.startswith("  File")]
    assert frames == ["in users_code"]
    assert text.endswith("ZeroDivisionError: division by zero\n")


def test_attributes_that_cannot_travel_stay_behind_and_a_note_says_so():
    exc = sent(raised(lambda: Holder("text")))

    assert (type(exc), str(exc), exc.code) == (Holder, "text", 7)
    assert not hasattr(exc, "lock")
    assert "its attributes that cannot be pickled stayed behind: lock" in exc.__notes__


def test_exception_groups_keep_their_members():
    group = raised(
        lambda: ExceptionGroup(
            "several", [Odd(1, 2), ValueError(3), ExceptionGroup("inner", [KeywordOnly(code=9), Holder("h")])]
        )
    )
    group.exceptions[1].add_note("of a member")

    exc = sent(group)

    assert (type(exc), exc.message) == (ExceptionGroup, "several")
    odd, value, inner = exc.exceptions
    assert (type(odd), odd.left) == (Odd, 1)
    assert value.__notes__ == ["of a member"]
    assert [type(member) for member in inner.exceptions] == [KeywordOnly, Holder]
    assert "several (3 sub-exceptions)" in str(exc.__cause__)


def test_slots_of_exceptions_come_along():
    exc = sent(raised(lambda: Slotted(code=5)))
    locked = sent(raised(lambda: Slotted(code=6, text=threading.Lock())))

    assert (type(exc), exc.code, exc.text) == (Slotted, 5, "t")
    assert (type(locked), locked.code, hasattr(locked, "text")) == (Slotted, 6, False)
    assert "its attributes that cannot be pickled stayed behind: text" in locked.__notes__


def test_members_of_groups_say_what_they_said():
    group = ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [Numbered(404)])])

    odd = sent(group).exceptions[1].exceptions[0]

    assert (type(odd), str(odd), odd.number) == (Numbered, "number 404", 404)


def test_an_exception_that_never_says_the_same_comes_back_as_itself():
    exc = sent(raised(lambda: ValueError(Numbered)))
    changing = sent(raised(lambda: ValueError(Tag())))

    assert exc.args == (Numbered,)
    assert (type(changing), type(changing.args[0])) == (ValueError, Tag)


def test_text_that_utf8_cannot_express_is_told_with_escapes():
    exc = raised(lambda: FileNotFoundError(2, "none", os.fsdecode(b"caf\xe9")))

    record = dumps_exception(exc)

    msgspec.msgpack.encode(record)
    assert record[1] == "[Errno 2] none: 'caf\\udce9'"
    assert "in users_code" in record[2]
    assert sent(exc).filename == exc.filename
    member = sent(ExceptionGroup("g", [NoLongerAnException("\ud800", threading.Lock())])).exceptions[0]
    assert "('\\ud800'" in str(member)


def test_members_that_cannot_travel_are_told_by_their_text():
    exc = sent(ExceptionGroup("several", [ValueError(1), NoLongerAnException("gone", threading.Lock())]))

    assert type(exc) is ExceptionGroup
    assert isinstance(exc.exceptions[1], RemoteError)
    assert exc.exceptions[1].type_name.endswith("NoLongerAnException")


@pytest.mark.parametrize("exit_like", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_would_end_the_caller_becomes_remote_error(exit_like):
    for exc in (exit_like, BaseExceptionGroup("g", [exit_like])):
        rebuilt = sent(exc)

        assert type(rebuilt) is RemoteError
        assert rebuilt.type_name == type(exc).__name__


def test_text_that_cannot_be_made_is_no_obstacle():
    type_name, text, traceback_text, _ = dumps_exception(raised(BrokenText))

    assert type_name.endswith("BrokenText")
    assert text == "<its text cannot be made>"
    assert "in users_code" in traceback_text


def test_exceptions_that_turn_into_something_else_are_rebuilt_by_hand():
    exc = sent(raised(lambda: NoLongerAnException("text", 5)))

    assert (type(exc), exc.args) == (NoLongerAnException, ("text", 5))


def test_a_frozen_exception_gets_its_cause_and_notes():
    exc = sent(raised(lambda: Frozen(5)))

    assert (type(exc), exc.code) == (Frozen, 5)
    assert "in users_code" in str(exc.__cause__)
    assert exc.__notes__ == ["task parse 00ab, attempt 3, worker pool-1/2"]


def test_pickles_above_the_limit_become_remote_error(monkeypatch):
    monkeypatch.setattr(exceptions, "MAX_PICKLED", 2000)

    exc = sent(raised(lambda: ValueError("x" * 3000)))

    assert type(exc) is RemoteError
    assert str(exc).startswith("ValueError: xxx")


def test_a_class_that_is_missing_here_becomes_remote_error_with_the_reason():
    record = dumps_exception(raised(lambda: Odd(1, 2)))
    missing = record[3].replace(b"Odd", b"Gon")

    exc = load_exception(*record[:3], missing, task="t", worker="w", attempt=1)

    assert type(exc) is RemoteError
    assert (exc.type_name, str(exc)) == (f"{__name__}.Odd", f"{__name__}.Odd: 1 and 2")
    assert "in users_code" in exc.traceback_text
    assert any("could not be rebuilt here: AttributeError" in note for note in exc.__notes__)


def test_recursion_and_huge_tracebacks_are_bounded():
    def endless(n):
        return mutual(n + 1)

    def mutual(n):
        return endless(n + 1)

    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(10_000)
        try:
            endless(0)
        except RecursionError as error:
            type_name, _, traceback_text, pickled = dumps_exception(error)
    finally:
        sys.setrecursionlimit(limit)
    long = raised(lambda: ValueError("x" * 1_000_000))
    _, text, long_traceback, _ = dumps_exception(long)

    assert type_name == "RecursionError"
    assert len(traceback_text) <= exceptions.MAX_TRACEBACK + 100
    assert "mutual" in traceback_text
    assert pickled
    assert len(text) <= exceptions.MAX_TEXT + 100
    assert len(long_traceback) <= exceptions.MAX_TRACEBACK + 100
    assert "characters left out" in long_traceback


def test_groups_nested_beyond_reason_end_in_a_record_soon():
    group = Holder("bottom")
    for _ in range(200):
        group = ExceptionGroup("g", [group])
        group.guard = threading.Lock()

    exc = sent(group)

    assert type(exc) in {ExceptionGroup, RemoteError}


@pytest.mark.usefixtures("processes")
def test_classes_of_main_are_the_callers_own_after_a_round_trip():
    class Local(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a}{b}")
            self.b = b

    def fails():
        raise Local(1, 2)

    with pytest.raises(Local, match="12") as caught:
        call_in_slot(fails)

    assert caught.value.b == 2
    assert "in fails" in str(caught.value.__cause__)
