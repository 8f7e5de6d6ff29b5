"""Settings: defaults < taskmesh.toml or [tool.taskmesh] of pyproject.toml < TASKMESH_* < arguments.

They are read once, when a mesh or a program starts, checked as a whole, and handed down as frozen sections.
One error lists every problem: the setting, the value, where it comes from and what would be right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from taskmesh.errors import ConfigError
from taskmesh.settings.setting import (
    MOST,
    Directory,
    FilePath,
    PositiveSeconds,
    PositiveSize,
    Seconds,
    Size,
    settings_of,
)
from taskmesh.settings.source import Findings
from taskmesh.system.cgroups import usable_cpus

Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, object] | Config | None"

MOST_SLOTS = 4096
"""Slots of a pool: each is a process or a thread, and costs the pool half a dozen descriptors."""
MANY_SLOTS = 100
"""Slots of a pool for tasks that wait, unless it says how many."""
_ARGUMENTS = ("workers", "config")  # arguments of Mesh that are not named like a setting

Positive = Annotated[int, Meta(ge=1, le=MOST, description="a whole number, at least 1")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """The mesh, and how it is reached.

    Attributes:
        address: the hub's gateway endpoint; empty for an embedded mesh.
        bind: the gateway endpoint at which an embedded hub listens; empty for none. Only an argument counts.
        local_pool: an embedded mesh has a pool of its own; `workers=0` together with `bind=` says no.
        hub: the place of an embedded hub: a thread of this process, or a process of its own.
        open_timeout: seconds that opening may take.
        keys: the directory of this program's keys (`taskmesh keys`). Empty for none: then only hubs on this
            machine can be reached. An embedded mesh needs them only to listen: those of a hub.
    """

    address: Annotated[
        str, Meta(description="one endpoint like 'tcp://127.0.0.1:5550', since a mesh has one hub")
    ] = ""
    bind: Annotated[str, Meta(description="an endpoint like 'tcp://127.0.0.1:5550'")] = ""
    local_pool: Annotated[bool, Meta(description="true or false")] = True
    hub: Literal["thread", "process"] = "thread"
    open_timeout: PositiveSeconds = 10.0
    keys: Directory = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The limits of one client. Beyond the first two, submit() waits.

    Attributes:
        max_pending: tasks without an outcome.
        max_bytes: bytes of arguments at the client. The hub also counts results that the client has not
            taken, and beyond the limit it runs no more of the client's tasks.
        hub_timeout: seconds without an answer of the hub after which a client gives up: every open task ends
            with HubUnreachable, and the mesh takes no more; 0 waits for ever.
        result_codec: the encoding of results: "pickle", or "safe": as plain data, and errors as RemoteError,
            so that this program unpickles nothing that comes from others.
    """

    max_pending: Annotated[Positive, Meta(description="a whole number of tasks, at least 1")] = 2_000_000
    max_bytes: PositiveSize = 1 << 30
    hub_timeout: Annotated[Seconds, Meta(description="seconds, 0 for any time")] = 0.0
    result_codec: Literal["pickle", "safe"] = "pickle"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The ledger's limits and clocks.

    Attributes:
        lease: seconds after which a silent pool's tasks are given to others.
        beat: seconds between a pool's heartbeats; one that has nothing sends fewer.
        max_tasks: unfinished tasks in the ledger, of all clients together.
        max_bytes: bytes of all payloads that the hub keeps: calls get half of them, the rest is for results
            that wait, outcomes that are kept, and functions; 0 for half of the memory that the hub may take.
        max_pools: pools at a time; the limit of open files may allow fewer.
        max_clients: client sessions at a time, including, without a journal, those whose clients are away.
        crash_limit: crashes after which a task is given up.
        pool_loss_limit: pools that died while they had a task, after which it is given up.
        result_ttl: seconds that outcomes are kept for a client that is away; its tasks run on after that.
        versions: "warn" or "refuse": the treatment of pools and clients with another minor version of Python,
            another pickle protocol or another cloudpickle than the hub's.
        lanes: ports for the lanes of pools; empty for any on loopback, and 5600-6799 elsewhere.
        journal: a file in which accepted tasks outlive hub and clients, or URL of a Redis; empty for none.
        journal_file: the path of a file with that URL, if it holds a password.
        strict: a task is accepted when the journal is on disk, so that a loss of power takes none; otherwise
            it is written at once and on disk within a second.
    """

    lease: PositiveSeconds = 10.0
    beat: PositiveSeconds = 1.0
    max_tasks: Annotated[Positive, Meta(description="a whole number of tasks, at least 1")] = 4_000_000
    max_bytes: Annotated[
        Size, Meta(description="bytes, as a number or like '4GiB', 0 for half of the memory")
    ] = 0
    max_pools: Annotated[Positive, Meta(description="a whole number of pools, at least 1")] = 1000
    max_clients: Annotated[Positive, Meta(description="a whole number of clients, at least 1")] = 10_000
    crash_limit: Positive = 3
    pool_loss_limit: Annotated[int, Meta(ge=2, le=MOST, description="a whole number, at least 2")] = 5
    result_ttl: Seconds = 3600.0
    versions: Literal["warn", "refuse"] = "warn"
    lanes: Annotated[str, Meta(description="a range of ports like '5600-6799'")] = ""
    journal: Annotated[
        str, Meta(description="the path of a file, or a URL like 'redis://127.0.0.1:6379/0'")
    ] = ""
    journal_file: FilePath = ""
    strict: Annotated[bool, Meta(description="true or false")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """The slots of a pool, and the tasks that it takes.

    Attributes:
        concurrency: slots, up to MOST_SLOTS; 0 for one per usable CPU, or for 100 of tasks that wait.
        mode: "process": a slot is a process. "async" or "thread", for tasks that wait: slots share processes,
            `async def` tasks run on the event loop of their process and others in threads. The two say which
            the tasks are; the pool has the tag `mode:async` or `mode:thread`.
        processes: processes that the slots share in these modes.
        queues: the queues that it serves.
        tags: the tags that it has.
        grace: seconds that running tasks have when it drains.
        only_registered: names of modules and packages, to which the functions that it runs must belong; empty
            for any function.
        max_payload: bytes of one call's arguments or result; an embedded mesh has no limit, unless it listens
            or its hub is a process.
        middleware: code around its tasks, as MODULE:NAME of objects or classes with hooks.
        slot_user: the user as whom a worker that root has started runs its slots, so that tasks cannot read
            the worker's keys; empty for the worker's own.
    """

    concurrency: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_SLOTS,
            description="a whole number of slots, 0 for one per CPU",
            extra={"why": " (start further pools for more)"},
        ),
    ] = 0
    mode: Literal["process", "thread", "async"] = "process"
    processes: Annotated[Positive, Meta(description="a whole number of processes, at least 1")] = 1
    queues: Annotated[
        tuple[str, ...], Meta(min_length=1, description="a list of queue names, at least one")
    ] = ("default",)
    tags: Annotated[tuple[str, ...], Meta(description="a list of tags")] = ()
    grace: Seconds = 30.0
    only_registered: Annotated[tuple[str, ...], Meta(description="a list of modules")] = ()
    max_payload: PositiveSize = 256 << 20
    middleware: Annotated[tuple[str, ...], Meta(description="a list of MODULE:NAME")] = ()
    slot_user: Annotated[str, Meta(description="the name of a user")] = ""

    @property
    def slots(self) -> int:
        """The number of slots on this machine."""
        default = max(1, math.ceil(usable_cpus())) if self.mode == "process" else MANY_SLOTS
        return self.concurrency or default

    @property
    def shared(self) -> int:
        """The number of processes that the slots share; 0 if each has one to itself."""
        return 0 if self.mode == "process" else min(self.processes, self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """The side port of the programs hub and worker.

    Attributes:
        http: HOST:PORT of the side port for probes and metrics; empty for none.
        http_token_file: the path of a file with the token that its users need; required beyond loopback.
    """

    http: Annotated[str, Meta(description="HOST:PORT like '127.0.0.1:5580'")] = ""
    http_token_file: FilePath = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, one frozen section for each part that reads them.

    Attributes:
        mesh: the mesh, and how it is reached.
        client: the limits of a client.
        hub: the limits and clocks of a hub.
        pool: the slots of a pool, and the tasks that it takes.
        program: the side port of a program.
        origins: where settings come from, by `section.key`; those that are not there have their defaults.
        command_line: they are those of a command, which waits for no hub that is not there; a program does.
    """

    mesh: MeshConfig = field(default_factory=MeshConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    program: ProgramConfig = field(default_factory=ProgramConfig)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    command_line: bool = field(default=False, compare=False, repr=False)


SECTIONS = {
    "mesh": MeshConfig,
    "client": ClientConfig,
    "hub": HubConfig,
    "pool": PoolConfig,
    "program": ProgramConfig,
}
_SETTINGS = {name: settings_of(section) for name, section in SECTIONS.items()}


def load(
    source: Source = None,
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    command_line: bool = False,
) -> Config:
    """Read the settings from all their sources.

    Args:
        source: a TOML file, a mapping of sections, or a finished Config (then neither a file nor the
            environment is read); None looks for taskmesh.toml or [tool.taskmesh] from `directory` upwards.
        overrides: arguments, as `section__key` or as a key that only one section has.
        environ: os.environ, unless given.
        directory: the working directory, unless given.
        command_line: the overrides are options of a command, which are called `--key`.

    Raises:
        ConfigError: names every unknown key with the nearest one, and every value that cannot be used.
    """
    start = source if isinstance(source, Config) else Config()
    found = Findings(_SETTINGS)
    if not isinstance(source, Config):
        if isinstance(source, Mapping):
            found.add_sections(source, "config")
        elif source is None:
            found.add_nearest_file(directory)
        elif isinstance(source, str | os.PathLike):
            found.add_file(Path(source))
        else:
            raise ConfigError(
                f"config= has to be a TOML file, a mapping of sections or a Config, not {source!r}"
            )
        found.add_environment(os.environ if environ is None else environ)
    for name, value in (overrides or {}).items():
        option = f"--{name.rpartition('__')[2].replace('_', '-')}"
        found.add(name, value, option if command_line else f"argument {name}", _ARGUMENTS)
    if found.problems:
        raise ConfigError("\n".join(found.problems))
    return replace(
        start,
        origins={**start.origins, **found.origins},
        command_line=start.command_line or command_line,
        **{name: replace(getattr(start, name), **values) for name, values in found.values.items() if values},
    )
