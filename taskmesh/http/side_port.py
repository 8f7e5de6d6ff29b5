"""The side port of a program, where it is asked for; its server is loaded only then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from taskmesh.config import Config
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
