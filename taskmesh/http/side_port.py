"""Opens the side port, and keeps deletion costs, where that is asked for; loads what they need only then."""

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
    """The side port that the settings ask for, from here to the end of the block.

    Args:
        tell: told the address once it listens.

    Raises:
        ConfigError: the address cannot be had or may not be used; nothing listens then.
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
    with port, contextlib.closing(requests):  # in the end those who still ask are told, then the port closes
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
    """A hub's side port, and what keeps the deletion costs of these Deployments' pods, if asked for.

    Args:
        record: told the side port's address, and what goes wrong with the costs.

    Raises:
        ConfigError: the address cannot be had; costs are to be kept without a side port, or not in a pod.
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
