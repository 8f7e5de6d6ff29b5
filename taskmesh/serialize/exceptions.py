"""A task's exception as a record, and the record as an exception to raise where the result is asked for."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator
from types import MemberDescriptorType
from typing import Any, Final

from taskmesh.errors import RemoteError, TaskMeshError
from taskmesh.serialize.encoding import decode, encode
from taskmesh.serialize.values import PASS, class_name, error_text, own_text, sayable

MAX_TRACEBACK: Final = 64 << 10
"""Characters of traceback text that travel; the middle is cut out of longer ones."""

MAX_TEXT: Final = 16 << 10
"""Characters of an exception's own text that travel."""

MAX_PICKLED: Final = 1 << 20
"""Bytes of a pickled exception that travel; one with more in its attributes comes back as RemoteError."""

_MAX_FRAMES: Final = 200
_MAX_DEPTH: Final = 50
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__))
_OURS: Final = (_PACKAGE + os.sep, _PACKAGE + "_workers" + os.sep)
_ASYNCIO: Final = os.path.join(os.path.dirname(traceback.__file__), "asyncio") + os.sep


class RemoteTraceback(TaskMeshError):
    """The `__cause__` of a task's exception: its text is the traceback as it was on the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def dumps_exception(exc: BaseException) -> tuple[str, str, str, bytes]:
    """An exception as (type name, text, traceback text, pickle).

    The traceback leaves out taskmesh's own frames. The pickle is empty when the exception does not survive a
    round trip in this process, is larger than MAX_PICKLED, or is no `Exception` (SystemExit and its kind: the
    caller's process must not end because a task's did).
    """
    name = sayable(class_name(type(exc)))
    return name, _cut(own_text(exc), MAX_TEXT), _traceback_text(exc), _pickled(exc)


def load_exception(
    type_name: str, text: str, traceback_text: str, pickled: bytes, *, task: str, worker: str, attempt: int
) -> BaseException:
    """The exception to raise for a failed attempt: the user's own, else RemoteError.

    Its `__cause__` tells the remote traceback, its last note the task, attempt and worker.

    Args:
        type_name, text, traceback_text, pickled: as `dumps_exception` made them.
        task: the task's name and id, as people should see them. worker: where it ran.
        attempt: which attempt it was.
    """
    exc: BaseException | None = None
    problem = ""
    if pickled:
        try:
            exc = _built(decode(pickled))
        except PASS:
            raise
        except BaseException as error:  # noqa: BLE001 -- the user's own code
            problem = f"the exception could not be rebuilt here: {error_text(error)}"
    if exc is None:
        exc = RemoteError(f"{type_name}: {text}" if text else type_name, type_name, traceback_text)
    if traceback_text:
        # Not by assignment: a frozen dataclass would forbid it.
        object.__setattr__(exc, "__cause__", RemoteTraceback(traceback_text))
    if problem:
        _add_note(exc, problem)
    _add_note(exc, f"task {task}, attempt {attempt}, worker {worker}")
    return exc


def _alike(copy: BaseException, exc: BaseException) -> bool:
    """Return whether a copy is worth sending: of the same class, and no note is lost."""
    notes = getattr(copy, "__notes__", ())
    return type(copy) is type(exc) and all(note in notes for note in getattr(exc, "__notes__", ()))


# --- pickles ----------------------------------------------------------------------------------------------


def _pickled(exc: BaseException) -> bytes:
    found = _surviving(exc, 0) if isinstance(exc, Exception) else None
    return b"" if found is None else found[1]


def _surviving(exc: BaseException, depth: int) -> tuple[Any, bytes] | None:
    """A form of an exception that survives a round trip (itself, or a plan without __init__), and its pickle.

    One that says the same afterwards goes before one that does not: where __init__ calls
    `super().__init__(f"code {code}")`, running it again makes "code code 5" of "code 5".
    """
    found = None
    for form in (_as_it_is, _taken_apart):
        try:
            plan = form(exc, depth)
            data = encode(plan, None)
            copy = _built(decode(data))
            if len(data) <= MAX_PICKLED and _alike(copy, exc):
                if _texts(copy) == _texts(exc):
                    return plan, data
                found = found or (plan, data)
        except PASS:
            raise
        except BaseException:  # noqa: BLE001, S112 -- the next form may do
            continue
    return found


def _texts(exc: BaseException) -> list[str]:
    """Return what an exception and, of a group, its members say."""
    texts, todo = [], [exc]
    while todo:
        one = todo.pop()
        texts.append(own_text(one))
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return texts


class _Plan:
    """The parts to remake an exception from, pickled instead of one that does not survive its own pickle."""

    __slots__ = ("args", "cls", "members", "state")

    def __init__(self, cls: type, args: tuple[Any, ...], state: dict[str, Any], members: list[Any]) -> None:
        self.cls = cls
        self.args = args
        self.state = state
        self.members = members

    def __reduce__(self) -> tuple[Any, ...]:
        return _Plan, (self.cls, self.args, self.state, self.members)

    def build(self) -> BaseException:
        """The exception: its class's __new__ and its built-in ancestor's __init__, never its own __init__."""
        if self.members:
            args: tuple[Any, ...] = (self.args[0], [_built(part) for part in self.members])
        else:
            args = self.args
        exc: BaseException = _native(self.cls).__new__(self.cls, *args)
        _native(self.cls).__init__(exc, *args)
        state = dict(self.state)
        for name, slot in _slots(self.cls):
            if name in state:
                slot.__set__(exc, state.pop(name))
        exc.__dict__.update(state)
        return exc


def _built(form: Any) -> BaseException:
    exc = form.build() if type(form) is _Plan else form
    if not isinstance(exc, BaseException):
        raise TypeError(f"it became a {type(exc).__name__} on the way")
    return exc


def _slots(cls: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """The slots of an exception class, which pickle forgets: `@dataclass(slots=True)` makes some."""
    for base in cls.__mro__:
        if "__slots__" in vars(base):
            yield from ((n, slot) for n, slot in vars(base).items() if isinstance(slot, MemberDescriptorType))


def _state(exc: BaseException) -> dict[str, Any]:
    filled = {name: getattr(exc, name) for name, _ in _slots(type(exc)) if hasattr(exc, name)}
    return {**filled, **vars(exc)} if filled else vars(exc)


def _native(cls: type) -> Any:
    """The built-in exception class that `cls` descends from."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _as_it_is(exc: BaseException, depth: int) -> Any:
    return exc


def _taken_apart(exc: BaseException, depth: int) -> Any:
    state = _picklable(_state(exc))
    if not isinstance(exc, BaseExceptionGroup):
        return _Plan(type(exc), _native(type(exc)).__reduce__(exc)[1], state, [])
    if depth >= _MAX_DEPTH:
        raise RecursionError("an exception group nested too deeply")
    members = [_member(member, depth + 1) for member in exc.exceptions]
    return _Plan(type(exc), (exc.message,), state, members)


def _member(exc: BaseException, depth: int) -> Any:
    """A group's member: itself, its plan, or at least what it was."""
    found = _surviving(exc, depth)
    if found is not None:
        return found[0]
    return RemoteError(error_text(exc, MAX_TEXT), class_name(type(exc)))


def _picklable(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes that can travel; a note names those that cannot."""
    kept = {}
    lost = []
    for name, value in state.items():
        try:
            decode(encode(value, None))
            kept[name] = value
        except PASS:
            raise
        except BaseException:  # noqa: BLE001
            lost.append(name)
    if lost:
        note = f"its attributes that cannot be pickled stayed behind: {', '.join(lost)}"
        kept["__notes__"] = [*kept.get("__notes__", []), note]
    return kept


def _add_note(exc: BaseException, note: str) -> None:
    """As add_note(), but not through a __setattr__ of the user's that may forbid it."""
    notes = vars(exc).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes.append(note)


# --- text -------------------------------------------------------------------------------------------------


def _traceback_text(exc: BaseException) -> str:
    try:
        report = traceback.TracebackException.from_exception(exc, limit=-_MAX_FRAMES, compact=True)
        _strip(report)
        return _cut("".join(report.format()), MAX_TRACEBACK)
    except PASS:
        raise
    except BaseException as error:  # noqa: BLE001 -- source files that cannot be read, broken __str__
        return f"{class_name(type(exc))} (its traceback cannot be shown: {error_text(error)})"


def _strip(report: traceback.TracebackException) -> None:
    """Take taskmesh's frames out of a report and all that it is chained to."""
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        one = todo.pop()
        if one is not None:
            one.stack = traceback.StackSummary.from_list(list(_users_frames(one.stack)))
            todo += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _users_frames(frames: Iterable[traceback.FrameSummary]) -> Iterable[traceback.FrameSummary]:
    """All frames but taskmesh's own, and those of asyncio by which taskmesh runs a coroutine."""
    ours = True
    for frame in frames:
        ours = frame.filename.startswith(_OURS) or (ours and frame.filename.startswith(_ASYNCIO))
        if not ours:
            yield frame


def _cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters and a line: the middle gives way."""
    text = sayable(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n  ... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
