"""Ports for programs that are started later, or again."""

import os
import random
import socket
from contextlib import ExitStack

FIXED = range(20_000, 32_000)
"""Below those that Linux gives to connections: one of them might get the port before its program is there."""


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that are free now.

    Each worker of pytest-xdist has a share of the ports: a port is free until its program binds it, and
    another worker that looks meanwhile would find it too.

    Raises:
        RuntimeError: None found in 1,000 tries.
    """
    share = len(FIXED) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    start = share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(1_000):
        first = FIXED[start + random.randrange(share - count)]
        with ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise RuntimeError(f"no {count} free ports in a row on 127.0.0.1")
