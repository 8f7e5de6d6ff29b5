"""What a hub can afford: open files bound how many pools and clients it may have at a time."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

from taskmesh.errors import ConfigError
from taskmesh.sockets.context import MAX_SOCKETS

FILES_PER_POOL = 4
"""Its lane's socket and link, its links to collector and control."""
RESERVED = 128
"""Files for the program itself and for clients, at least."""
SPARE_SOCKETS = 1024


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits that follow from the limit of open files.

    Attributes:
        files: how many may be open. pools: how many may have a session.
    """

    files: int
    pools: int


def hub_budget(max_pools: int) -> Budget:
    """Raises the limit of open files as far as it goes, and says what that is enough for.

    Raises:
        ConfigError: not even one pool could be served.
    """
    files = raise_file_limit()
    pools = min(max_pools, (files - RESERVED) // FILES_PER_POOL)
    if pools < 1:
        raise ConfigError(
            f"{files} open files are too few for a hub, which needs {RESERVED} and {FILES_PER_POOL} for each "
            "pool: raise the limit (ulimit -n)"
        )
    return Budget(files, pools)


def socket_limit(pools: int) -> int:
    """How many sockets a hub's context may have: lanes that are just being closed count too."""
    return min(MAX_SOCKETS, 2 * pools + SPARE_SOCKETS)


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
