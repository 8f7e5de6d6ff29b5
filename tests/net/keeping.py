"""Tasks under a key whose outcomes the hub keeps, and hubs with a store."""

from collections.abc import Callable
from typing import Any

from taskmesh import Mesh, TaskFuture
from taskmesh.client.group import TaskGroup
from taskmesh.client.options import TaskOptions
from taskmesh.serialize.code import dump_function
from tests.harness.program import Program
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer
from tests.harness.waiting import wait_until


def keep(
    mesh: Mesh, function: Callable[..., Any], argument: Any, key: str, seconds: float = 60.0
) -> TaskFuture[Any]:
    """Submits a call under a key; its outcome answers others for so many seconds."""
    made = dump_function(function)
    group = TaskGroup(mesh, made, function.__qualname__, TaskOptions(), keep=seconds)
    return group.submit(argument, lambda payload: key)


def store(mesh: Mesh) -> dict[str, Any]:
    """How the hub says that its store is."""
    found: dict[str, Any] = mesh.status()["store"]
    return found


def stored(mesh: Mesh, count: int, timeout: float = 15.0) -> None:
    """Waits until so many outcomes are in the store, and none waits to be."""
    wait_until(
        lambda: (store(mesh).get("stored"), store(mesh).get("waiting")) == (count, 0),
        timeout,
        f"{count} outcomes stored: {store(mesh)}",
    )


def hub_with(
    programs: Programs, server: RedisServer, bind: str = "tcp://127.0.0.1:0", **env: str
) -> tuple[Program, str]:
    """A hub with a store, and its gateway's address."""
    return programs.hub(bind, **{**stored_in(server), **env})


def stored_in(server: RedisServer) -> dict[str, str]:
    """The environment of a hub that has its store there, and is soon done with a lost pool."""
    return {"TASKMESH_STORE": server.url, "TASKMESH_LEASE": "3"}
