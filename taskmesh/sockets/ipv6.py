"""IPv6: libzmq speaks it only where it is told to, and then prefers it to the IPv4 address of a name."""

from __future__ import annotations

import socket
from functools import cache

TCP = "tcp://"


def needs_ipv6(endpoint: str) -> bool:
    """Return True if an endpoint can be reached over IPv6 alone: an address in brackets, or such a name.

    A name is looked up once, and again as long as it is unknown.
    """
    if not endpoint.startswith(TCP):
        return False
    host = endpoint[len(TCP) :].rpartition(":")[0]
    if host.startswith("["):
        return True
    if not any(map(str.isalpha, host)):
        return False  # an IPv4 address, or the wildcard
    try:
        return _has_ipv6_alone(host)
    except OSError:
        return False


@cache
def _has_ipv6_alone(host: str) -> bool:
    """Look a name up; an interface's name, to which libzmq can bind, is none.

    Raises:
        OSError: nobody knows it (now).
    """
    found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    return all(family == socket.AF_INET6 for family, *_ in found)
