"""The settings of a Spark job that uses a mesh: a frozen value that travels to each of its Python workers."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

from msgspec import Meta

from taskmesh.errors import ConfigError
from taskmesh.link.endpoints import Endpoints
from taskmesh.settings.setting import (
    MOST,
    Directory,
    PositiveSeconds,
    PositiveSize,
    SettingError,
    settings_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from taskmesh.spark.jobs.counts import Counts


PREFIX: Final = "spark.taskmesh."
"""Of the settings in a session's conf."""
_SWITCHES: Final = {"true": 2, "false": 0, "0": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The addresses of the meshes, and how much of a partition may be under way on its own.

    Attributes:
        address: the hub's gateway, or those of several meshes, which share the partitions: number i is the
            mesh's at i modulo their number, each time that Spark tries it. None stands in for another.
        queue: the queue that the pools serve; empty for that of the task.
        tags: the tags that the pools have; empty for those of the task.
        window: batches that one Spark task may have under way.
        window_bytes: bytes of these batches; a single batch may be larger.
        errors: the effect of a task's exception: "raise" fails the Spark task, "null" gives nulls in the row
            that caused it, "column" gives these and the exception's text in `_mesh_error`.
        connect_timeout: seconds until a hub that does not answer is given up, when a worker first dials it.
        no_worker_timeout: seconds without any pool for the task before NoMeshWorkers.
        gateway_timeout: seconds that the hub may be away in the middle of a job before MeshGatewayLost.
        dedupe: "result" for tasks that return the same for the same input: equal batches of the last ten
            minutes are not computed again, even while the first one is being computed.
        remember_errors: how many of Spark's tries of a task must fail before the hub remembers the failure
            and reports it to the later tries at once; 0 or False for never, True for 2. A failure that is
            remembered costs nothing again; one that is not may be gone the next time.
        keys: a directory with the mesh's keys on the executors; empty where none are needed.
        engine: "mesh"; "local" runs the tasks in Spark's own Python workers, with the same checks.
        counts: the counters of a job; see `MeshSpark.counting`.

    Raises:
        ConfigError: a value cannot be used.
    """

    address: tuple[str, ...] = dataclasses.field(default=(), kw_only=False)
    queue: str = ""
    tags: tuple[str, ...] = ()
    window: Annotated[int, Meta(ge=1, le=MOST, description="a whole number, at least 1")] = 4
    window_bytes: PositiveSize = 16 << 20
    errors: Literal["raise", "null", "column"] = "raise"
    connect_timeout: PositiveSeconds = 10.0
    no_worker_timeout: PositiveSeconds = 30.0
    gateway_timeout: PositiveSeconds = 30.0
    dedupe: Literal["none", "result"] = "none"
    remember_errors: Annotated[int, Meta(ge=1, le=MOST, description="a whole number, True or False")] = 2
    keys: Directory = ""
    engine: Literal["mesh", "local"] = "mesh"
    counts: Counts | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Convert values as people and the Spark conf write them: text for numbers, commas in lists."""
        for name in FIELDS:
            value = getattr(self, name)
            try:
                if name == "remember_errors" and str(value).lower() in _SWITCHES:
                    value = _SWITCHES[str(value).lower()]
                else:
                    value = _SETTINGS[name].read(value)
            except SettingError as error:
                raise ConfigError(f"{name} {error}") from None
            object.__setattr__(self, name, value)
        if not self.address and self.engine == "mesh":
            raise ConfigError(
                "no address: give MeshSpark('tcp://HOST:5550') or set spark.taskmesh.address in the conf"
            )
        for address in self.address:
            Endpoints.of(address)  # refused here, on the driver, and not first in Spark's workers


FIELDS: Final = tuple(field.name for field in dataclasses.fields(Settings)[:-1])
"""The names of the settings."""
_SETTINGS: Final = settings_of(Settings, Counts=object)
