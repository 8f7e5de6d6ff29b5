"""The options of a task, as @task, with_options() and executor() take them: checked once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, TypeGuard, cast

from msgspec import Meta

from taskmesh.errors import ConfigError
from taskmesh.limit import Limit
from taskmesh.messages.runs import DONE, FAILURE, LONGEST_NAME, MOST_LIMITS, MOST_NAMES, SUCCESS
from taskmesh.retry import Retry
from taskmesh.settings.setting import Setting, SettingError, settings_of, suggestion

if TYPE_CHECKING:
    from taskmesh.client.futures.future import TaskFuture
    from taskmesh.client.progress import ProgressOption

Key = str | Callable[..., str]
WHEN: Final = {"success": SUCCESS, "done": DONE, "failure": FAILURE}
Chunksize = int | Literal["auto"]
"""Number of items or rows that travel as one task; "auto" measures."""


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
    delay: float | None
    at: datetime | None
    after: TaskFuture[Any] | str | Iterable[TaskFuture[Any] | str]
    when: Literal["success", "done", "failure"]
    limit: str | Limit | Iterable[str | Limit]
    durable: bool | None
    detach: bool
    keep: float | None
    ignore_result: bool
    sink: str


class MapOptions(TypedDict, total=False):
    """The arguments of `map`, `amap` and `starmap` that do not change the type of their results."""

    timeout: float | None
    chunksize: Chunksize
    buffersize: int | None
    ordered: bool
    progress: ProgressOption


_LARGEST: Final = (1 << 63) - 1
"""The largest number that a message can carry."""
_PRINTABLE: Final = f"of up to {LONGEST_NAME} printable characters"
_ONCE = Retry(max=0)
DETACHED_KEEP: Final = 86_400.0
"""Seconds for which the outcome of a detached task is kept, if it does not say."""

Label = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME), str.isprintable]
"""Text that can be shown in a table."""
Seconds = Annotated[float, Meta(gt=0, description="seconds > 0, or None for no limit"), math.isfinite]
Name = Annotated[
    str,
    Meta(
        max_length=LONGEST_NAME,
        pattern=r"\A[^\ud800-\udfff]*\Z",  # os.fsdecode makes text that UTF-8 cannot express
        description=f"text of up to {LONGEST_NAME} characters that UTF-8 can express",
    ),
]
Queue = Annotated[Label, Meta(description=f"the name of a queue, {_PRINTABLE}")]
Tags = Annotated[
    tuple[Label, ...],
    Meta(max_length=MOST_NAMES, description=f"a list of tags, at most {MOST_NAMES}, each {_PRINTABLE}"),
    lambda tags: all(map(str.isprintable, tags)),
]
Priority = Annotated[int, Meta(description="a whole number of 64 bits"), lambda value: abs(value) <= _LARGEST]
_RETRIES: Final = Setting(
    Annotated[
        int,
        Meta(ge=0, description="a number of retries, below 2**63, or Retry(...)"),
        lambda count: count <= _LARGEST,
    ]
)
_DURABLE: Final = Setting(Annotated[bool, Meta(description="True, False or None")])
_KEEP: Final = Setting(Annotated[float, Meta(ge=0, description="seconds >= 0, or None"), math.isfinite])
_KEY: Final = Setting(
    Annotated[
        Name,
        Meta(
            min_length=1,
            description="text, or a function of the task's arguments that returns text: "
            f"of up to {LONGEST_NAME} characters that UTF-8 can express",
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a task, as `with_changes` has checked them.

    Attributes:
        name: the name that people see; empty for `module.qualname`.
        queue: the queue that a pool must serve to run the task.
        tags: the tags that a pool must have to run it.
        priority: tasks of a higher priority run first.
        retries: how often, and for which errors, the task gets another attempt.
        timeout: seconds until TaskTimeout is raised inside the task; 0 for no limit.
        hard_timeout: seconds until its process is killed; 0 for no limit.
        expires: seconds after submission by which it must have started; 0 for no limit.
        acks: "late" (at least once) or "early" (at most once).
        key: tasks of one key share one outcome while the first is kept; text, or a function of the arguments.
        on_client_loss: "run" or "cancel": the fate of the task when its client vanishes.
        delay: seconds after submission before which it does not start; 0 for none.
        at: the time before which it does not start.
        after: futures, and ids of tasks, that it waits for, beside those among its arguments.
        when: the end of these futures that it waits for: "success" (of all), "done" (any end, of all) or
            "failure" (of one).
        limit: how many of the tasks that have it start in a time, or run at a time, in the whole mesh.
        durable: True: it is accepted only once it is in the hub's journal, and a hub without one refuses it;
            False: it is not written there; None: it is written if the hub has a journal.
        detach: it does not end with its client: close() leaves it to the hub.
        keep: seconds after its end for which its outcome can be had by its id, and by its key; None for 0, of
            a detached task for a day.
        ignore_result: its result is not sent to its client, only to tasks that depend on it.
        sink: the sink that its outcome goes to, in place of its client; empty for none.
        stream_logs: what it prints goes to its client, with what it logs.
    """

    name: Name = ""
    queue: Queue = "default"
    priority: Priority = 0
    retries: Retry = _ONCE
    timeout: Seconds = 0.0
    hard_timeout: Seconds = 0.0
    expires: Seconds = 0.0
    acks: Literal["late", "early"] = "late"
    key: Key | None = None
    tags: Tags = ()
    on_client_loss: Literal["run", "cancel"] = "run"
    delay: Seconds = 0.0
    at: datetime | None = None
    after: tuple[Any, ...] = ()
    when: Literal["success", "done", "failure"] = "success"
    limit: tuple[Any, ...] = ()
    durable: bool | None = None
    detach: Annotated[bool, Meta(description="True or False")] = False
    keep: float | None = None
    ignore_result: Annotated[bool, Meta(description="True or False")] = False
    sink: Name = ""
    stream_logs: Annotated[bool, Meta(description="True or False")] = False

    @property
    def kept_for(self) -> float:
        """Seconds for which the outcome is kept after the end."""
        if self.keep is not None:
            return self.keep
        return DETACHED_KEEP if self.detach and not (self.ignore_result or self.sink) else 0.0

    @property
    def by(self) -> Callable[..., str] | None:
        """The function that makes a key of a call's arguments, for limits by key."""
        return next((limit.by for limit in self.limit if limit.by is not None), None)

    @property
    def start_in(self) -> float:
        """Seconds from now until it may start; 0 for at once."""
        if self.at is not None:
            return max(0.0, self.at.timestamp() - time.time())
        return self.delay

    @property
    def starts_at_once(self) -> bool:
        """True if nothing but its arguments can hold it back."""
        return not (self.delay or self.at or self.after or self.when != "success")

    @property
    def of_function(self) -> TaskOptions:
        """These options without those of single calls."""
        return self if self.starts_at_once else replace(self, delay=0.0, at=None, after=(), when="success")

    def with_changes(self, changes: Mapping[str, Any]) -> TaskOptions:
        """Return these options with some of them changed; values are as a user writes them.

        Raises:
            ConfigError: an option is unknown, or its value cannot be used.
        """
        if not changes:
            return self
        changed = replace(self, **{option: _read(option, value) for option, value in changes.items()})
        if changed.delay and changed.at:
            raise ConfigError("a task has delay= or at=, not both: choose one, and set the other to None")
        if changed.durable and (changed.acks == "early" or changed.on_client_loss == "cancel"):
            raise ConfigError(
                'durable=True has a task survive its hub and its client: acks="early" and '
                'on_client_loss="cancel" forbid that. Choose one'
            )
        if (changed.ignore_result or changed.sink) and (changed.keep or changed.key is not None):
            raise ConfigError(
                "ignore_result=True and sink= leave nobody to fetch the result, and keep= and key= hold it "
                "for those who ask for it later: choose one"
            )
        if changed.ignore_result and changed.sink:
            raise ConfigError(
                "ignore_result=True sends the result to nobody, and sink= to its consumers: choose one"
            )
        return changed

    @property
    def is_chunkable(self) -> bool:
        """Several calls may share one attempt; a key, limits and a hard limit belong to one call.

        What outlives its client does so as one call, too.

        A slot keeps the soft limit for each item of a chunk; a map tries items that have failed again alone.
        """
        alone = self.hard_timeout or self.key is not None or self.limit
        return not (alone or self.durable or self.detach or self.keep or self.sink)


_SETTINGS: Final = settings_of(TaskOptions)
_LIMITS: Final = frozenset({"timeout", "hard_timeout", "expires", "delay"})


def _read(option: str, value: Any) -> Any:
    """Return a value in the form that TaskOptions keeps."""
    setting = _SETTINGS.get(option)
    if setting is None:
        raise ConfigError(f"there is no task option {option!r}{suggestion(option, _SETTINGS)}")
    try:
        if option == "retries":
            count = _RETRIES.read(value.max if isinstance(value, Retry) else value, as_text=False)
            return value if isinstance(value, Retry) else Retry(max=count)
        if option == "key":
            return value if value is None or callable(value) else _KEY.read(value)
        if option in _READERS:
            return _READERS[option](value)
        if option in _LIMITS and value is None:
            return 0.0
        if option == "tags" and isinstance(value, Iterable):
            value = (value,) if isinstance(value, str) else tuple(value)
        return setting.read(value, as_text=False)
    except SettingError as error:
        raise ConfigError(f"the task option {option} {error}") from None


def _read_at(value: object) -> datetime | None:
    if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    example = "datetime(2027, 1, 1, 9, tzinfo=ZoneInfo('Europe/Berlin'))"
    raise SettingError(f"has to be a datetime with a time zone, such as {example}, not {value!r:.200}")


def _read_after(value: object) -> tuple[TaskFuture[Any] | str, ...]:
    from taskmesh.client.dependencies import checked_id
    from taskmesh.client.futures.future import (
        TaskFuture,  # a module of tasks that a slot imports has no use for it
    )

    is_one = isinstance(value, TaskFuture | str) or not isinstance(value, Iterable)
    given: tuple[Any, ...] = (value,) if is_one else tuple(cast("Iterable[Any]", value))
    if not all(isinstance(one, TaskFuture | str) for one in given):
        raise SettingError(
            "has to be a future, or several: what submit() returns (of a batch: after=list(batch)), "
            f"not {value!r:.200}"
        )
    try:
        return tuple(checked_id(one) if isinstance(one, str) else one for one in given)
    except ConfigError as error:
        raise SettingError(f"has to be a future, or several, or ids of tasks: {error}") from None


def _read_limit(value: object) -> tuple[Limit, ...]:
    given = (value,) if isinstance(value, str | Limit) or not isinstance(value, Iterable) else tuple(value)
    for one in given:
        if not isinstance(one, str | Limit):
            raise SettingError(f'has to be "api:50/s", "gpu:2", Limit(...), or several, not {one!r:.200}')
    limits = tuple(Limit.of(one) if isinstance(one, str) else one for one in given)
    if len(limits) > MOST_LIMITS:
        raise SettingError(f"may have {MOST_LIMITS} limits at most, not {len(limits)}")
    if len({limit.name for limit in limits}) < len(limits):
        raise SettingError(f"has two limits of one name: {', '.join(limit.name for limit in limits)}")
    if len({limit.by for limit in limits} - {None}) > 1:
        raise SettingError("has limits by different keys: give all of them the same function as by=")
    return limits


_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "at": _read_at,
    "after": _read_after,
    "limit": _read_limit,
    "durable": lambda value: None if value is None else _DURABLE.read(value, as_text=False),
    "keep": lambda value: None if value is None else _KEEP.read(value, as_text=False),
}


def is_name(value: str) -> bool:
    """Return True if a message can carry the text as a name or a key."""
    try:
        return len(value) <= LONGEST_NAME and bool(value.encode())
    except UnicodeEncodeError:
        return False


def is_count(value: object) -> TypeGuard[int]:
    """Return True for a whole number from 1; True itself is not a number."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def fixed_chunksize(chunksize: Chunksize) -> int:
    """Return the number of items in a chunk, 0 for "auto".

    Raises:
        ConfigError: the size is neither "auto" nor a whole number from 1.
    """
    if chunksize == "auto":
        return 0
    if not is_count(chunksize):
        raise ConfigError(f'chunksize has to be a whole number >= 1, or "auto", not {chunksize!r}')
    return chunksize
