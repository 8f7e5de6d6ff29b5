"""The side port and the deletion costs of a program, where they are asked for; loaded only then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from taskmesh.config import Config
from taskmesh.errors import ConfigError
from taskmesh.http.requests import LoopRequests
from taskmesh.http.settings import side_settings
from taskmesh.system.loop import Loop


@contextlib.contextmanager
def side_port(config: Config, loop: Loop, tell: Callable[[str], None]) -> Iterator[LoopRequests | None]:
    """Open the side port that the settings ask for, until the end of the block.

    Args:
        config: the user's settings.
        loop: the program's loop.
        tell: called with the address once it listens.

    Raises:
        ConfigError: the address cannot be bound or may not be used; nothing listens then.
    """
    settings = side_settings(config)
    if settings is None:
        yield None
        return
    from taskmesh.http.server import SidePort

    requests = LoopRequests(loop)
    try:
        port = SidePort(settings, requests)
    except BaseException:
        requests.close()
        raise
    with port, contextlib.closing(requests):  # in the end open requests fail, then the port closes
        requests.address = port.address
        tell(port.address)
        yield requests


@contextlib.contextmanager
def hub_side(
    config: Config,
    loop: Loop,
    record: Callable[[str, dict[str, object]], None],
    deployments: tuple[str, ...],
) -> Iterator[LoopRequests | None]:
    """Open a hub's side port, and keep the deletion costs of Deployments' pods, until the end of the block.

    Args:
        config: the user's settings.
        loop: the hub's loop.
        record: logs the side port's address, and errors.
        deployments: names of the Deployments; none for no costs.

    Raises:
        ConfigError: the address cannot be bound; costs are to be kept without a side port, or not in a pod.
    """
    with side_port(config, loop, lambda at: record("http", {"address": at})) as requests:
        if not deployments:
            yield requests
            return
        if requests is None:
            raise ConfigError("--deletion-cost needs the side port: give --http HOST:PORT, too")
        from taskmesh.http.deletion_cost import DeletionCosts, Pods

        with DeletionCosts(deployments, Pods(), lambda: requests.ask("deletion_costs"), record):
            yield requests
