"""What a task asks for: the options of @task, with_options() and executor(), checked once."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypedDict, TypeGuard

from taskmesh.errors import ConfigError
from taskmesh.retry import Retry
from taskmesh.wire.runs import LONGEST_NAME, MOST_NAMES

Key = str | Callable[..., str]
Chunksize = int | Literal["auto"]
"""How many items or rows travel as one task; "auto" measures."""


class OptionValues(TypedDict, total=False):
    """The options as keyword arguments."""

    name: str
    queue: str
    priority: int
    retries: int | Retry
    timeout: float | None
    hard_timeout: float | None
    expires: float | None
    acks: Literal["late", "early"]
    key: Key | None
    tags: Iterable[str]
    on_client_loss: Literal["run", "cancel"]


NAME: Final = f"text of up to {LONGEST_NAME} characters that UTF-8 can express"
"""What `is_name` asks for."""

_LABEL: Final = f"of up to {LONGEST_NAME} printable characters"
_ONCE = Retry(max=0)
_LARGEST: Final = (1 << 63) - 1
"""What a message can carry."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How a task is to be run.

    Attributes:
        name: for people; empty for `module.qualname`.
        queue, tags: which pools may run it: those that serve the queue and have all tags.
        priority: higher goes first.
        retries: how often an error of its own is worth another attempt.
        timeout: seconds until TaskTimeout is raised inside it. hard_timeout: until its process is killed.
        expires: seconds after submission by which it must have started.
        acks: "late" (at least once) or "early" (at most once).
        key: tasks of one key share one outcome while the first lives; may be a function of the arguments.
        on_client_loss: whether it is to "run" or to be cancelled ("cancel") when its client vanishes.

    Raises:
        ConfigError: a value cannot be used.
    """

    name: str = ""
    queue: str = "default"
    priority: int = 0
    retries: Retry = _ONCE
    timeout: float = 0.0
    hard_timeout: float = 0.0
    expires: float = 0.0
    acks: str = "late"
    key: Key | None = None
    tags: tuple[str, ...] = ()
    on_client_loss: str = "run"

    def __post_init__(self) -> None:
        _expect(is_name(self.name), "name", self.name, NAME)
        is_queue = bool(self.queue) and _is_label(self.queue)
        _expect(is_queue, "queue", self.queue, f"the name of a queue, {_LABEL}")
        in_range = _is_whole(self.priority) and abs(self.priority) <= _LARGEST
        _expect(in_range, "priority", self.priority, "a whole number of 64 bits")
        is_retry = isinstance(self.retries, Retry) and self.retries.max <= _LARGEST
        _expect(is_retry, "retries", self.retries, "a number of retries, below 2**63, or Retry(...)")
        for limit in ("timeout", "hard_timeout", "expires"):
            value = getattr(self, limit)
            _expect(_is_limit(value), limit, value, "seconds > 0, or None for no limit")
        _expect(self.acks in ("late", "early"), "acks", self.acks, "'late' or 'early'")
        _expect(
            self.key is None or callable(self.key) or (bool(self.key) and is_name(self.key)),
            "key",
            self.key,
            f"text, or a function of the task's arguments that returns text: {NAME}",
        )
        tags = self.tags
        is_list = isinstance(tags, tuple) and all(map(_is_label, tags)) and len(tags) <= MOST_NAMES
        _expect(is_list, "tags", tags, f"a list of tags, at most {MOST_NAMES}, each {_LABEL}")
        _expect(
            self.on_client_loss in ("run", "cancel"),
            "on_client_loss",
            self.on_client_loss,
            "'run' or 'cancel'",
        )

    def with_changes(self, changes: Mapping[str, Any]) -> TaskOptions:
        """These options with some of them changed; values as a user writes them.

        Raises:
            ConfigError: an option is unknown, or its value cannot be used.
        """
        if not changes:
            return self
        for option in changes:
            if option not in _OPTIONS:
                near = difflib.get_close_matches(option, _OPTIONS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_OPTIONS)}"
                raise ConfigError(f"there is no task option {option!r}; {hint}")
        return replace(self, **{option: _plain(option, value) for option, value in changes.items()})

    @property
    def is_chunkable(self) -> bool:
        """Several calls may share one attempt: a key and the limit that kills belong to each call.

        A slot keeps the soft limit for each item of a chunk; a map tries items that have failed again alone.
        """
        return not (self.hard_timeout or self.key is not None)


_OPTIONS = tuple(field.name for field in fields(TaskOptions))


def _plain(option: str, value: Any) -> Any:
    """The value in the form that TaskOptions keeps."""
    if option == "tags" and isinstance(value, Iterable):
        return (value,) if isinstance(value, str) else tuple(value)
    if option == "retries" and _is_whole(value):
        return Retry(max=value)
    if option in {"timeout", "hard_timeout", "expires"}:
        return _limit(option, value)
    return value


def _limit(option: str, value: Any) -> float:
    """Seconds; None becomes 0.0, which itself is no limit that anybody can mean."""
    if value is None:
        return 0.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _expect(is_number and 0 < value <= sys.float_info.max, option, value, "seconds > 0, or None for no limit")
    return float(value)


def _is_limit(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def is_count(value: object) -> TypeGuard[int]:
    """Return whether it is a number of things, at least one; True is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def fixed_chunksize(chunksize: Chunksize) -> int:
    """Returns how many items make a chunk, 0 for "auto".

    Raises:
        ConfigError: it is neither "auto" nor a whole number from 1.
    """
    if chunksize == "auto":
        return 0
    if not is_count(chunksize):
        raise ConfigError(f'chunksize has to be a whole number >= 1, or "auto", not {chunksize!r}')
    return chunksize


def is_name(value: Any) -> bool:
    """Whether it is text that a message can carry: os.fsdecode makes such that UTF-8 cannot express."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_label(value: Any) -> bool:
    """Return whether it can be shown in a table, too."""
    return is_name(value) and bool(value.isprintable())


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _expect(holds: bool, option: str, value: object, what: str) -> None:
    if not holds:
        raise ConfigError(f"the task option {option} has to be {what}, not {value!r:.200}")
