"""Limits of tasks: how many start in a time, or run at a time, in the whole mesh.

It imports errors and the shapes of messages only, so that slots can use it as well as clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from taskmesh.errors import ConfigError
from taskmesh.messages.limit_rules import MOST, LimitError, read_limit, read_named
from taskmesh.messages.runs import LimitRule


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """A limit that tasks have in common: `@task(limit=Limit("api", rate="50/s"))`.

    Limits of one name are one limit, whatever tasks and clients have it. A rate counts the attempts that the
    hub hands out, retries too; a concurrency the tasks that a pool has. A task with several limits starts
    when all of them let it.

    Args:
        name: its name.
        rate: starts in a second, minute, hour or day: "50/s", "600/m", "10000/h", "5/d". The hub hands out no
            more in any window of that length.
        concurrency: tasks at a time.
        by: a function of all arguments of the call that returns text: each text has a count of its own.
        smooth: starts of a rate come at equal distances, instead of as many at once as the window has room
            for.

    Attributes:
        name: as given.
        rule: the limit as messages state it.
        by: as given.

    Raises:
        ConfigError: an argument cannot be used, or not exactly one of `rate` and `concurrency` is given.
    """

    name: str
    rule: LimitRule
    by: Callable[..., str] | None

    def __init__(
        self,
        name: str,
        /,
        *,
        rate: str | None = None,
        concurrency: int | None = None,
        by: Callable[..., str] | None = None,
        smooth: bool = False,
    ) -> None:
        if (rate is None) == (concurrency is None):
            raise ConfigError(
                f"Limit({name!r:.200}) has either rate= or concurrency=: give a task two limits to have both"
            )
        if by is not None and not callable(by):
            raise ConfigError(f"Limit(by=) has to be a function of the task's arguments, not {by!r:.200}")
        if smooth and rate is None:
            raise ConfigError("Limit(smooth=True) belongs to a rate: leave it out")
        rule = _rated(name, rate) if rate is not None else _counted(name, concurrency)
        object.__setattr__(self, "name", rule.name)
        object.__setattr__(self, "rule", replace(rule, smooth=bool(smooth), keyed=by is not None))
        object.__setattr__(self, "by", by)

    @classmethod
    def of(cls, text: str) -> Limit:
        """Return the limit that a text such as "api:50/s" or "gpu:2" states.

        Raises:
            ConfigError: it states none.
        """
        try:
            rule = read_named(text)
        except LimitError as error:
            raise ConfigError(f"the task option limit: {error}") from None
        if rule.window:
            return cls(rule.name, rate=text.rpartition(":")[2])
        return cls(rule.name, concurrency=rule.count)


def _rated(name: object, rate: object) -> LimitRule:
    try:
        rule = read_limit(_text(name), _text(rate))
    except LimitError as error:
        raise ConfigError(f"Limit(rate=): {error}") from None
    if not rule.window:
        raise ConfigError(
            f'Limit(rate={rate!r}) has no unit: write "{rate}/s", /m, /h or /d, or concurrency='
        )
    return rule


def _counted(name: object, count: object) -> LimitRule:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
        raise ConfigError(f"Limit(concurrency=) has to be a whole number of tasks >= 1, not {count!r:.200}")
    try:
        return read_limit(_text(name), str(count))
    except LimitError as error:
        raise ConfigError(f"Limit(): {error}") from None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
