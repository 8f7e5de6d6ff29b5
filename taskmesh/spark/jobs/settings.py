"""How a Spark job uses a mesh: one frozen value that travels to every Python worker of the job."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from taskmesh.config import converted, setting
from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import Endpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from taskmesh.spark.jobs.counts import Counts


_SWITCHES: Final = {"true": 2, "false": 0, "0": 0}


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

    address: tuple[str, ...] = setting((), "an endpoint, or a list of them", kw_only=False)
    queue: str = setting("", "text")
    tags: tuple[str, ...] = setting((), "text, or a list of texts")
    window: int = setting(4, "a whole number, at least 1", least=1)
    window_bytes: int = setting(16 << 20, "bytes, at least 1, as a number or like '16MiB'", least=1)
    errors: Literal["raise", "null", "column"] = setting(
        "raise", "one of raise, null, column", among=("raise", "null", "column")
    )
    connect_timeout: float = setting(10.0, "seconds, more than 0", least=1e-9)
    no_worker_timeout: float = setting(30.0, "seconds, more than 0", least=1e-9)
    gateway_timeout: float = setting(30.0, "seconds, more than 0", least=1e-9)
    dedupe: Literal["none", "result"] = setting("none", "one of none, result", among=("none", "result"))
    remember_errors: int = setting(2, "a whole number, True or False", least=1)
    keys: str = setting("", "the path of a directory")
    engine: Literal["mesh", "local"] = setting("mesh", "one of mesh, local", among=("mesh", "local"))
    counts: Counts | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Takes values as people and the Spark conf write them: text for numbers, commas in lists."""
        for field in dataclasses.fields(self)[:-1]:
            value = getattr(self, field.name)
            if field.name == "remember_errors" and str(value).lower() in _SWITCHES:
                object.__setattr__(self, field.name, _SWITCHES[str(value).lower()])
                continue
            try:
                object.__setattr__(self, field.name, converted(field.metadata, field.default, value))
            except (TypeError, ValueError, OverflowError):
                expects = field.metadata["expects"]
                raise ConfigError(f"{field.name} has to be {expects}, not {value!r}") from None
        if not self.address and self.engine == "mesh":
            raise ConfigError(
                "no address: give MeshSpark('tcp://HOST:5550') or set spark.taskmesh.address in the conf"
            )

        for address in self.address:
            Endpoints.of(address)  # here and not first in Spark's workers


FIELDS: Final = tuple(field.name for field in dataclasses.fields(Settings)[:-1])
"""What people set by name."""
