"""Which hosts are this machine alone."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host (no brackets) names this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
