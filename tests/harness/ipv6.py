"""The mark of tests that need an IPv6 loopback interface; many containers have none."""

import socket

import pytest


def _has_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ONLY_WITH_IPV6 = pytest.mark.skipif(not _has_loopback(), reason="this machine has no ::1")
