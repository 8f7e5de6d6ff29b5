"""Host names and addresses of this machine's loopback."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if a host (without brackets) names this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
