"""How a Spark job uses a mesh: one frozen value that travels to every Python worker of the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import Endpoints
from taskmesh.spark.steps.step import Errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from taskmesh.spark.jobs.counts import Counts


_SWITCHES: Final = {"true": 2, "false": 0, "0": 0}
_UNITS: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the mesh is, and how much of a partition may be under way on it.

    Attributes:
        address: the hub's gateway, several in order of preference.
        queue, tags: which pools; empty for what the task itself says.
        window: batches that one Spark task may have under way. window_bytes: their bytes; a single batch may
            be larger. Both at least 1.
        errors: what a task's exception does: "raise" fails the Spark task, "null" gives the row that caused
            it with nulls, "column" gives that and the exception's text in `_mesh_error`.
        connect_timeout: seconds until a hub that does not answer is given up, when a worker first dials it.
        no_worker_timeout: seconds without any pool for the task before NoMeshWorkers.
        gateway_timeout: seconds that the hub may be away in the middle of a job before MeshGatewayLost.
        dedupe: "result" for tasks that give the same for the same input: what the mesh has computed, or is
            computing, for equal batches in the last ten minutes is not computed again.
        remember_errors: how many of Spark's tries of a task have to fail before the hub remembers the failure
            and tells it to the later tries at once; 0 or False for never, True for 2. A failure that is
            remembered costs nothing again; one that is not may go better the next time.
        keys: a directory with the mesh's keys on the executors; empty where none are needed.
        engine: "mesh"; "local" runs the tasks in Spark's own Python workers, with all the same checks.
        counts: what is told how much went over; see `MeshSpark.counting`.

    Raises:
        ConfigError: a value cannot be used.
    """

    address: tuple[str, ...] = dataclasses.field(default=(), kw_only=False)
    queue: str = ""
    tags: tuple[str, ...] = ()
    window: int = 4
    window_bytes: int = 16 << 20
    errors: Errors = "raise"
    connect_timeout: float = 10.0
    no_worker_timeout: float = 30.0
    gateway_timeout: float = 30.0
    dedupe: Literal["none", "result"] = "none"
    remember_errors: int = 2
    keys: str = ""
    engine: Literal["mesh", "local"] = "mesh"
    counts: Counts | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Takes values as people and the Spark conf write them: text for numbers, commas in lists."""
        for field in dataclasses.fields(self)[:-1]:
            value = getattr(self, field.name)
            if field.name == "remember_errors" and str(value).lower() in _SWITCHES:
                object.__setattr__(self, field.name, _SWITCHES[str(value).lower()])
                continue
            object.__setattr__(self, field.name, _plain(field.name, value, field.default))
        _among("errors", self.errors, get_args(Errors))
        _among("dedupe", self.dedupe, ("none", "result"))
        _among("engine", self.engine, ("mesh", "local"))
        if not self.address and self.engine == "mesh":
            raise ConfigError(
                "no address: give MeshSpark('tcp://HOST:5550') or set spark.taskmesh.address in the conf"
            )

        for address in self.address:
            Endpoints.of(address)  # here and not first in Spark's workers


FIELDS: Final = tuple(field.name for field in dataclasses.fields(Settings)[:-1])
"""What people set by name."""


def _among(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} has to be one of {', '.join(choices)}, not {value!r}")


def _plain(name: str, value: Any, default: object) -> Any:
    """The value in its default's type."""
    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())
        if isinstance(default, str):
            return value if isinstance(value, str) else _refuse()
        number = float(value) if isinstance(default, float) else _size(value)
    except (TypeError, ValueError, AttributeError):
        number = -1
    if not number > 0:
        raise ConfigError(f"{name} has to be {_expected(default)}, not {value!r}")
    return number


def _refuse() -> str:
    raise TypeError


def _size(value: object) -> int:
    """A whole number, or text such as '16MiB'."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    text = str(value).strip().lower()
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


def _expected(default: object) -> str:
    if isinstance(default, tuple):
        return "text, or a list of texts"
    if isinstance(default, str):
        return "text"
    return "seconds, more than 0" if isinstance(default, float) else "a whole number, at least 1"
