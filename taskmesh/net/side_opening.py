"""Opens the side port that the settings ask for, and loads what it needs only then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from taskmesh.config import Config
from taskmesh.net.loop import Loop
from taskmesh.net.reception import Reception
from taskmesh.net.side_settings import side_settings


@contextlib.contextmanager
def side_port(config: Config, loop: Loop, tell: Callable[[str], None]) -> Iterator[Reception | None]:
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
    from taskmesh.net.side_port import SidePort

    reception = Reception(loop)
    try:
        port = SidePort(settings, reception)
    except BaseException:
        reception.close()
        raise
    with port, contextlib.closing(reception):  # in the end those who still ask are told, then the port closes
        reception.address = port.address
        tell(port.address)
        yield reception
