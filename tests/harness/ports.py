"""Ports for programs that are started later, or again."""

import random
import socket
from contextlib import ExitStack

FIXED = range(20_000, 32_000)
"""Below those that Linux gives to connections: one of them might get the port before its program is there."""


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that are free now."""
    while True:
        first = random.choice(FIXED)
        with ExitStack() as probes:
            try:
                for number in range(count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            except OSError:
                continue
        return first


def lasting_address() -> str:
    """Return an address for a hub that may die and come again: nobody is given its ports meanwhile."""
    return f"tcp://127.0.0.1:{free_ports(3)}"
